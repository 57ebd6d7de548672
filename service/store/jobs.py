"""Runs of CI and their jobs: asked for, stopped, replaced by a newer head, and given their result.

Functions over a connection; whoever calls owns the transaction. Asking twice is asking once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from ci_dispatch.model import Job, JobReport, JobResult, Outcome
from service.store import kpis
from service.store.ci_rows import (
    OPEN,
    JobState,
    LeaseState,
    announce_run,
    close_lease,
    close_run,
    end_job,
    lock_job,
    lock_lease,
    quiet_end,
)
from service.store.ci_tables import jobs, lease_gpus, leases, runs
from service.store.dialect import insert
from service.store.errors import StoreError
from service.store.job_leases import avoiding


@dataclass(frozen=True, slots=True)
class NewRun:
    """CI for one commit of a pull request. `key` makes it one, however often it is asked for.

    Attributes:
        source_sha: the commit whose files are tested: the head, or its merge into the base.
        tested_tree: that commit's tree, by which results are keyed.
        qualified_by: who or what let it start, in words.
        skipped: (job name, why) of those that do not run and still report success.
    """

    key: str
    pull_id: int
    head_sha: str
    base_sha: str
    source_sha: str
    tested_tree: str = ""
    qualified_by: str = ""
    reason: str = ""
    skipped: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """A stored run. `state` is open, finished or superseded."""

    id: int
    key: str
    pull_id: int
    head_sha: str
    base_sha: str
    source_sha: str
    tested_tree: str
    qualified_by: str
    reason: str
    state: str
    created_at: datetime
    finished_at: datetime | None
    skipped: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class StoredJob:
    """An attempt at a job, without what may be large. `cancel` says how a job that should stop will have ended."""

    id: int
    key: str
    run_id: int
    pull_id: int
    name: str
    arch: str
    gpus: int
    attempt: int
    trusted: bool
    priority: int
    author: str
    state: JobState
    cancel: str
    outcome: str
    reason: str
    queued_at: datetime
    pending_until: datetime
    started_at: datetime | None
    running_until: datetime | None
    finished_at: datetime | None

    @property
    def ended(self) -> Outcome | None:
        """How it ended; None while it is open."""
        return Outcome(self.outcome) if self.outcome else None


_RUN = tuple(runs.c[name] for name in Run.__dataclass_fields__)
_JOB = tuple(jobs.c[name] for name in StoredJob.__dataclass_fields__)


def create_run(connection: sa.Connection, run: NewRun, wanted: Sequence[Job], now: datetime) -> int:
    """Stores the run and queues those of its jobs that are new; returns its id.

    Asked again with the same key, it is the same run; jobs with keys that it has not seen are added and open it again.
    """
    values = {name: getattr(run, name) for name in NewRun.__dataclass_fields__} | {"created_at": now}
    values["skipped"] = [list(pair) for pair in run.skipped]
    fresh = insert(connection, runs, values).on_conflict_do_nothing(index_elements=[runs.c.key])
    connection.execute(fresh)
    # Locked: a last job that ends this moment must not close the run over new ones.
    found = sa.select(runs.c.id).where(runs.c.key == run.key).with_for_update()
    run_id: int = connection.execute(found).scalar_one()
    added = [_queue(connection, run_id, run.pull_id, job, {}, now) for job in wanted]
    if any(job_id is not None for job_id in added):
        again = sa.update(runs).where(runs.c.id == run_id, runs.c.state == "finished")
        connection.execute(again.values(state="open", finished_at=None))
        announce_run(connection, run_id, now)
    elif not wanted:
        close_run(connection, run_id, now)
        announce_run(connection, run_id, now)
    return run_id


def _queue(
    connection: sa.Connection,
    run_id: int,
    pull_id: int,
    job: Job,
    avoid: dict[str, list[Any]],
    now: datetime,
) -> int | None:
    """The new row's id; None where the job's key is known."""
    spec = job.spec
    values = {
        "key": job.key,
        "run_id": run_id,
        "pull_id": pull_id,
        "name": spec.name,
        "arch": spec.arch,
        "gpus": spec.gpus,
        "attempt": job.attempt,
        "trusted": job.trusted,
        "priority": spec.priority,
        "pull": f"{job.repo}#{job.number}",
        "author": job.author,
        "limit_seconds": spec.running_minutes * 60,
        "queued_at": now,
        "pending_until": now + timedelta(minutes=spec.pending_minutes),
        "avoid": avoid,
        "job": job.model_dump_json(),
    }
    fresh = insert(connection, jobs, values).on_conflict_do_nothing(index_elements=[jobs.c.key])
    return connection.execute(fresh.returning(jobs.c.id)).scalar()


# Read


def get_run(connection: sa.Connection, run_id: int) -> Run:
    """Raises `StoreError` where it was pruned."""
    row = connection.execute(sa.select(*_RUN).where(runs.c.id == run_id)).first()
    if row is None:
        raise _gone("run", run_id)
    return _run(row)


def runs_of(connection: sa.Connection, pull_id: int) -> list[Run]:
    """The pull request's runs, newest first."""
    found = sa.select(*_RUN).where(runs.c.pull_id == pull_id).order_by(runs.c.id.desc())
    return [_run(row) for row in connection.execute(found)]


