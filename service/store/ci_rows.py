"""What jobs, leases and runners share: states, locks in one order, and how the end of a job is announced.

Who needs several rows locks them in this order, whatever it came for: runner, job, lease, GPUs.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from ci_dispatch.model import JobResult, Outcome
from service.store.ci_tables import jobs, lease_gpus, leases, runs
from service.store.errors import StoreError
from service.store.work import WorkQueue

CI_RESULT, CI_PROGRESS = "ci_result", "ci_progress"
"""Kinds of work: a job has ended or its report waits for a verdict; a run's jobs moved otherwise."""


class JobState(StrEnum):
    """The life of a job. LEASED has a runner, RUNNING has begun its first step, REPORTED waits for its verdict."""

    QUEUED = "queued"
    LEASED = "leased"
    RUNNING = "running"
    REPORTED = "reported"
    FINISHED = "finished"


OPEN = (JobState.QUEUED, JobState.LEASED, JobState.RUNNING)


class LeaseState(StrEnum):
    """OPEN, or how it was closed: its report came, it was handed back, it ran out, or nobody fetched it."""

    OPEN = "open"
    REPORTED = "reported"
    RETURNED = "returned"
    LOST = "lost"
    UNTAKEN = "untaken"


class BadToken(StoreError):
    """A token that is unknown, spent or expired."""


def new_secret(prefix: str) -> str:
    """A token that cannot be guessed; the prefix says what it is for where it turns up."""
    return f"{prefix}_{secrets.token_urlsafe(32)}"


def digest(secret: str) -> str:
    """What is kept of a token. It has 256 random bits, so one hash is enough."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def same(secret: str, kept: str) -> bool:
    """Whether `kept` is the token's digest; in constant time."""
    return hmac.compare_digest(digest(secret), kept)


def lock_job(connection: sa.Connection, job_id: int) -> sa.Row[Any] | None:
    """The job's small columns, which nobody changes before `connection` commits."""
    columns = (
        jobs.c[name] for name in ("id", "run_id", "name", "attempt", "state", "cancel", "fence", "avoid")
    )
    return connection.execute(sa.select(*columns).where(jobs.c.id == job_id).with_for_update()).first()


def lock_lease(connection: sa.Connection, lease_id: int) -> sa.Row[Any] | None:
    """The lease as it is now; its job must be locked already."""
    return connection.execute(sa.select(leases).where(leases.c.id == lease_id).with_for_update()).first()


def close_lease(connection: sa.Connection, lease_id: int, state: LeaseState, now: datetime) -> None:
    """Frees its GPUs; the token is good for nothing but saying the last word again."""
    closed = sa.update(leases).where(leases.c.id == lease_id, leases.c.state == LeaseState.OPEN)
    connection.execute(closed.values(state=state, closed_at=now))
    freed = sa.update(lease_gpus).where(lease_gpus.c.lease_id == lease_id)
    connection.execute(freed.values(state="closed"))


def end_job(connection: sa.Connection, job_id: int, result: JobResult, now: datetime) -> None:
    """Gives a job its outcome, closes its run after the last one, and announces it."""
    ended = sa.update(jobs).where(jobs.c.id == job_id).returning(jobs.c.run_id)
    run_id = connection.execute(
        ended.values(
            state=JobState.FINISHED,
            outcome=result.outcome,
            reason=result.reason,
            finished_at=now,
            result=result.model_dump_json(),
        )
    ).scalar_one()
    close_run(connection, run_id, now)
    announce_job(connection, job_id, now)


def close_run(connection: sa.Connection, run_id: int, now: datetime) -> None:
    """Finishes the run where none of its jobs is unfinished."""
    unfinished = sa.exists().where(jobs.c.run_id == run_id, jobs.c.state != JobState.FINISHED)
    closed = sa.update(runs).where(runs.c.id == run_id, runs.c.state == "open", ~unfinished)
    connection.execute(closed.values(state="finished", finished_at=now))


def requeue(
    connection: sa.Connection, job_id: int, avoid: dict[str, list[Any]], now: datetime, *, run_id: int
) -> None:
    """Puts a job back that never began or was handed back: the same attempt, waiting since it first waited."""
    again = sa.update(jobs).where(jobs.c.id == job_id)
    connection.execute(again.values(state=JobState.QUEUED, started_at=None, running_until=None, avoid=avoid))
    announce_run(connection, run_id, now)


def announce_job(connection: sa.Connection, job_id: int, now: datetime) -> None:
    WorkQueue(lambda: now).put(connection, CI_RESULT, f"job/{job_id}", {"job_id": job_id})


def announce_run(connection: sa.Connection, run_id: int, now: datetime) -> None:
    WorkQueue(lambda: now).put(connection, CI_PROGRESS, f"run/{run_id}", {"run_id": run_id})


def quiet_end(how: str) -> JobResult:
    """The result of a job that was stopped before it began."""
    why = {
        Outcome.SUPERSEDED: "a newer commit took its place before it began",
        Outcome.CANCELLED: "cancelled before it began",
        Outcome.TIMED_OUT: "stopped at its time limit, handed back unfinished",
    }
    outcome = Outcome(how)
    return JobResult(outcome=outcome, reason=why[outcome])
