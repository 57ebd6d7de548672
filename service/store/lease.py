"""Rows that workers claim: compare-and-set, lease, heartbeat, fencing token, retry and reaping.

A row is ready, then leased to one owner, then finished. Every claim raises the row's fence, and everything a
worker writes is checked against the fence of its claim in the same transaction: a worker that was thought dead
can come back and has no effect. A new payload that arrives while the row is leased raises its revision; the row
is then ready again instead of finished.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar, Generic, TypeVar

import sqlalchemy as sa

from service.store.errors import StaleClaim
from service.store.types import Clock, utc_now

MAX_ATTEMPTS = 5


class State(StrEnum):
    """The life of a row. READY and LEASED are open; DONE, DEAD (given up) and SUPERSEDED are finished."""

    READY = "ready"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    SUPERSEDED = "superseded"


OPEN = (State.READY, State.LEASED)

# Written out, not bound: a partial index serves only a condition that the planner can read.
_IS_READY = sa.text("state = 'ready'")
_IS_LEASED = sa.text("state = 'leased'")


@dataclass(frozen=True, slots=True)
class Claim:
    """A row as one owner took it. `attempts` counts this one."""

    table: sa.Table = field(repr=False)
    id: int
    kind: str
    payload: dict[str, Any]
    owner: str
    fence: int
    revision: int
    attempts: int
    max_attempts: int
    lease_until: datetime

    def guard(self, connection: sa.Connection) -> None:
        """Raises `StaleClaim` where the row is no longer this claim's; else it stays so until `connection` commits."""
        columns = self.table.c
        held = (
            sa.select(columns.id)
            .where(columns.id == self.id, columns.fence == self.fence, columns.state == State.LEASED)
            .with_for_update()
        )
        if connection.execute(held).first() is None:
            raise StaleClaim(
                f"{self.table.name} row {self.id}: the claim of {self.owner} (fence {self.fence}) is lost",
                "stop this attempt; another one has the row or it was superseded",
            )


@dataclass(frozen=True, slots=True)
class Reaped:
    """A row whose lease ran out: READY to be claimed again, or DEAD past its attempts."""

    id: int
    kind: str
    state: State


ClaimT = TypeVar("ClaimT", bound=Claim)


def backoff(attempts: int) -> float:
    """Seconds before the next attempt: 10, 20, 40, ... up to 15 minutes."""
    return float(min(10 * 2 ** (attempts - 1), 900)) if attempts < 20 else 900.0


