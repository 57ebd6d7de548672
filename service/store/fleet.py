"""What the lease decision sees: jobs that wait, hosts that are alive, leases that are open or ended lately.

The decision itself is `ci_dispatch.lease.assign`; it runs between two transactions, never in one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from ci_dispatch.lease import MEMORY_SECONDS, Host, Running, Used, Waiting, assign
from ci_dispatch.model import Inventory
from service.store import gpus
from service.store.ci_tables import jobs, lease_gpus, leases, runners
from service.store.database import Database
from service.store.job_leases import Assigned, write_assignments
from service.store.runners import COLUMNS, Runner
from service.store.types import Clock

# A claim may say that it listens for so long at most; later was said under a clock that has been set back.
LISTEN_SECONDS = 45.0
# The most jobs of one decision: the transaction that writes them holds SQLite's write lock.
BATCH = 64
_READ = 500


@dataclass(frozen=True, slots=True)
class Fleet:
    """The arguments of one decision."""

    waiting: list[Waiting]
    hosts: list[Host]
    running: list[Running]
    recent: list[Used]


@dataclass(frozen=True, slots=True)
class Decision:
    """What a decision gave out, and of how many waiting jobs."""

    assigned: list[Assigned]
    waiting: int


Known = dict[tuple[int, int], Waiting]
"""Waiting jobs by id and fence."""
Chosen = Callable[[sa.Connection], list[Assigned]]


def assign_due(
    database: Database,
    clock: Clock,
    write: Callable[[Chosen], list[Assigned]] | None = None,
    known: Known | None = None,
) -> Decision:
    """Decides who starts now and writes the leases; another process may do the same at the same time.

    `write` calls what it is given in a transaction that it commits; by default one of its own. `known` as in `waiting`.
    """
    with database.read() as connection:
        seen = read(connection, clock(), known)
    if not seen.waiting or not any(host.free or host.free_slots for host in seen.hosts):
        return Decision([], len(seen.waiting))
    chosen = assign(seen.waiting, seen.hosts, seen.running, clock().timestamp(), seen.recent)
    if not chosen:
        return Decision([], len(seen.waiting))

    def chosen_now(connection: sa.Connection) -> list[Assigned]:
        return write_assignments(connection, chosen[:BATCH], clock())

    if write is not None:
        return Decision(write(chosen_now), len(seen.waiting))
    with database.write() as connection:
        return Decision(chosen_now(connection), len(seen.waiting))


def read(connection: sa.Connection, now: datetime, known: Known | None = None) -> Fleet:
    """The fleet as it is now; `known` as in `waiting`."""
    held = open_leases(connection)
    return Fleet(waiting(connection, known), hosts(connection, held, now), held, recent(connection, now))


def waiting(connection: sa.Connection, known: Known | None = None) -> list[Waiting]:
    """Queued jobs that nobody wants stopped. With `known`, rows that were read before are not read again.

    A queued job changes only by being leased and put back, which raises its fence.
    """
    c = jobs.c
    queued = (sa.text("state = 'queued'"), c.cancel == "")
    if known is None:
        known = {}
    ids = [(row.id, row.fence) for row in connection.execute(sa.select(c.id, c.fence).where(*queued))]
    columns = (
        c.id, c.fence, c.arch, c.gpus, c.priority, c.queued_at, c.pull, c.author, c.trusted, c.limit_seconds, c.avoid
    )  # fmt: skip
    fresh = [job_id for job_id, fence in ids if (job_id, fence) not in known]
    for first in range(0, len(fresh), _READ):
        some = sa.select(*columns).where(c.id.in_(fresh[first : first + _READ]))
        known.update({(row.id, row.fence): _waiting(row) for row in connection.execute(some)})
    found = {key: known[key] for key in ids if key in known}
    known.clear()
    known.update(found)
    return list(found.values())


def _waiting(row: Any) -> Waiting:
    return Waiting(
        row.id,
        row.arch,
        row.gpus,
        row.priority,
        row.queued_at.timestamp(),
        row.pull,
        row.author,
        row.trusted,
        row.limit_seconds,
        frozenset(row.avoid.get("hosts", ())),
        frozenset(row.avoid.get("gpus", ())),
    )


def open_leases(connection: sa.Connection) -> list[Running]:
    """Open leases, fetched or not: all of them hold what they were given."""
    held: dict[int, list[str]] = defaultdict(list)
    # Sorted here: asked for in order, SQLite would read all leases that ever were.
    found = sa.select(lease_gpus.c.id, lease_gpus.c.lease_id, lease_gpus.c.uuid).where(
        sa.text("state = 'open'")
    )
    for row in sorted(connection.execute(found).all(), key=lambda row: row.id):
        held[row.lease_id].append(row.uuid)
    rows = connection.execute(
        sa.select(
            leases.c.id,
            leases.c.job_id,
            leases.c.runner_id,
            jobs.c.pull,
            jobs.c.author,
            leases.c.created_at,
            jobs.c.limit_seconds,
        )
        .join(jobs, jobs.c.id == leases.c.job_id)
        .where(sa.text("ci_leases.state = 'open'"))
    )
    return [
        Running(job_id, runner_id, tuple(held[lease_id]), pull, user, since.timestamp(), limit)
        for lease_id, job_id, runner_id, pull, user, since, limit in rows
    ]


def hosts(connection: sa.Connection, held: Iterable[Running], now: datetime) -> list[Host]:
    """Runners that are alive and take jobs. One that listens for none at the moment has nothing free."""
    leased: set[str] = set()
    used: Counter[int] = Counter()
    for lease in held:
        leased.update(lease.gpus)
        used[lease.runner_id] += not lease.gpus
    out = gpus.quarantined(connection)
    found = sa.select(*COLUMNS).where(runners.c.state == "active")
    return [
        _host(runner, leased, out, used[runner.id], now)
        for runner in (Runner(*row) for row in connection.execute(found))
        if runner.takes_jobs and runner.is_alive(now)
    ]


def _host(runner: Runner, leased: set[str], out: set[str], used: int, now: datetime) -> Host:
    inventory = _inventory(runner.inventory)
    sound = [
        gpu.uuid
        for gpu in sorted(inventory.gpus, key=lambda gpu: gpu.index)
        if gpu.healthy and gpu.uuid not in out
    ]
    until = runner.listens_until
    listens = until is not None and now < until <= now + timedelta(seconds=LISTEN_SECONDS)
    free = tuple(uuid for uuid in sound if uuid not in leased) if listens else ()
    slots = max(0, runner.slots - used) if listens else 0
    return Host(runner.id, inventory.arch, free, len(sound), slots, inventory.sandbox)


@lru_cache(maxsize=1024)
def _inventory(text: str) -> Inventory:
    return Inventory.model_validate_json(text)


def recent(connection: sa.Connection, now: datetime) -> list[Used]:
    """Leases that ended lately, having held something."""
    c = leases.c
    found = (
        sa.select(jobs.c.arch, c.gpus, jobs.c.pull, jobs.c.author, c.granted_at, c.closed_at)
        .join(jobs, jobs.c.id == c.job_id)
        .where(
            c.closed_at.is_not(None),
            c.closed_at >= now - timedelta(seconds=MEMORY_SECONDS),
            c.closed_at <= now,
            c.granted_at.is_not(None),
        )
    )
    return [
        Used(arch, width, pull, user, since.timestamp(), ended.timestamp())
        for arch, width, pull, user, since, ended in connection.execute(found)
    ]


def mark(connection: sa.Connection) -> tuple[int, ...]:
    """Changes whenever a job was queued or a lease opened or closed: cheap to ask several times a second."""
    queued = connection.execute(
        sa.select(sa.func.count(), sa.func.coalesce(sa.func.max(jobs.c.id), 0)).where(
            sa.text("state = 'queued'")
        )
    ).one()
    held = connection.execute(
        sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(leases.c.id), 0)).where(
            sa.text("state = 'open'")
        )
    ).one()
    return int(queued[0]), int(queued[1]), int(held[0]), int(held[1])
