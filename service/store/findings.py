"""Findings and dismissals as rows, for queries. The ledger is the truth; these follow it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from reviewer.ledger import Ledger
from reviewer.model import State
from service.store.dialect import insert
from service.store.schema import dismissals, findings

_SAME = (
    "state", "severity", "blocking", "category", "path", "line_start", "line_end", "side", "title", "source",
    "support", "of", "first_round", "last_round",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dismissed:
    """A dismissal; `reopened_at` is set once it was taken back."""

    finding_id: str
    author: str
    reason: str
    dismissed_at: datetime
    reopened_at: datetime | None


def follow(connection: sa.Connection, pull_id: int, ledger: Ledger, now: datetime) -> None:
    """Makes the rows of a pull request say what its ledger says."""
    _follow_findings(connection, pull_id, ledger, now)
    _follow_dismissals(connection, pull_id, ledger, now)


def listed(connection: sa.Connection, pull_id: int, state: State | None = None) -> list[sa.RowMapping]:
    """The findings of a pull request (in one state), the most severe first; columns as in the schema."""
    found = sa.select(findings).where(findings.c.pull_id == pull_id)
    if state is not None:
        found = found.where(findings.c.state == state)
    return list(connection.execute(found.order_by(findings.c.severity, findings.c.id)).mappings())


def dismissed(connection: sa.Connection, pull_id: int) -> list[Dismissed]:
    """Every dismissal of a pull request, oldest first, those taken back included."""
    columns = [dismissals.c[name] for name in Dismissed.__dataclass_fields__]
    found = sa.select(*columns).where(dismissals.c.pull_id == pull_id).order_by(dismissals.c.id)
    return [Dismissed(*row) for row in connection.execute(found)]


def _follow_findings(connection: sa.Connection, pull_id: int, ledger: Ledger, now: datetime) -> None:
    if not ledger.findings:
        return
    rows = [
        {
            "pull_id": pull_id,
            "finding_id": one.id,
            "updated_at": now,
            **{name: getattr(one, name) for name in _SAME},
        }
        for one in ledger.findings.values()
    ]
    fresh = insert(connection, findings)
    upsert = fresh.on_conflict_do_update(
        index_elements=[findings.c.pull_id, findings.c.finding_id],
        set_={name: fresh.excluded[name] for name in (*_SAME, "updated_at")},
    )
    connection.execute(upsert, rows)


def _follow_dismissals(connection: sa.Connection, pull_id: int, ledger: Ledger, now: datetime) -> None:
    standing = (dismissals.c.pull_id == pull_id, dismissals.c.reopened_at.is_(None))
    known = set(connection.execute(sa.select(dismissals.c.finding_id).where(*standing)).scalars())
    if reopened := known - ledger.dismissals.keys():
        closed = sa.update(dismissals).where(*standing, dismissals.c.finding_id.in_(reopened))
        connection.execute(closed.values(reopened_at=now))
    rows = [
        {
            "pull_id": pull_id,
            "finding_id": finding_id,
            "author": one.by,
            "reason": one.reason,
            "dismissed_at": now,
        }
        for finding_id, one in ledger.dismissals.items()
        if finding_id not in known
    ]
    if rows:
        connection.execute(sa.insert(dismissals), rows)
