"""Pull requests as last seen, and what is remembered of each from round to round."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import sqlalchemy as sa

from reviewer.ledger import Ledger
from service.forge.base import PullState
from service.policy import Policy
from service.store import findings
from service.store.dialect import insert
from service.store.errors import Conflict
from service.store.schema import pulls


@dataclass(frozen=True, slots=True)
class Pull:
    """A stored pull request. `version` counts the writes of its ledger."""

    id: int
    forge: str
    repo: str
    number: int
    head_sha: str
    base_sha: str
    base_ref: str
    state: Literal["open", "closed"]
    merged: bool
    draft: bool
    title: str
    author: str
    updated_at: datetime
    version: int
    policy_sha: str

    @property
    def name(self) -> str:
        return f"{self.repo}#{self.number}"


_COLUMNS = tuple(pulls.c[name] for name in Pull.__dataclass_fields__)


def remember(connection: sa.Connection, forge: str, state: PullState, now: datetime) -> Pull:
    """Stores the pull request as the forge shows it now; ledger and policy stay."""
    seen = {
        "head_sha": state.head_sha,
        "base_sha": state.base_sha,
        "base_ref": state.base_ref,
        "state": state.state,
        "merged": state.merged,
        "draft": state.draft,
        "title": state.title,
        "author": state.author.login,
        "updated_at": now,
    }
    fresh = insert(connection, pulls, {"forge": forge, "repo": state.repo, "number": state.number, **seen})
    stored = fresh.on_conflict_do_update(
        index_elements=[pulls.c.forge, pulls.c.repo, pulls.c.number],
        set_={name: fresh.excluded[name] for name in seen},
    )
    return Pull(*connection.execute(stored.returning(*_COLUMNS)).one())


def find(connection: sa.Connection, forge: str, repo: str, number: int) -> Pull | None:
    named = (pulls.c.forge == forge, pulls.c.repo == repo, pulls.c.number == number)
    row = connection.execute(sa.select(*_COLUMNS).where(*named)).first()
    return None if row is None else Pull(*row)


def get(connection: sa.Connection, pull_id: int) -> Pull:
    """Raises `Conflict` where the row was pruned."""
    row = connection.execute(sa.select(*_COLUMNS).where(pulls.c.id == pull_id)).first()
    if row is None:
        raise Conflict(f"pull request row {pull_id} is gone", "let the next event about it store it again")
    return Pull(*row)


def open_pulls(connection: sa.Connection, forge: str, repo: str) -> list[Pull]:
    """The open pull requests of a repository as last seen, by number."""
    named = (pulls.c.forge == forge, pulls.c.repo == repo, pulls.c.state == "open")
    found = sa.select(*_COLUMNS).where(*named).order_by(pulls.c.number)
    return [Pull(*row) for row in connection.execute(found)]


def ledger(connection: sa.Connection, pull: Pull) -> Ledger:
    """The ledger that belongs to `pull.version`; an empty one before the first round.

    Raises `Conflict` where it was written since `pull` was read, `LedgerError` where it is of another version.
    """
    found = sa.select(pulls.c.ledger).where(pulls.c.id == pull.id, pulls.c.version == pull.version)
    row = connection.execute(found).first()
    if row is None:
        raise _changed(pull)
    return Ledger() if row.ledger is None else Ledger.from_json(row.ledger, f"the ledger of {pull.name}")


def save_ledger(connection: sa.Connection, pull: Pull, ledger: Ledger, now: datetime) -> Pull:
    """Replaces the ledger that `pull` was read with; findings and dismissals follow it.

    Raises `Conflict` where someone else wrote it meanwhile: read it again, and apply the change to that.
    """
    written = (
        sa.update(pulls)
        .where(pulls.c.id == pull.id, pulls.c.version == pull.version)
        .values(ledger=ledger.to_json(), version=pull.version + 1)
        .returning(*_COLUMNS)
    )
    row = connection.execute(written).first()
    if row is None:
        raise _changed(pull)
    findings.follow(connection, pull.id, ledger, now)
    return Pull(*row)


def save_policy(connection: sa.Connection, pull: Pull, policy: Policy, sha: str) -> None:
    """Keeps a policy that was read well, and the blob or commit it came from."""
    kept = sa.update(pulls).where(pulls.c.id == pull.id)
    connection.execute(kept.values(policy=policy.model_dump_json(), policy_sha=sha))


def policy(connection: sa.Connection, pull: Pull) -> Policy | None:
    """The last good policy; None where none was kept."""
    text = connection.execute(sa.select(pulls.c.policy).where(pulls.c.id == pull.id)).scalar()
    return None if text is None else Policy.model_validate_json(text)


def _changed(pull: Pull) -> Conflict:
    return Conflict(f"the ledger of {pull.name} changed since version {pull.version}", "read it again")
