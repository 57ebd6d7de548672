"""Webhook deliveries as they came: stored before they are answered, processed after."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache

import sqlalchemy as sa

from service.store.schema import deliveries
from service.store.types import clean


class DeliveryState(StrEnum):
    RECEIVED = "received"
    DONE = "done"
    IGNORED = "ignored"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class NewDelivery:
    """A verified delivery. `guid` is the forge's own id of it, `body` the bytes that were signed.

    The intake keeps `guid` short: PostgreSQL indexes at most some 2,700 bytes.
    """

    guid: str
    event: str
    headers: Mapping[str, str]
    body: bytes
    received_at: datetime
    action: str = ""
    repo: str = ""
    state: DeliveryState = DeliveryState.RECEIVED


@dataclass(frozen=True, slots=True)
class Delivery:
    """A stored delivery; `body` is None once it was pruned."""

    id: int
    guid: str
    event: str
    action: str
    repo: str
    headers: dict[str, str]
    body: bytes | None
    received_at: datetime
    state: DeliveryState
    error: str
    processed_at: datetime | None


def add_deliveries(connection: sa.Connection, rows: Sequence[NewDelivery]) -> list[int | None]:
    """Stores `rows` in one statement; the new ids in the same order, None for a GUID that is already there."""
    if not rows:
        return []
    converters = _converters(connection.dialect)
    values = [
        value if convert is None else convert(value)
        for row in rows
        for convert, value in zip(converters, _values(row), strict=True)
    ]
    inserted = connection.exec_driver_sql(_insertion(connection.dialect.name, len(rows)), tuple(values))
    ids: dict[str, int] = {row.guid: row.id for row in inserted}
    # Of two with one GUID in the same batch the first is stored.
    return [ids.pop(clean(row.guid), None) for row in rows]


_COLUMNS = ("guid", "event", "action", "repo", "headers", "received_at", "state", "error", "body")


def _values(row: NewDelivery) -> tuple[object, ...]:
    return (
        row.guid, row.event, row.action, row.repo, dict(row.headers), row.received_at, row.state, "", row.body,
    )  # fmt: skip


@cache
def _converters(dialect: sa.Dialect) -> tuple[Callable[[object], object] | None, ...]:
    """What makes a value of each column one that the driver takes."""
    types = [deliveries.c[name].type for name in _COLUMNS]
    return tuple(one.dialect_impl(dialect).bind_processor(dialect) for one in types)


@cache
def _insertion(dialect: str, rows: int) -> str:
    """Written out: SQLAlchemy takes longer to put such a statement together than SQLite to carry it out."""
    mark = "?" if dialect == "sqlite" else "%s"
    row = f"({', '.join([mark] * len(_COLUMNS))})"
    return (
        f"INSERT INTO deliveries ({', '.join(_COLUMNS)}) VALUES {', '.join([row] * rows)}"
        " ON CONFLICT (guid) DO NOTHING RETURNING guid, id"
    )


def received(connection: sa.Connection, limit: int) -> list[int]:
    """Ids of deliveries that nobody processed yet, oldest first."""
    waiting = sa.select(deliveries.c.id).where(_RECEIVED).order_by(deliveries.c.id).limit(limit)
    return list(connection.execute(waiting).scalars())


def take(connection: sa.Connection, delivery_id: int) -> Delivery | None:
    """The delivery to process in this write transaction, or None where it was or is being processed.

    Processing only writes to the database, so it needs no lease: a worker that dies rolls back, and the delivery
    is still received.
    """
    waiting = (
        sa.select(deliveries)
        .where(deliveries.c.id == delivery_id, _RECEIVED)
        .with_for_update(skip_locked=True)
    )
    row = connection.execute(waiting).first()
    return None if row is None else _delivery(row)


def settle(
    connection: sa.Connection,
    delivery_id: int,
    state: DeliveryState,
    now: datetime,
    *,
    action: str = "",
    repo: str = "",
    error: str = "",
) -> None:
    """Says what became of a delivery, and what it was about as its body says."""
    settled = (
        sa.update(deliveries)
        .where(deliveries.c.id == delivery_id)
        .values(state=state, processed_at=now, action=action, repo=repo, error=error)
    )
    connection.execute(settled)


def get(connection: sa.Connection, delivery_id: int) -> Delivery | None:
    row = connection.execute(sa.select(deliveries).where(deliveries.c.id == delivery_id)).first()
    return None if row is None else _delivery(row)


def find(connection: sa.Connection, guid: str) -> Delivery | None:
    row = connection.execute(sa.select(deliveries).where(deliveries.c.guid == guid)).first()
    return None if row is None else _delivery(row)


def replay(connection: sa.Connection, delivery_id: int) -> bool:
    """Makes a processed delivery received again; False where there is none or its body was pruned."""
    again = (
        sa.update(deliveries)
        .where(deliveries.c.id == delivery_id, deliveries.c.body.is_not(None))
        .values(state=DeliveryState.RECEIVED, error="", processed_at=None)
    )
    return connection.execute(again).rowcount == 1


# Written out, not bound: a partial index serves only a condition that the planner can read.
_RECEIVED = sa.text("state = 'received'")


def _delivery(row: sa.Row[tuple[object, ...]]) -> Delivery:
    fields = dict(row._mapping)
    return Delivery(**{**fields, "state": DeliveryState(fields["state"])})
