"""Forgetting what is old, a few rows at a time, and never what is still open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from service.store.ci_tables import kpis, runs, tokens
from service.store.database import Database
from service.store.schema import (
    audit,
    budgets,
    deliveries,
    effects,
    heads,
    outbox,
    pulls,
    rep_outputs,
    rounds,
    work,
)

# One batch holds SQLite's write lock for some milliseconds.
_BATCH = 200


@dataclass(frozen=True, slots=True)
class Keep:
    """How long each thing is kept after it is finished, closed or (records) made."""

    bodies: timedelta = timedelta(days=14)
    deliveries: timedelta = timedelta(days=90)
    completions: timedelta = timedelta(days=14)
    work: timedelta = timedelta(days=30)
    ci: timedelta = timedelta(days=90)
    pulls: timedelta = timedelta(days=365)
    records: timedelta = timedelta(days=730)


def prune(database: Database, now: datetime, keep: Keep) -> dict[str, int]:
    """Deletes what is older than `keep` says; returns how many rows of each kind went (bodies: were emptied).

    A closed pull request takes its rounds, findings, dismissals and outbox rows along.
    """
    pruned = {"bodies": _empty_bodies(database, now - keep.bodies)}
    for name, table, where in _old_rows(now, keep):
        pruned[name] = _delete(database, table, where)
    return pruned


def _old_rows(now: datetime, keep: Keep) -> Iterator[tuple[str, sa.Table, sa.ColumnElement[bool]]]:
    yield "deliveries", deliveries, _settled(now - keep.deliveries)
    # A replayed delivery has no second effect for as long as a delivery may be kept.
    yield "effects", effects, effects.c.created_at < now - keep.records
    running = sa.select(rounds.c.id).where(rounds.c.finished_at.is_(None))
    spent = rep_outputs.c.created_at < now - keep.completions
    yield "completions", rep_outputs, sa.and_(spent, rep_outputs.c.round_id.not_in(running))
    yield "work", work, work.c.finished_at < now - keep.work
    # Rows of pull requests stand for comments that are edited for as long as the pull request lives.
    loose = outbox.c.pull_id.is_(None)
    yield "outbox", outbox, sa.and_(outbox.c.finished_at < now - keep.work, loose)
    unsent = sa.select(outbox.c.pull_id).where(outbox.c.finished_at.is_(None), outbox.c.pull_id.is_not(None))
    closed = sa.and_(pulls.c.state == "closed", pulls.c.updated_at < now - keep.pulls)
    yield "pulls", pulls, sa.and_(closed, pulls.c.id.not_in(unsent))
    yield "heads", heads, heads.c.at < now - keep.records
    # A run takes its jobs and their leases along; its numbers stay.
    yield "ci_runs", runs, runs.c.finished_at < now - keep.ci
    yield "ci_tokens", tokens, tokens.c.expires_at < now - keep.work
    yield "ci_kpis", kpis, kpis.c.at < now - keep.records
    yield "audit", audit, audit.c.at < now - keep.records
    yield "budgets", budgets, budgets.c.day < (now - keep.records).date()


def _settled(before: datetime) -> sa.ColumnElement[bool]:
    return sa.and_(deliveries.c.received_at < before, deliveries.c.state != "received")


def _empty_bodies(database: Database, before: datetime) -> int:
    old = sa.and_(_settled(before), deliveries.c.body.is_not(None))
    return _in_batches(database, deliveries, old, sa.update(deliveries).values(body=None))


def _delete(database: Database, table: sa.Table, where: sa.ColumnElement[bool]) -> int:
    return _in_batches(database, table, where, sa.delete(table))


def _in_batches(database: Database, table: sa.Table, where: sa.ColumnElement[bool], statement: Any) -> int:
    total = 0
    while True:
        with database.write() as connection:
            batch = sa.select(table.c.id).where(where).limit(_BATCH)
            ids = list(connection.execute(batch).scalars())
            if ids:
                connection.execute(statement.where(table.c.id.in_(ids)))
        total += len(ids)
        if len(ids) < _BATCH:
            return total
