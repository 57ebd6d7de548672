"""Leases of jobs: given out by compare-and-set, fetched by their runner, kept by beats, closed once.

A lease's token is good for that lease alone, and only while it is open. Each lease raises its job's fence; what a
lost one says has no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from ci_dispatch.lease import Assignment
from ci_dispatch.model import JobReport
from service.store import gpus
from service.store.ci_rows import (
    BadToken,
    JobState,
    LeaseState,
    announce_job,
    announce_run,
    close_lease,
    digest,
    end_job,
    lock_job,
    lock_lease,
    new_secret,
    quiet_end,
    requeue,
    same,
)
from service.store.ci_tables import jobs, lease_gpus, leases, runners, runs
from service.store.errors import StoreError
from service.store.schema import pulls

LEASE_SECONDS = 30.0
"""Without a beat of the lease it is lost after so long."""
FETCH_SECONDS = 15.0
"""An assigned job that its runner does not fetch waits again after so long."""
# Any number that no one else takes a lock on.
_ASSIGNING = 7_741_320_115


class NoSuchLease(StoreError):
    """There is no lease of this id."""


class LeaseLost(StoreError):
    """The lease is no longer the runner's: it ran out, was handed back, or another one has the job."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """A lease that waits for its runner to fetch it."""

    lease_id: int
    job_id: int
    runner_id: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Granted:
    """A lease in its runner's hands. `job` is JSON of `ci_dispatch.model.Job`."""

    lease_id: int
    job_id: int
    token: str
    job: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as its token found it."""

    id: int
    job_id: int
    runner_id: int
    state: LeaseState
    begun: bool
    step: str

    def require_open(self) -> Lease:
        """Raises `LeaseLost`."""
        if self.state is not LeaseState.OPEN:
            raise LeaseLost(f"lease {self.id} is lost ({self.state})", "stop the job and claim another")
        return self


# Given out


def write_assignments(
    connection: sa.Connection, assignments: Sequence[Assignment], now: datetime
) -> list[Assigned]:
    """Turns a decision into leases. Whatever changed since it was made is passed over: those jobs wait on.

    A decision comes as a whole and in few statements: it holds SQLite's write lock. What it finds free stays so until
    it commits, as only one is written at a time; the indexes hold even if that were wrong.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ASSIGNING)))
    roomy = _with_room(connection, assignments)
    taken = _take_jobs(connection, [one.job_id for one in roomy], now)
    placed = [one for one in roomy if one.job_id in taken]
    if not placed:
        return []
    rows = [
        {
            "job_id": one.job_id,
            "runner_id": one.runner_id,
            "fence": taken[one.job_id],
            "gpus": len(one.gpus),
            "created_at": now,
            "until": now + timedelta(seconds=FETCH_SECONDS),
        }
        for one in placed
    ]
    fresh = sa.insert(leases).returning(leases.c.job_id, leases.c.id)
    ids = {row.job_id: row.id for row in connection.execute(fresh, rows)}
    held = [{"lease_id": ids[one.job_id], "uuid": uuid} for one in placed for uuid in one.gpus]
    if held:
        connection.execute(sa.insert(lease_gpus), held)
    return [Assigned(ids[one.job_id], one.job_id, one.runner_id, now) for one in placed]


def _with_room(connection: sa.Connection, assignments: Sequence[Assignment]) -> list[Assignment]:
    """Those whose runner takes jobs and has the slot or the GPUs; the runners stay locked.

    So a drain comes before the lease, or finds it.
    """
    columns = runners.c
    asked = sorted({one.runner_id for one in assignments})
    takers = (
        sa.select(columns.id, columns.slots)
        .where(
            columns.id.in_(asked),
            columns.state == "active",
            columns.drain.is_(False),
            columns.draining.is_(False),
        )
        .order_by(columns.id)
        .with_for_update()
    )
    slots = {row.id: row.slots for row in connection.execute(takers)}
    used = (
        sa.select(leases.c.runner_id, sa.func.count())
        .where(leases.c.runner_id.in_(asked), leases.c.gpus == 0, sa.text("state = 'open'"))
        .group_by(leases.c.runner_id)
    )
    for runner_id, count in connection.execute(used):
        if runner_id in slots:
            slots[runner_id] -= count
    uuids = sorted({uuid for one in assignments for uuid in one.gpus})
    held = sa.select(lease_gpus.c.uuid).where(sa.text("state = 'open'"), lease_gpus.c.uuid.in_(uuids))
    out = gpus.quarantined(connection) | set(connection.execute(held).scalars())
    roomy = []
    for one in assignments:
        if one.runner_id not in slots or not out.isdisjoint(one.gpus):
            continue
        if not one.gpus and slots[one.runner_id] < 1:
            continue
        slots[one.runner_id] -= not one.gpus
        out.update(one.gpus)
        roomy.append(one)
    return roomy


