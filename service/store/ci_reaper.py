"""What nobody will end by itself: leases that ran out, jobs that wait or run too long, jobs of an older head.

Run it where runners can be heard, and only after they could be heard for a lease's length: see `Hearing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from ci_dispatch.model import JobReport, Notice, Outcome
from service.store import jobs as job_store
from service.store.ci_rows import JobState, LeaseState, close_lease, lock_job, lock_lease
from service.store.ci_tables import jobs, leases, runners, runs
from service.store.job_leases import LEASE_SECONDS, gpus_of, put_back, store_report
from service.store.schema import pulls

STOP_SECONDS = 120.0
"""A job that was told to stop, or has passed its limit, has so long to report; then its lease is lost."""
_BATCH = 200


@dataclass(slots=True)
class Reaped:
    """Job ids by what became of them."""

    lost: list[int] = field(default_factory=list)
    put_back: list[int] = field(default_factory=list)
    no_runner: list[int] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    superseded: list[int] = field(default_factory=list)

    def by_reason(self) -> dict[str, list[int]]:
        """The reasons that occurred."""
        named = {
            "lost": self.lost,
            "put back": self.put_back,
            "without a runner in time": self.no_runner,
            "told to stop": self.stopped,
            "superseded": self.superseded,
        }
        return {reason: ids for reason, ids in named.items() if ids}

    @property
    def is_news(self) -> bool:
        """Whether anything was announced to the workers."""
        return bool(self.by_reason())


@dataclass(slots=True)
class Hearing:
    """Whether runners could be heard for long enough that silence means something.

    Not after the process began or stood still, nor after the clock was set forward: leases then look older than they are.
    """

    quiet: float = LEASE_SECONDS
    _wall: float | None = None
    _monotonic: float = 0.0
    _since: float = 0.0

    def check(self, wall: float, monotonic: float) -> bool:
        """To be asked every second or so, with both clocks in seconds."""
        gap = monotonic - self._monotonic
        jump = 0.0 if self._wall is None else (wall - self._wall) - gap
        if self._wall is None or gap > self.quiet / 3 or jump > self.quiet / 6:
            self._since = monotonic
        self._wall, self._monotonic = wall, monotonic
        return monotonic - self._since >= self.quiet


def reap(connection: sa.Connection, now: datetime) -> Reaped:
    """Ends what is overdue at `now`; a bounded number at a time."""
    reaped = Reaped()
    _shorten(connection, now)
    for row in _overdue(connection, now):
        _take(connection, row, now, reaped)
    _expire(connection, now, reaped)
    _limit(connection, now, reaped)
    _replace(connection, now, reaped)
    return reaped


def _shorten(connection: sa.Connection, now: datetime) -> None:
    """After the clock was set back, leases of the dead would last as much longer."""
    longest = now + timedelta(seconds=2 * LEASE_SECONDS)
    long = sa.update(leases).where(sa.text("state = 'open'"), leases.c.until > longest)
    connection.execute(long.values(until=now + timedelta(seconds=LEASE_SECONDS)))


def _overdue(connection: sa.Connection, now: datetime) -> Sequence[Any]:
    """Open leases that ran out, or whose job had its time to stop; by job."""
    stopped = now - timedelta(seconds=STOP_SECONDS)
    found = (
        sa.select(leases.c.id, leases.c.job_id)
        .join(jobs, jobs.c.id == leases.c.job_id)
        .where(
            sa.text("ci_leases.state = 'open'"),
            sa.or_(leases.c.until < now, jobs.c.cancelled_at < stopped),
        )
        .order_by(leases.c.job_id)
        .limit(_BATCH)
    )
    return connection.execute(found).all()


def _take(connection: sa.Connection, row: sa.Row[Any], now: datetime, reaped: Reaped) -> None:
    job, lease = lock_job(connection, row.job_id), lock_lease(connection, row.id)
    if job is None or lease is None or lease.state != LeaseState.OPEN:
        return
    flagged = connection.execute(sa.select(jobs.c.cancelled_at).where(jobs.c.id == row.job_id)).scalar()
    deaf = flagged is not None and flagged < now - timedelta(seconds=STOP_SECONDS)
    # A beat may have come between the question and the lock.
    if lease.until >= now and not deaf:
        return
    if lease.begun_at is None:
        put_back(connection, job, lease, LeaseState.UNTAKEN, now)
        reaped.put_back.append(job.id)
        return
    name = connection.execute(sa.select(runners.c.name).where(runners.c.id == lease.runner_id)).scalar_one()
    why = (
        "was told to stop and did not report" if deaf else f"has not been heard of for {LEASE_SECONDS:.0f} s"
    )
    lost = Notice(
        kind="lost", detail=f"runner {name} {why}; the last step it named was {lease.step or 'none'}"
    )
    said = JobReport(
        notices=(lost,), runner=name, gpus=gpus_of(connection, lease.id), cancelled=bool(job.cancel)
    )
    close_lease(connection, lease.id, LeaseState.LOST, now)
    store_report(connection, job.id, said, now)
    reaped.lost.append(job.id)


def _expire(connection: sa.Connection, now: datetime, reaped: Reaped) -> None:
    """Queued jobs for which no runner came in time."""
    late = (
        sa.select(jobs.c.id, jobs.c.arch, jobs.c.gpus, jobs.c.queued_at, jobs.c.pending_until)
        .where(sa.text("state = 'queued'"), jobs.c.pending_until < now)
        .order_by(jobs.c.pending_until)
        .limit(_BATCH)
    )
    for row in sorted(connection.execute(late).all(), key=lambda row: row.id):
        job = lock_job(connection, row.id)
        if job is None or job.state != JobState.QUEUED:
            continue
        minutes = (row.pending_until - row.queued_at).total_seconds() / 60
        wanted = f"{row.gpus} free {row.arch} GPU{'s' * (row.gpus > 1)}" if row.gpus else "a free slot"
        detail = f"no runner offered {wanted} within {minutes:g} minutes"
        said = JobReport(notices=(Notice(kind="no_runner", where="before", detail=detail),))
        store_report(connection, row.id, said, now)
        reaped.no_runner.append(row.id)


def _limit(connection: sa.Connection, now: datetime, reaped: Reaped) -> None:
    """Jobs past their limit, which their runner should have stopped by itself."""
    late = (
        sa.select(jobs.c.id)
        .where(
            sa.text("state IN ('leased', 'running')"),
            jobs.c.running_until < now - timedelta(seconds=STOP_SECONDS),
            jobs.c.cancel == "",
        )
        .order_by(jobs.c.running_until)
        .limit(_BATCH)
    )
    for job_id in sorted(connection.execute(late).scalars()):
        if job_store.cancel(connection, job_id, Outcome.TIMED_OUT, now):
            reaped.stopped.append(job_id)


def _replace(connection: sa.Connection, now: datetime, reaped: Reaped) -> None:
    """Runs of a head that is no longer its pull request's."""
    old = (
        sa.select(runs.c.pull_id, pulls.c.head_sha)
        .join(pulls, pulls.c.id == runs.c.pull_id)
        .where(sa.text("ci_runs.state = 'open'"), runs.c.head_sha != pulls.c.head_sha)
        .distinct()
        .order_by(runs.c.pull_id)
        .limit(_BATCH)
    )
    for pull_id, head_sha in connection.execute(old).all():
        reaped.superseded += job_store.supersede(connection, pull_id, head_sha, now)
