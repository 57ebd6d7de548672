"""The queue against a model of it: whatever happens in whatever order, both tell the same."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from service.store import schema
from service.store.database import Database
from service.store.errors import StaleClaim
from service.store.lease import OPEN, State, backoff
from service.store.work import WorkClaim, WorkQueue

START = datetime(2026, 9, 1, 12, 0, tzinfo=UTC)
SUBJECTS = st.sampled_from(["acme/app#1", "acme/app#2", "acme/app#3"])
SECONDS = st.sampled_from([0, 1, 10, 45])


@dataclass
class Row:
    """What the model knows of a row; times are seconds since the start."""

    subject: str
    payload: int
    at: float
    by: float
    max_attempts: int
    state: State = State.READY
    attempts: int = 0
    fence: int = 0
    revision: int = 1
    until: float = 0


class QueueMachine(RuleBasedStateMachine):
    def __init__(self, database: Database) -> None:
        super().__init__()
        self.database = database
        self.seconds = 0.0
        self.work = WorkQueue(lambda: START + timedelta(seconds=self.seconds))
        self.rows: dict[int, Row] = {}
        self.claims: list[WorkClaim] = []
        with database.write() as connection:
            connection.execute(sa.delete(schema.work))

    def _open(self, subject: str) -> int | None:
        found = [key for key, row in self.rows.items() if row.subject == subject and row.state in OPEN]
        assert len(found) <= 1
        return found[0] if found else None

    def _holds(self, claim: WorkClaim) -> bool:
        row = self.rows[claim.id]
        return row.state is State.LEASED and row.fence == claim.fence

    def _taken(self, claim: WorkClaim, lease: float) -> None:
        row = self.rows[claim.id]
        row.state, row.until = State.LEASED, self.seconds + lease
        row.fence += 1
        row.attempts += 1
        assert (claim.payload, claim.fence, claim.revision) == ({"n": row.payload}, row.fence, row.revision)
        self.claims.append(claim)

    @rule(subject=SUBJECTS, payload=st.integers(0, 99), delay=SECONDS, max_attempts=st.integers(1, 3))
    def put(self, subject: str, payload: int, delay: float, max_attempts: int) -> None:
        with self.database.write() as connection:
            row_id = self.work.put(
                connection,
                "review",
                subject,
                {"n": payload},
                delay=delay,
                max_wait=60,
                max_attempts=max_attempts,
            )
        at, by = self.seconds + delay, self.seconds + 60
        if (known := self._open(subject)) is None:
            assert row_id not in self.rows
            self.rows[row_id] = Row(subject, payload, at, by, max_attempts)
            return
        assert row_id == known
        row = self.rows[known]
        if row.state is State.LEASED:
            row.by = by
        row.payload, row.at, row.max_attempts, row.attempts = payload, min(at, row.by), max_attempts, 0
        row.revision += 1

    @rule(lease=st.sampled_from([5, 30]))
    def claim(self, lease: float) -> None:
        with self.database.write() as connection:
            claim = self.work.claim(connection, ("review",), "ada", lease)
        due = [
            (row.at, key)
            for key, row in self.rows.items()
            if row.state is State.READY and row.at <= self.seconds
        ]
        assert (claim and claim.id) == (min(due)[1] if due else None)
        if claim:
            self._taken(claim, lease)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def claim_row(self, data: st.DataObject) -> None:
        row_id = data.draw(st.sampled_from(sorted(self.rows)))
        with self.database.write() as connection:
            claim = self.work.claim_row(connection, row_id, "bob", 30)
        row = self.rows[row_id]
        assert (claim is not None) == (row.state is State.READY and row.at <= self.seconds)
        if claim:
            self._taken(claim, 30)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        with self.database.write() as connection:
            kept = self.work.heartbeat(connection, claim, 30)
        assert kept == self._holds(claim)
        if kept:
            self.rows[claim.id].until = self.seconds + 30

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), state=st.sampled_from([State.DONE, State.DEAD, State.SUPERSEDED]))
    def finish(self, data: st.DataObject, state: State) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        if not self._holds(claim):
            with pytest.raises(StaleClaim), self.database.write() as connection:
                self.work.finish(connection, claim, state)
            return
        with self.database.write() as connection:
            got = self.work.finish(connection, claim, state)
        row = self.rows[claim.id]
        assert got is (state if row.revision == claim.revision else State.READY)
        row.state = got

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), delay=st.sampled_from([None, 0, 20]), counted=st.booleans())
    def release(self, data: st.DataObject, delay: float | None, counted: bool) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        if not self._holds(claim):
            with pytest.raises(StaleClaim), self.database.write() as connection:
                self.work.release(connection, claim, "no", delay=delay, counted=counted)
            return
        with self.database.write() as connection:
            got = self.work.release(connection, claim, "no", delay=delay, counted=counted)
        row = self.rows[claim.id]
        if row.revision != claim.revision:
            row.state = State.READY
        elif counted and row.attempts >= row.max_attempts:
            row.state = State.DEAD
        else:
            row.state = State.READY
            row.at = self.seconds + (backoff(row.attempts) if delay is None else delay)
            row.attempts -= not counted
        assert got is row.state

    @rule(subject=SUBJECTS)
    def supersede(self, subject: str) -> None:
        with self.database.write() as connection:
            closed = self.work.supersede(connection, "review", subject, "a new head")
        known = self._open(subject)
        assert closed == (known is not None)
        if known is not None:
            self.rows[known].state = State.SUPERSEDED

    @rule()
    def reap(self) -> None:
        with self.database.write() as connection:
            reaped = {one.id: one.state for one in self.work.reap(connection)}
        expected = {}
        for key, row in self.rows.items():
            if row.state is State.LEASED and row.until < self.seconds:
                row.state = State.DEAD if row.attempts >= row.max_attempts else State.READY
                row.at = self.seconds if row.state is State.READY else row.at
                expected[key] = row.state
        assert reaped == expected

    @rule(seconds=st.sampled_from([1, 4, 29, 31, 70]))
    def time_passes(self, seconds: float) -> None:
        self.seconds += seconds

    @invariant()
    def the_table_says_what_the_model_says(self) -> None:
        table = schema.work.c
        with self.database.read() as connection:
            stored = {row.id: row for row in connection.execute(sa.select(schema.work))}
        assert stored.keys() == self.rows.keys()
        for key, row in self.rows.items():
            found = stored[key]._mapping
            names = ("subject", "state", "attempts", "max_attempts", "fence", "revision")
            assert {name: found[table[name]] for name in names} == {
                name: getattr(row, name) for name in names
            }
            assert found[table.payload] == {"n": row.payload}
            assert _seconds(found[table.available_at]) == row.at
            assert (found[table.finished_at] is None) == (row.state in OPEN)
            if row.state is State.LEASED:
                assert _seconds(found[table.lease_until]) == row.until


def _seconds(moment: Any) -> float:
    return float((moment - START).total_seconds())


def _play(database: Database, examples: int, steps: int) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        lambda: QueueMachine(database),
        settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None),
    )


def test_the_queue_does_what_its_model_does(database: Database) -> None:
    _play(database, 25, 25)


@pytest.mark.exhaustive
def test_the_queue_does_what_its_model_does_for_long(database: Database) -> None:
    _play(database, 150, 50)