def _take_jobs(connection: sa.Connection, job_ids: Sequence[int], now: datetime) -> dict[int, int]:
    """Those that still wait and are of their pull request's newest head: their new fences."""
    # The head is compared here, not only where the job was made: a push may have come in between.
    newest = (
        sa.select(runs.c.id)
        .join(pulls, pulls.c.id == runs.c.pull_id)
        .where(runs.c.id == jobs.c.run_id, runs.c.head_sha == pulls.c.head_sha)
        .exists()
    )
    columns = jobs.c
    taken = (
        sa.update(jobs)
        .where(
            columns.id.in_(sorted(job_ids)), columns.state == JobState.QUEUED, columns.cancel == "", newest
        )
        .values(state=JobState.LEASED, fence=columns.fence + 1)
        .returning(columns.id, columns.fence, columns.limit_seconds)
    )
    rows = connection.execute(taken).all()
    if rows:
        # For those that never begin a step; the first step sets it anew.
        limited = sa.update(jobs).where(columns.id == sa.bindparam("of"))
        until = sa.bindparam("until", type_=columns.running_until.type)
        connection.execute(
            limited.values(running_until=until),
            [{"of": row.id, "until": now + timedelta(seconds=row.limit_seconds)} for row in rows],
        )
    return {row.id: row.fence for row in rows}


def unfetched(connection: sa.Connection) -> list[Assigned]:
    """Leases that wait for their runner, oldest first."""
    found = sa.select(leases.c.id, leases.c.job_id, leases.c.runner_id, leases.c.created_at).where(
        sa.text("state = 'open'"), leases.c.granted_at.is_(None)
    )
    # Sorted here: asked for in order, SQLite would read all leases that ever were.
    return sorted((Assigned(*row) for row in connection.execute(found)), key=lambda one: one.lease_id)


def put_back_unfetched(connection: sa.Connection, runner_id: int, now: datetime) -> list[int]:
    """What was assigned to a runner that takes no more waits again, uncounted; returns the job ids."""
    mine = sa.select(leases.c.id, leases.c.job_id).where(
        leases.c.runner_id == runner_id, sa.text("state = 'open'"), leases.c.granted_at.is_(None)
    )
    back = []
    for row in sorted(connection.execute(mine).all(), key=lambda row: row.job_id):
        job, lease = lock_job(connection, row.job_id), lock_lease(connection, row.id)
        if job is None or lease is None or lease.state != LeaseState.OPEN or lease.granted_at is not None:
            continue
        close_lease(connection, row.id, LeaseState.UNTAKEN, now)
        requeue(connection, job.id, job.avoid, now, run_id=job.run_id)
        back.append(row.job_id)
    return back


# In the runner's hands


def fetch(connection: sa.Connection, runner_id: int, now: datetime) -> Granted | None:
    """The runner's oldest lease that it has not fetched yet, with a new token; None where there is none."""
    mine = (
        sa.select(leases.c.id, leases.c.job_id)
        .where(leases.c.runner_id == runner_id, sa.text("state = 'open'"), leases.c.granted_at.is_(None))
        .order_by(leases.c.id)
        .limit(1)
    )
    row = connection.execute(mine).first()
    if row is None:
        return None
    token = new_secret("wslease")
    taken = (
        sa.update(leases)
        .where(leases.c.id == row.id, leases.c.state == LeaseState.OPEN, leases.c.granted_at.is_(None))
        .values(token_digest=digest(token), granted_at=now, until=now + timedelta(seconds=LEASE_SECONDS))
    )
    if connection.execute(taken).rowcount == 0:
        return None
    job = connection.execute(sa.select(jobs.c.job).where(jobs.c.id == row.job_id)).scalar_one()
    return Granted(row.id, row.job_id, token, job, gpus_of(connection, row.id))


def gpus_of(connection: sa.Connection, lease_id: int) -> tuple[str, ...]:
    """The lease's GPUs, in the order in which they were given."""
    found = sa.select(lease_gpus.c.uuid).where(lease_gpus.c.lease_id == lease_id).order_by(lease_gpus.c.id)
    return tuple(connection.execute(found).scalars())


def find(connection: sa.Connection, lease_id: int, token: str) -> Lease:
    """The lease, open or not. Raises `NoSuchLease`, `BadToken`."""
    c = leases.c
    columns = (c.id, c.job_id, c.runner_id, c.state, c.begun_at, c.step, c.token_digest)
    row = connection.execute(sa.select(*columns).where(c.id == lease_id)).first()
    if row is None:
        raise NoSuchLease(f"there is no lease {lease_id}", "claim a job")
    if not row.token_digest or not same(token, row.token_digest):
        raise BadToken(f"the token is not of lease {lease_id}", "use the token of its grant")
    return Lease(row.id, row.job_id, row.runner_id, LeaseState(row.state), row.begun_at is not None, row.step)


