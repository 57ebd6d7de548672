"""The commands about CI, inside the transaction that runs all commands of a comment."""

from __future__ import annotations

import sqlalchemy as sa

from ci_dispatch.model import Outcome
from ci_dispatch.rerun import BY_ITSELF
from service.events.ci_replies import JobLine
from service.events.commands import CiCancel, CiRetry, CiRun, CiStatus
from service.events.intents import RunCommand
from service.forge.base import PullState
from service.policy import Policy
from service.store import jobs
from service.store.jobs import StoredJob
from service.store.pulls import Pull
from service.worker.ci.asked import Asked, ask, replies_of
from service.worker.station import Station

CiCommand = CiRun | CiRetry | CiCancel | CiStatus


def answer(
    station: Station,
    connection: sa.Connection,
    intent: RunCommand,
    state: PullState,
    pull: Pull,
    policy: Policy | None,
) -> str:
    """What is said to a command about CI, which is then done or under way. `policy` is None where none was read yet."""
    replies = replies_of(policy or Policy())
    if policy is not None and policy.ci.mode == "off":
        return replies.off()
    asked = Asked(repo=state.repo, number=state.number, to=f"comment:{intent.comment_id}")
    match intent.command:
        case CiRun(jobs=names):
            ask(station, connection, asked.model_copy(update={"jobs": names, "again": True}))
            return replies.asked(state.head_sha, names)
        case CiRetry():
            ended = [one.ended for one in newest(connection, pull, state)]
            if all(outcome in (None, Outcome.PASSED, *BY_ITSELF) for outcome in ended):
                return replies.nothing_again(state.head_sha)
            ask(station, connection, asked.model_copy(update={"retry": True}))
            return replies.asked_again(state.head_sha)
        case CiCancel():
            return replies.stopped(len(jobs.cancel_pull(connection, pull.id, station.clock())))
        case CiStatus():
            return replies.status(state.head_sha, [_line(one) for one in newest(connection, pull, state)])
    raise TypeError(f"{type(intent.command).__name__} is no command about CI")


def newest(connection: sa.Connection, pull: Pull, state: PullState) -> list[StoredJob]:
    """The newest attempt at each job of the head, in the order in which the jobs were first asked for."""
    return list(jobs.newest(jobs.of_pull(connection, pull.id, state.head_sha)).values())


def _line(job: StoredJob) -> JobLine:
    return JobLine(job.name, job.outcome or job.state, job.attempt, job.reason)