def runs_of_tree(connection: sa.Connection, tested_tree: str) -> list[Run]:
    """Runs that tested the same files, newest first."""
    found = sa.select(*_RUN).where(runs.c.tested_tree == tested_tree).order_by(runs.c.id.desc())
    return [_run(row) for row in connection.execute(found)]


def _run(row: sa.Row[Any]) -> Run:
    values = dict(row._mapping)
    return Run(**{**values, "skipped": [(name, why) for name, why in values["skipped"]]})


def get(connection: sa.Connection, job_id: int) -> StoredJob:
    """Raises `StoreError` where it was pruned."""
    row = connection.execute(sa.select(*_JOB).where(jobs.c.id == job_id)).first()
    if row is None:
        raise _gone("job", job_id)
    return _job(row)


def of_run(connection: sa.Connection, run_id: int) -> list[StoredJob]:
    """All attempts at the run's jobs, oldest first."""
    found = sa.select(*_JOB).where(jobs.c.run_id == run_id).order_by(jobs.c.id)
    return [_job(row) for row in connection.execute(found)]


def of_pull(connection: sa.Connection, pull_id: int, head_sha: str) -> list[StoredJob]:
    """All attempts at jobs for one head of the pull request, oldest first."""
    found = (
        sa.select(*_JOB)
        .join(runs, runs.c.id == jobs.c.run_id)
        .where(jobs.c.pull_id == pull_id, runs.c.head_sha == head_sha)
        .order_by(jobs.c.id)
    )
    return [_job(row) for row in connection.execute(found)]


def _job(row: sa.Row[Any]) -> StoredJob:
    values = dict(row._mapping)
    return StoredJob(**{**values, "state": JobState(values["state"])})


def newest(attempts: Iterable[StoredJob]) -> dict[str, StoredJob]:
    """The last of each job's attempts by its name, of attempts in their order; jobs as they were first asked for."""
    return {one.name: one for one in attempts}


def job_of(connection: sa.Connection, job_id: int) -> Job:
    """The job as it was asked for. Raises `StoreError` where it was pruned."""
    text = connection.execute(sa.select(jobs.c.job).where(jobs.c.id == job_id)).scalar()
    if text is None:
        raise _gone("job", job_id)
    return Job.model_validate_json(text)


def report_of(connection: sa.Connection, job_id: int) -> JobReport | None:
    """The evidence; None where none has come."""
    text = connection.execute(sa.select(jobs.c.report).where(jobs.c.id == job_id)).scalar()
    return None if text is None else JobReport.model_validate_json(text)


def result_of(connection: sa.Connection, job_id: int) -> JobResult | None:
    """The verdict; None before there is one."""
    text = connection.execute(sa.select(jobs.c.result).where(jobs.c.id == job_id)).scalar()
    return None if text is None else JobResult.model_validate_json(text)


def counts(connection: sa.Connection) -> dict[JobState, int]:
    """How many jobs are queued, leased, running, and wait for a verdict."""
    open_ = jobs.c.state.in_((*OPEN, JobState.REPORTED))
    counted = sa.select(jobs.c.state, sa.func.count()).where(open_).group_by(jobs.c.state)
    return {JobState(state): count for state, count in connection.execute(counted)}


# Stop


def cancel(connection: sa.Connection, job_id: int, how: Outcome, now: datetime) -> bool:
    """Stops a job: one that no runner has yet ends at once, another when its runner hears of it.

    `how` is CANCELLED or SUPERSEDED (the reaper's: TIMED_OUT). False where it has ended or is being stopped already.
    """
    job = lock_job(connection, job_id)
    if job is None or job.state not in OPEN or job.cancel:
        return False
    if job.state == JobState.QUEUED or _take_back(connection, job_id, now):
        end_job(connection, job_id, quiet_end(how), now)
        return True
    flagged = sa.update(jobs).where(jobs.c.id == job_id)
    connection.execute(flagged.values(cancel=how, cancelled_at=now))
    announce_run(connection, job.run_id, now)
    return True


