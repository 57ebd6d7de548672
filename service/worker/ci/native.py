"""CI of the forge's own: approves or re-runs its workflows, and says what is missing."""

from __future__ import annotations

import logging

from ci_dispatch.native import NativeAction, judge_refusal, plan_native
from ci_dispatch.reasons import Reason
from service.forge.base import ForgeError, PullState
from service.policy import Policy
from service.publisher.effects import Effect, Reply
from service.worker.ci.asked import Asked, replies_of
from service.worker.station import Station

log = logging.getLogger(__name__)


def run_native(
    station: Station, state: PullState, policy: Policy, asked: Asked, tries: int
) -> tuple[Effect, ...]:
    """Brings the head's workflows under way; returns what is to be said.

    Doing it twice does it once: a run that is active is left alone. Raises `ForgeError` with the time after which to
    try again.
    """
    runs = station.forge.workflow_runs(state.repo, state.head_sha)
    told: list[Reason] = []
    for action in plan_native(runs, state.head_sha, policy.ci.native, station.clock()):
        if action.kind == "tell":
            told.append(action.reason)
        elif action.kind != "nothing":
            _act(station, state.repo, action, tries)
    if not told:
        return ()
    body = replies_of(policy).told(told)
    # Unasked it is said once for each head.
    unasked = Reply(repo=state.repo, number=state.number, to=f"native:{state.head_sha[:12]}", body=body)
    return asked.reply(body) or (unasked,)


def _act(station: Station, repo: str, action: NativeAction, tries: int) -> None:
    try:
        if action.kind == "approve":
            station.forge.approve_workflow(repo, action.run_id)
        else:
            station.forge.rerun_workflow(repo, action.run_id, failed_only=action.kind == "rerun_failed")
    except ForgeError as error:
        wait = judge_refusal(error.status, tries)
        if wait == "done":
            log.info("%s: run %s is active already", repo, action.run_id)
        elif isinstance(wait, float):
            raise ForgeError(
                error.problem, error.remedy, status=error.status, retry_after=wait, counted=True
            ) from error
        else:
            raise