class Leases(ABC, Generic[ClaimT]):
    """The claims on one table."""

    table: ClassVar[sa.Table]

    def __init__(self, clock: Clock = utc_now) -> None:
        self._clock = clock

    def claim(
        self, connection: sa.Connection, kinds: Collection[str], owner: str, lease_seconds: float
    ) -> ClaimT | None:
        """The row of these kinds that has been due for longest, or None."""
        columns = self.table.c
        due = self._due(kinds).limit(1).with_for_update(skip_locked=True)
        row_id = connection.execute(due).scalar()
        return None if row_id is None else self._take(connection, columns.id == row_id, owner, lease_seconds)

    def claim_row(
        self, connection: sa.Connection, row_id: int, owner: str, lease_seconds: float
    ) -> ClaimT | None:
        """The row of a wake-up, or None where it is leased, finished, not due yet, or gone."""
        columns = self.table.c
        due = sa.and_(columns.id == row_id, columns.available_at <= self._clock())
        return self._take(connection, due, owner, lease_seconds)

    def heartbeat(self, connection: sa.Connection, claim: ClaimT, lease_seconds: float) -> bool:
        """Extends the lease; False where the claim is lost, and the worker must stop."""
        until = self._clock() + timedelta(seconds=lease_seconds)
        return self._update(connection, claim, lease_until=until)

    def release(
        self,
        connection: sa.Connection,
        claim: ClaimT,
        error: str,
        *,
        delay: float | None = None,
        counted: bool = True,
    ) -> State:
        """Gives the row back for another attempt after `delay` seconds (None: `backoff`).

        DEAD where this was the last attempt. An attempt that is not `counted` never is: the forge said when to come
        back. Raises `StaleClaim`.
        """
        claim.guard(connection)
        if self._has_newer(connection, claim):
            self._update(connection, claim, state=State.READY, error=error)
            return State.READY
        now = self._clock()
        if counted and claim.attempts >= claim.max_attempts:
            self._update(connection, claim, state=State.DEAD, error=error, finished_at=now)
            return State.DEAD
        wait = backoff(claim.attempts) if delay is None else delay
        self._update(
            connection,
            claim,
            state=State.READY,
            error=error,
            available_at=now + timedelta(seconds=wait),
            attempts=claim.attempts if counted else claim.attempts - 1,
        )
        return State.READY

    def give_up(self, connection: sa.Connection, claim: ClaimT, error: str) -> State:
        """Ends the claim for good because no further attempt can help; READY where a newer payload came meanwhile.

        Raises `StaleClaim`.
        """
        return self._finish(connection, claim, State.DEAD, error)

    def reap(self, connection: sa.Connection, limit: int = 500) -> list[Reaped]:
        """Takes back rows whose lease ran out; past its attempts a row is dead and says why."""
        columns = self.table.c
        now = self._clock()
        # A row that another transaction has locked is being worked on: its lease may be extended this very moment.
        lost = (
            sa.select(columns.id, columns.kind, columns.owner, columns.attempts, columns.max_attempts)
            .where(_IS_LEASED, columns.lease_until < now)
            .order_by(columns.lease_until)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        reaped = []
        for row in connection.execute(lost).all():
            why = f"the lease of {row.owner} ran out"
            values: dict[str, Any] = {"state": State.READY, "error": why, "available_at": now}
            if row.attempts >= row.max_attempts:
                why = f"{why} in the last of {row.max_attempts} attempts"
                values = {"state": State.DEAD, "error": why, "finished_at": now}
            connection.execute(sa.update(self.table).where(columns.id == row.id).values(**values))
            reaped.append(Reaped(row.id, row.kind, values["state"]))
        return reaped

    def due(self, connection: sa.Connection, kinds: Collection[str], limit: int) -> list[int]:
        """Ids of rows that could be claimed now, for wake-ups; the longest due first."""
        return list(connection.execute(self._due(kinds).limit(limit)).scalars())

    def counts(self, connection: sa.Connection) -> dict[tuple[str, State], int]:
        """How many open and dead rows there are, by kind and state."""
        columns = self.table.c
        counted = (
            sa.select(columns.kind, columns.state, sa.func.count())
            .where(columns.state.in_((*OPEN, State.DEAD)))
            .group_by(columns.kind, columns.state)
        )
        return {(kind, State(state)): count for kind, state, count in connection.execute(counted)}

    @abstractmethod
    def _claimed(self, row: sa.Row[Any]) -> ClaimT: ...

    def _due(self, kinds: Collection[str]) -> sa.Select[int]:
        columns = self.table.c
        return (
            sa.select(columns.id)
            .where(_IS_READY, columns.kind.in_(kinds), columns.available_at <= self._clock())
            .order_by(columns.available_at, columns.id)
        )

    def _take(
        self, connection: sa.Connection, where: sa.ColumnElement[bool], owner: str, lease_seconds: float
    ) -> ClaimT | None:
        columns = self.table.c
        taken = (
            sa.update(self.table)
            .where(where, columns.state == State.READY)
            .values(
                state=State.LEASED,
                owner=owner,
                lease_until=self._clock() + timedelta(seconds=lease_seconds),
                fence=columns.fence + 1,
                attempts=columns.attempts + 1,
            )
            .returning(*columns)
        )
        row = connection.execute(taken).first()
        return None if row is None else self._claimed(row)

    def _common(self, row: sa.Row[Any]) -> dict[str, Any]:
        """The fields that every claim has."""
        names = (
            "id", "kind", "payload", "owner", "fence", "revision", "attempts", "max_attempts", "lease_until",
        )  # fmt: skip
        return {"table": self.table, **{name: row._mapping[name] for name in names}}

    def _finish(
        self, connection: sa.Connection, claim: ClaimT, state: State, error: str, **values: Any
    ) -> State:
        """Ends the claim: `state`, or READY where a newer payload came meanwhile. Raises `StaleClaim`."""
        claim.guard(connection)
        if self._has_newer(connection, claim):
            state = State.READY
        finished = None if state is State.READY else self._clock()
        self._update(connection, claim, state=state, error=error, finished_at=finished, **values)
        return state

    def _has_newer(self, connection: sa.Connection, claim: ClaimT) -> bool:
        """Whether a newer payload came since the claim; asked under the guard's lock."""
        columns = self.table.c
        now = connection.execute(sa.select(columns.revision).where(columns.id == claim.id)).scalar()
        return now != claim.revision

    def _update(self, connection: sa.Connection, claim: ClaimT, **values: Any) -> bool:
        columns = self.table.c
        held = (columns.id == claim.id, columns.fence == claim.fence, columns.state == State.LEASED)
        return connection.execute(sa.update(self.table).where(*held).values(**values)).rowcount == 1
