"""From the evidence of a job to its verdict, the next attempt and what is shown of it."""

from __future__ import annotations

import sqlalchemy as sa

from ci_dispatch.model import Job, JobReport, JobResult, Outcome
from ci_dispatch.perf import compare
from ci_dispatch.rerun import retry
from ci_dispatch.verdict import judge
from service.store import jobs, pulls
from service.store.ci_rows import JobState
from service.store.work import WorkClaim
from service.worker.ci.asked import Asked, ask
from service.worker.ci.history import attempts_of
from service.worker.ci.progress import publish_run
from service.worker.policy import stored_policy
from service.worker.station import Station


def run_result(station: Station, claim: WorkClaim) -> None:
    """Judges a job whose report has come, and shows one that has ended."""
    job_id = claim.payload["job_id"]
    with station.database.read() as connection:
        stored, job = jobs.get(connection, job_id), jobs.job_of(connection, job_id)
        report = jobs.report_of(connection, job_id)
        is_due = stored.state is JobState.REPORTED
        history = attempts_of(connection, jobs.get_run(connection, stored.run_id)) if is_due else []
    result = following = None
    if is_due and report is not None:
        result = _judge(job, report, stored.cancel)
        following = retry(job, result, history)
    with station.database.write() as connection:
        claim.guard(connection)
        if result is not None:
            jobs.record_result(connection, job_id, result, station.clock(), following)
        publish_run(station, connection, stored.run_id)
        if result is not None and following is None:
            _look_at_merge(station, connection, stored.pull_id)
        station.work.finish(connection, claim)


def _judge(job: Job, report: JobReport, stopped_as: str) -> JobResult:
    """The verdict. A job that was told to stop ended as it was told, if it had to be stopped."""
    kpis = compare(report.samples, job.spec.perf) if job.spec.perf is not None else ()
    result = judge(job, report, kpis)
    if stopped_as and result.outcome is Outcome.CANCELLED:
        outcome = Outcome(stopped_as)
        why = {
            Outcome.SUPERSEDED: "a newer commit took its place",
            Outcome.TIMED_OUT: f"stopped after {job.spec.running_minutes:g} minutes, the most that it may run",
        }
        return result.model_copy(update={"outcome": outcome, "reason": why.get(outcome, result.reason)})
    return result


def _look_at_merge(station: Station, connection: sa.Connection, pull_id: int) -> None:
    pull = pulls.get(connection, pull_id)
    if stored_policy(connection, station.forge_name, pull.repo, pull.number).ci.merge.automatic:
        ask(station, connection, Asked(repo=pull.repo, number=pull.number))