def _take_back(connection: sa.Connection, job_id: int, now: datetime) -> bool:
    """Closes the job's lease where its runner has not fetched it."""
    held = sa.select(leases.c.id).where(leases.c.job_id == job_id, sa.text("state = 'open'"))
    lease_id = connection.execute(held).scalar()
    lease = None if lease_id is None else lock_lease(connection, lease_id)
    if lease is None or lease.state != LeaseState.OPEN or lease.granted_at is not None:
        return False
    close_lease(connection, lease.id, LeaseState.UNTAKEN, now)
    return True


def supersede(connection: sa.Connection, pull_id: int, head_sha: str, now: datetime) -> list[int]:
    """A new head: stops the jobs of all others, and closes their runs. Returns the ids of the jobs that it stopped."""
    older = sa.select(runs.c.id).where(runs.c.pull_id == pull_id, runs.c.head_sha != head_sha)
    stopped = _stop(connection, jobs.c.run_id.in_(older), Outcome.SUPERSEDED, now)
    theirs = sa.select(jobs.c.run_id).where(jobs.c.id.in_(stopped))
    closed = sa.update(runs).where(
        runs.c.id.in_(older), sa.or_(runs.c.state == "open", runs.c.id.in_(theirs))
    )
    connection.execute(closed.values(state="superseded", finished_at=now))
    # A next attempt may have been queued in between; none can be now.
    return stopped + _stop(connection, jobs.c.run_id.in_(older), Outcome.SUPERSEDED, now)


def cancel_pull(connection: sa.Connection, pull_id: int, now: datetime) -> list[int]:
    """Stops all jobs of the pull request; returns their ids."""
    return _stop(connection, jobs.c.pull_id == pull_id, Outcome.CANCELLED, now)


def _stop(connection: sa.Connection, which: sa.ColumnElement[bool], how: Outcome, now: datetime) -> list[int]:
    open_ = sa.select(jobs.c.id).where(which, jobs.c.state.in_(OPEN)).order_by(jobs.c.id)
    found = connection.execute(open_).scalars().all()
    return [job_id for job_id in found if cancel(connection, job_id, how, now)]


# Judged


def record_result(
    connection: sa.Connection, job_id: int, result: JobResult, now: datetime, following: Job | None = None
) -> int | None:
    """Gives a reported job its result and queues its next attempt; returns that one's id.

    `following` is dropped where the job was to be stopped. A job that has its result keeps it: recorded again, it
    has no effect. Raises `StoreError` where its report has not come, for then there is nothing to judge.
    """
    job = lock_job(connection, job_id)
    if job is None:
        raise _gone("job", job_id)
    if job.state == JobState.FINISHED:
        return None
    if job.state != JobState.REPORTED:
        raise StoreError(f"job {job_id} is {job.state}: its report has not come", "judge it when it has")
    row = connection.execute(
        sa.select(jobs.c.pull_id, runs.c.state)
        .join(runs, runs.c.id == jobs.c.run_id)
        .where(jobs.c.id == job_id)
        .with_for_update(of=runs)
    ).one()
    next_id = None
    if following is not None and not job.cancel and row.state != "superseded":
        avoid = _failed_on(connection, job)
        next_id = _queue(connection, job.run_id, row.pull_id, following, avoid, now)
    kpis.add(connection, job_id, job_of(connection, job_id), result.kpis, now)
    end_job(connection, job_id, result, now)
    return next_id


def _failed_on(connection: sa.Connection, job: sa.Row[Any]) -> dict[str, list[Any]]:
    """Hosts and GPUs of this attempt and those before it."""
    held = (
        sa.select(leases.c.runner_id, lease_gpus.c.uuid)
        .select_from(leases)
        .outerjoin(lease_gpus, lease_gpus.c.lease_id == leases.c.id)
        .where(leases.c.job_id == job.id, leases.c.state.in_((LeaseState.REPORTED, LeaseState.LOST)))
    )
    rows = connection.execute(held).all()
    return avoiding(job.avoid, (row.runner_id for row in rows), (row.uuid for row in rows if row.uuid))


def _gone(what: str, row_id: int) -> StoreError:
    return StoreError(f"{what} {row_id} is gone", "it was pruned; ask for CI again")
