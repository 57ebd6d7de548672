"""Who did what to which object, and which effects were already had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from service.store.dialect import insert
from service.store.schema import audit, effects


@dataclass(frozen=True, slots=True)
class Entry:
    at: datetime
    actor: str
    action: str
    object: str
    detail: dict[str, Any]


def record(
    connection: sa.Connection, now: datetime, actor: str, action: str, object: str, detail: Mapping[str, Any]
) -> None:
    """Remembers a deed, in the transaction that does it. `object` is such as "acme/app#7 F3"."""
    entry = {"at": now, "actor": actor, "action": action, "object": object, "detail": dict(detail)}
    connection.execute(sa.insert(audit).values(entry))


def entries(connection: sa.Connection, object: str, limit: int) -> list[Entry]:
    """The newest deeds on an object, newest first."""
    columns = (audit.c.at, audit.c.actor, audit.c.action, audit.c.object, audit.c.detail)
    found = sa.select(*columns).where(audit.c.object == object).order_by(audit.c.id.desc()).limit(limit)
    return [Entry(*row) for row in connection.execute(found)]


def first_time(connection: sa.Connection, key: str, now: datetime) -> bool:
    """True once for every key, such as "command:acme/app#7:comment:311", whatever delivery brings it.

    Part of the transaction: where that fails, the next time is the first.
    """
    fresh = insert(connection, effects, {"key": key, "created_at": now})
    added = fresh.on_conflict_do_nothing(index_elements=[effects.c.key]).returning(effects.c.id)
    return connection.execute(added).first() is not None