def touch(connection: sa.Connection, lease: Lease, now: datetime) -> None:
    """The runner has used the token, so it has the job. Raises `LeaseLost`."""
    if lease.begun:
        return
    seen = _open(lease).where(leases.c.begun_at.is_(None))
    connection.execute(seen.values(begun_at=now))


def beat(connection: sa.Connection, lease: Lease, step: str, now: datetime) -> bool:
    """Extends the lease and remembers the step; whether the job should stop. Raises `LeaseLost`."""
    lease.require_open()
    begins = False
    if step and not lease.step:
        job = lock_job(connection, lease.job_id)
        begins = job is not None and job.state == JobState.LEASED
    kept = _open(lease).values(
        until=now + timedelta(seconds=LEASE_SECONDS),
        begun_at=sa.func.coalesce(leases.c.begun_at, sa.bindparam("seen", now, leases.c.begun_at.type)),
        step=step or leases.c.step,
    )
    if connection.execute(kept).rowcount == 0:
        raise LeaseLost(f"lease {lease.id} is lost", "stop the job and claim another")
    if begins:
        _begin(connection, lease, now)
    stop: str = connection.execute(sa.select(jobs.c.cancel).where(jobs.c.id == lease.job_id)).scalar_one()
    return bool(stop)


def _begin(connection: sa.Connection, lease: Lease, now: datetime) -> None:
    columns = jobs.c
    row = connection.execute(
        sa.select(columns.limit_seconds, columns.run_id).where(columns.id == lease.job_id)
    ).one()
    begun = sa.update(jobs).where(columns.id == lease.job_id, columns.state == JobState.LEASED)
    until = now + timedelta(seconds=row.limit_seconds)
    connection.execute(begun.values(state=JobState.RUNNING, started_at=now, running_until=until))
    announce_run(connection, row.run_id, now)


def _open(lease: Lease) -> sa.Update:
    return sa.update(leases).where(leases.c.id == lease.id, leases.c.state == LeaseState.OPEN)


# Closed


def report(connection: sa.Connection, lease: Lease, said: JobReport, now: datetime) -> bool:
    """Stores the evidence and closes the lease; False for a report that was stored already.

    Raises `LeaseLost`. What the runner says of its own name and GPUs is replaced by what the lease says.
    """
    job, current = lock_job(connection, lease.job_id), lock_lease(connection, lease.id)
    if current is None or job is None or current.state == LeaseState.REPORTED:
        return False
    if current.state != LeaseState.OPEN or current.fence != job.fence:
        raise LeaseLost(f"lease {lease.id} is lost ({current.state})", "nothing is to be done")
    name = connection.execute(sa.select(runners.c.name).where(runners.c.id == lease.runner_id)).scalar_one()
    held = gpus_of(connection, lease.id)
    close_lease(connection, lease.id, LeaseState.REPORTED, now)
    store_report(connection, job.id, said.model_copy(update={"runner": name, "gpus": held}), now)
    gpus.note(connection, lease.runner_id, [notice for notice in said.notices if notice.gpu in held], now)
    return True


def store_report(connection: sa.Connection, job_id: int, said: JobReport, now: datetime) -> None:
    """The job waits for its verdict. Its lease must be closed, and its row locked."""
    kept = sa.update(jobs).where(jobs.c.id == job_id)
    connection.execute(kept.values(state=JobState.REPORTED, reported_at=now, report=said.model_dump_json()))
    announce_job(connection, job_id, now)


def give_back(connection: sa.Connection, lease: Lease, now: datetime) -> bool:
    """The job waits again, not counted as an attempt, and on another host where there is one.

    False where it was handed back already. Raises `LeaseLost`.
    """
    job, current = lock_job(connection, lease.job_id), lock_lease(connection, lease.id)
    if current is None or job is None or current.state == LeaseState.RETURNED:
        return False
    if current.state != LeaseState.OPEN:
        raise LeaseLost(f"lease {lease.id} is lost ({current.state})", "nothing is to be done")
    put_back(connection, job, current, LeaseState.RETURNED, now)
    return True


def put_back(
    connection: sa.Connection, job: sa.Row[Any], lease: sa.Row[Any], state: LeaseState, now: datetime
) -> None:
    """Closes the lease, and its job waits again; one that was to be stopped ends instead. Both rows are locked."""
    close_lease(connection, lease.id, state, now)
    if job.cancel:
        end_job(connection, job.id, quiet_end(job.cancel), now)
        return
    # A runner that was too busy to fetch it is as good as any other.
    avoid = job.avoid if lease.granted_at is None else avoiding(job.avoid, [lease.runner_id], [])
    requeue(connection, job.id, avoid, now, run_id=job.run_id)


def avoiding(avoid: dict[str, list[Any]], hosts: Iterable[int], uuids: Iterable[str]) -> dict[str, list[Any]]:
    """What a job stays away from, with more of it."""
    return {
        "hosts": sorted({*avoid.get("hosts", ()), *hosts}),
        "gpus": sorted({*avoid.get("gpus", ()), *uuids}),
    }
