"""GPUs that are out of use, by UUID: put there by a runner's evidence or by people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from ci_dispatch.model import Inventory, Notice
from service.store.ci_tables import gpus, runners
from service.store.dialect import insert
from service.store.errors import StoreError

RUNNER, PERSON = "runner", "person"


@dataclass(frozen=True, slots=True)
class StoredGpu:
    """A GPU, the runner that showed it last, and why it is out of use."""

    uuid: str
    runner: str
    state: str
    quarantined_by: str
    reason: str
    changed_at: datetime


def show(connection: sa.Connection) -> list[StoredGpu]:
    """All GPUs ever seen, by runner and UUID."""
    c = gpus.c
    found = (
        sa.select(c.uuid, runners.c.name, c.state, c.quarantined_by, c.reason, c.changed_at)
        .join(runners, runners.c.id == c.runner_id)
        .order_by(runners.c.name, c.uuid)
    )
    return [StoredGpu(*row) for row in connection.execute(found)]


def see(connection: sa.Connection, runner_id: int, inventory: Inventory, now: datetime) -> None:
    """Remembers which runner shows which GPUs; whether they are in use stays as it is."""
    for gpu in sorted(inventory.gpus, key=lambda gpu: gpu.uuid):
        fresh = insert(connection, gpus, {"uuid": gpu.uuid, "runner_id": runner_id, "changed_at": now})
        seen = fresh.on_conflict_do_update(index_elements=[gpus.c.uuid], set_={"runner_id": runner_id})
        connection.execute(seen)


def note(connection: sa.Connection, runner_id: int, notices: Iterable[Notice], now: datetime) -> set[str]:
    """Puts the runner's GPUs that its evidence speaks against out of use; returns their UUIDs."""
    bad = {notice.gpu: notice for notice in notices if notice.gpu and notice.is_hardware}
    for uuid in sorted(bad):
        notice = bad[uuid]
        put = sa.update(gpus).where(
            gpus.c.uuid == uuid, gpus.c.runner_id == runner_id, gpus.c.state == "healthy"
        )
        reason = f"{notice.kind}: {notice.detail}"[:500]
        connection.execute(
            put.values(state="quarantined", quarantined_by=RUNNER, reason=reason, changed_at=now)
        )
    return set(bad)


def lift(connection: sa.Connection, runner_id: int, uuids: Iterable[str], now: datetime) -> None:
    """Takes back what the runner's own evidence did; what people did stays."""
    again = sa.update(gpus).where(
        gpus.c.uuid.in_(sorted(uuids)), gpus.c.runner_id == runner_id, gpus.c.quarantined_by == RUNNER
    )
    connection.execute(again.values(state="healthy", quarantined_by="", reason="", changed_at=now))


def quarantined(connection: sa.Connection, runner_id: int | None = None) -> set[str]:
    """UUIDs out of use: of one runner, or of all."""
    found = sa.select(gpus.c.uuid).where(sa.text("state = 'quarantined'"))
    if runner_id is not None:
        found = found.where(gpus.c.runner_id == runner_id)
    return set(connection.execute(found).scalars())


def quarantine(connection: sa.Connection, uuid: str, reason: str, now: datetime) -> None:
    """A person puts a GPU out of use, until a person releases it. Raises `StoreError` for an unknown one."""
    _change(connection, uuid, state="quarantined", quarantined_by=PERSON, reason=reason[:500], changed_at=now)


def release(connection: sa.Connection, uuid: str, now: datetime) -> None:
    """A person puts a GPU back to use. Raises `StoreError` for an unknown one."""
    _change(connection, uuid, state="healthy", quarantined_by="", reason="", changed_at=now)


def _change(connection: sa.Connection, uuid: str, **values: object) -> None:
    changed = connection.execute(sa.update(gpus).where(gpus.c.uuid == uuid).values(**values))
    if changed.rowcount == 0:
        raise StoreError(f"no runner has shown a GPU {uuid}", "see `whitesmoke runners list` for those known")
