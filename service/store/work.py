"""The queue of work: at most one open row for each thing to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from service.store import schema
from service.store.dialect import insert
from service.store.lease import MAX_ATTEMPTS, OPEN, Claim, Leases, State

# Pushes that keep coming put a review off, but not for ever.
MAX_WAIT_S = 300.0


@dataclass(frozen=True, slots=True)
class WorkClaim(Claim):
    """One piece of work, such as ("review", "acme/app#7")."""

    subject: str


class WorkQueue(Leases[WorkClaim]):
    table = schema.work

    def put(
        self,
        connection: sa.Connection,
        kind: str,
        subject: str,
        payload: dict[str, Any],
        *,
        delay: float = 0.0,
        max_wait: float = MAX_WAIT_S,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> int:
        """Asks for work and returns the id of its row.

        Joins the open row of this kind and subject, where there is one: the later payload wins, with all its
        attempts before it. A waiting row then waits `delay` seconds from now (a debounce), yet never past
        `max_wait` from when it was first asked for. A leased row is run again once its owner is done; to abort
        the owner instead, `supersede` first.
        """
        now = self._clock()
        fresh = insert(
            connection,
            self.table,
            {
                "kind": kind,
                "subject": subject,
                "payload": payload,
                "available_at": now + timedelta(seconds=delay),
                "available_by": now + timedelta(seconds=max_wait),
                "max_attempts": max_attempts,
                "created_at": now,
            },
        )
        columns, new = self.table.c, fresh.excluded
        is_leased = columns.state == State.LEASED
        by = sa.case((is_leased, new.available_by), else_=columns.available_by)
        joined = fresh.on_conflict_do_update(
            index_elements=[columns.kind, columns.subject],
            index_where=sa.text("state IN ('ready', 'leased')"),
            set_={
                "payload": new.payload,
                "revision": columns.revision + 1,
                "available_at": sa.case((new.available_at < by, new.available_at), else_=by),
                "available_by": by,
                "attempts": 0,
                "max_attempts": new.max_attempts,
            },
        )
        row_id: int = connection.execute(joined.returning(columns.id)).scalar_one()
        return row_id

    def open_payload(
        self, connection: sa.Connection, kind: str, subject: str, states: Sequence[State] = OPEN
    ) -> Any | None:
        """What is asked for of work in one of these states, by default waiting or under way; None where nothing is.

        Who only makes sure that it will be done must not ask again, which starts it anew.
        """
        columns = self.table.c
        asked = sa.select(columns.payload).where(
            columns.kind == kind, columns.subject == subject, columns.state.in_(states)
        )
        return connection.execute(asked).scalar_one_or_none()

    def finish(
        self, connection: sa.Connection, claim: WorkClaim, state: State = State.DONE, error: str = ""
    ) -> State:
        """Ends the claim: `state`, or READY where it was asked for again meanwhile. Raises `StaleClaim`."""
        return self._finish(connection, claim, state, error)

    def abort(self, connection: sa.Connection, kind: str, subject: str, why: str) -> bool:
        """As `supersede`, but a row that nobody has begun stays, and with it how long it has waited."""
        columns = self.table.c
        held = sa.select(columns.id).where(
            columns.kind == kind, columns.subject == subject, columns.state == State.LEASED
        )
        return connection.execute(held).first() is not None and self.supersede(connection, kind, subject, why)

    def supersede(self, connection: sa.Connection, kind: str, subject: str, why: str) -> bool:
        """Closes the open row; an owner's claim on it is lost. False where nothing was open."""
        columns = self.table.c
        closed = (
            sa.update(self.table)
            .where(columns.kind == kind, columns.subject == subject, columns.state.in_(OPEN))
            .values(state=State.SUPERSEDED, error=why, finished_at=self._clock())
        )
        return connection.execute(closed).rowcount > 0

    def _claimed(self, row: sa.Row[Any]) -> WorkClaim:
        return WorkClaim(**self._common(row), subject=row.subject)
