"""What a pull request shows of a run: a check a job, and one comment for all."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from ci_dispatch.model import Job, JobSpec
from ci_dispatch.plan import lacking
from ci_dispatch.reasons import Why, give
from ci_dispatch.report import CheckText, JobView, RunView, Writing, check, comment
from service.events.ci_replies import in_words
from service.forge.base import Button, Check
from service.policy import Policy
from service.publisher.effects import CheckPost, CiComment, Effect
from service.runner_api.files import CiFiles
from service.store import ci_shown, jobs, pulls
from service.store.ci_rows import JobState
from service.store.jobs import Run, StoredJob
from service.worker.ci.case import verdict_of
from service.worker.ci.history import inventories
from service.worker.ci.names import check_of
from service.worker.policy import stored_policy
from service.worker.station import Station
from service.writing import make_writing

_TAIL = 16_000


def effects_of(station: Station, connection: sa.Connection, run: Run) -> tuple[Effect, ...]:
    """All that is to stand of a run as it is now. The same run gives the same effects; the comment is of the newest run."""
    pull = pulls.get(connection, run.pull_id)
    policy = stored_policy(connection, station.forge_name, pull.repo, pull.number)
    writing = writing_of(policy)
    views = _views(station, connection, pull, policy, run)
    effects: list[Effect] = [
        CheckPost(repo=pull.repo, check=_check(station, run, view, check(view, writing))) for view in views
    ]
    if jobs.runs_of(connection, pull.id)[0].id == run.id:
        about = RunView(
            head_sha=run.head_sha,
            base_sha=run.base_sha,
            qualified=run.reason,
            warnings=_warnings(connection, pull, policy, run),
        )
        body = comment(about, views, writing)
        effects.append(CiComment(repo=pull.repo, number=pull.number, body=body))
    return tuple(effects)


def _warnings(connection: sa.Connection, pull: pulls.Pull, policy: Policy, run: Run) -> tuple[str, ...]:
    """What speaks against the head though it was started."""
    verdict = verdict_of(connection, pull, run.head_sha)
    if verdict is None or verdict.verdict != "BLOCKED":
        return ()
    warning = give(Why.BLOCKED_WARNING, head=run.head_sha[:12])
    return (in_words(warning, policy.review.language),)


def writing_of(policy: Policy) -> Writing:
    """How reports of CI are written under a policy."""
    return make_writing(policy.review.language, (policy.ci.gate.phrase,))


def _views(
    station: Station, connection: sa.Connection, pull: pulls.Pull, policy: Policy, run: Run
) -> list[JobView]:
    """Each job's newest attempt, and those that were skipped, in the policy's order."""
    newest = jobs.newest(jobs.of_run(connection, run.id))
    wanted = {name: jobs.job_of(connection, one.id) for name, one in newest.items()}
    waiting = [wanted[name] for name, one in newest.items() if one.state is JobState.QUEUED]
    offered = inventories(connection, station.clock()) if waiting else ()
    reasons = {one.name: one.reason for one in lacking(waiting, offered)}
    views = {name: _view(station, connection, wanted[name], one, reasons) for name, one in newest.items()}
    specs = {spec.name: spec for spec in policy.ci.jobs}
    for name, why in run.skipped:
        if name not in views and name in specs:
            views[name] = JobView(_skipped(pull, run, specs[name]), "skipped", reason=why)
    order = {name: place for place, name in enumerate(specs)}
    return sorted(views.values(), key=lambda view: order.get(view.job.spec.name, len(order)))


def _view(
    station: Station, connection: sa.Connection, job: Job, stored: StoredJob, reasons: Mapping[str, str]
) -> JobView:
    if stored.state is JobState.FINISHED:
        return JobView(job, "done", jobs.result_of(connection, stored.id))
    if stored.state is JobState.QUEUED:
        return JobView(job, "waiting", reason=reasons.get(job.spec.name, ""))
    tail = CiFiles(station.data).read_log(stored.id, -_TAIL).decode(errors="replace")
    step = ci_shown.step_of(connection, stored.id)
    return JobView(job, "running", step=step, log_tail=tail)


def _skipped(pull: pulls.Pull, run: Run, spec: JobSpec) -> Job:
    return Job(repo=pull.repo, number=pull.number, head_sha=run.head_sha, base_sha=run.base_sha, spec=spec)


def _check(station: Station, run: Run, view: JobView, text: CheckText) -> Check:
    return Check(
        name=check_of(view.job.spec.name),
        head_sha=run.head_sha,
        status=text.status,
        conclusion=text.conclusion,
        title=text.title,
        summary=text.summary,
        text=text.text,
        buttons=tuple(Button(one.label, one.description, one.identifier) for one in text.actions),
        details_url=station.public_url,
    )
