"""What is to stand outside: each key is one comment, review or check that is made once and edited from then on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from service.store import schema
from service.store.dialect import insert
from service.store.lease import MAX_ATTEMPTS, OPEN, Claim, Leases, State


@dataclass(frozen=True, slots=True)
class OutboxClaim(Claim):
    """One effect to bring about. `external_id` names what an earlier attempt or payload made; "" where unknown."""

    key: str
    pull_id: int | None
    external_id: str


class Outbox(Leases[OutboxClaim]):
    table = schema.outbox

    def put(
        self,
        connection: sa.Connection,
        key: str,
        kind: str,
        payload: dict[str, Any],
        *,
        pull_id: int | None = None,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> int | None:
        """Asks that `payload` stand under `key`; returns the row's id, or None where it stands or is on its way.

        A new payload for a sent key is sent again, with the external id kept.
        """
        now = self._clock()
        text = json.dumps(payload, sort_keys=True, ensure_ascii=False)
        fresh = insert(
            connection,
            self.table,
            {
                "key": key,
                "kind": kind,
                "pull_id": pull_id,
                "payload": payload,
                "payload_digest": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
                "available_at": now,
                "max_attempts": max_attempts,
                "created_at": now,
            },
        )
        columns, new = self.table.c, fresh.excluded
        is_leased = columns.state == State.LEASED
        gave_up = columns.state.in_((State.DEAD, State.SUPERSEDED))
        asked = fresh.on_conflict_do_update(
            index_elements=[columns.key],
            where=sa.or_(columns.payload_digest != new.payload_digest, gave_up),
            set_={
                "payload": new.payload,
                "payload_digest": new.payload_digest,
                "revision": columns.revision + 1,
                "state": sa.case((is_leased, State.LEASED), else_=State.READY),
                "available_at": new.available_at,
                "attempts": 0,
                "max_attempts": new.max_attempts,
                "error": "",
                "finished_at": None,
            },
        )
        row_id: int | None = connection.execute(asked.returning(columns.id)).scalar()
        return row_id

    def finish(
        self, connection: sa.Connection, claim: OutboxClaim, external_id: str, *, state: State = State.DONE
    ) -> State:
        """Ends the claim; READY where a newer payload came meanwhile. Raises `StaleClaim`.

        `external_id` names what stands outside now; with "" the earlier id is kept.
        """
        return self._finish(connection, claim, state, "", external_id=external_id or claim.external_id)

    def supersede(self, connection: sa.Connection, key: str, why: str) -> bool:
        """Nobody needs this effect any more; one that already stands is left. False where nothing was open."""
        columns = self.table.c
        closed = (
            sa.update(self.table)
            .where(columns.key == key, columns.state.in_(OPEN))
            .values(state=State.SUPERSEDED, error=why, finished_at=self._clock())
        )
        return connection.execute(closed).rowcount > 0

    def renew(self, connection: sa.Connection, keys: str) -> int:
        """Has what stands under the keys that start so be made to stand once more: somebody else changed it outside.

        Returns how many that were; what is on its way already is left alone.
        """
        columns = self.table.c
        again = (
            sa.update(self.table)
            .where(columns.key.startswith(keys, autoescape=True), columns.state == State.DONE)
            .values(state=State.READY, available_at=self._clock(), attempts=0, finished_at=None)
        )
        return connection.execute(again).rowcount

    def external_id(self, connection: sa.Connection, key: str) -> str:
        """What stands under `key` as far as we know; "" where nothing does."""
        columns = self.table.c
        found = sa.select(columns.external_id).where(columns.key == key)
        return connection.execute(found).scalar() or ""

    def _claimed(self, row: sa.Row[Any]) -> OutboxClaim:
        return OutboxClaim(**self._common(row), key=row.key, pull_id=row.pull_id, external_id=row.external_id)
