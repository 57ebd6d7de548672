"""Merging a pull request once everything required has passed for the head that was qualified."""

from __future__ import annotations

import logging

from ci_dispatch.gate import Decision
from ci_dispatch.merge import MergeCase, Result, decide_merge, judge_merge_refusal
from ci_dispatch.model import Outcome
from ci_dispatch.native import native_states
from ci_dispatch.reasons import sentence
from service.forge.base import ForgeError, PullState
from service.policy import Policy
from service.store import audit, jobs, pulls
from service.worker.station import Station

log = logging.getLogger(__name__)


def merge_tested(
    station: Station, pull: pulls.Pull, state: PullState, policy: Policy, decision: Decision
) -> None:
    """Merges where the policy says so and our own jobs have passed."""
    if not policy.ci.merge.automatic:
        return
    with station.database.read() as connection:
        runs = jobs.runs_of(connection, pull.id)
        run = next((one for one in runs if one.head_sha == state.head_sha), None)
        newest = jobs.newest(jobs.of_run(connection, run.id)) if run is not None else {}
    if run is None:
        return
    results = {name: Result(name, run.head_sha, run.base_sha, "skipped") for name, _ in run.skipped}
    for name, one in newest.items():
        results[name] = Result(name, run.head_sha, run.base_sha, one.ended)
    _merge(station, state, policy, decision, tuple(results.values()))


def merge_native(station: Station, state: PullState, policy: Policy, decision: Decision) -> None:
    """Merges where the policy says so and the forge's own workflows have passed."""
    if not policy.ci.merge.automatic:
        return
    runs = station.forge.workflow_runs(state.repo, state.head_sha)
    outcomes = {"passed": Outcome.PASSED, "waiting": None, "failed": "failed"}
    results = tuple(
        Result(name, state.head_sha, state.base_sha, outcomes[how])  # type: ignore[arg-type]
        for name, how in native_states(runs, state.head_sha, policy.ci.native).items()
    )
    _merge(station, state, policy, decision, results)


def _merge(
    station: Station, state: PullState, policy: Policy, decision: Decision, results: tuple[Result, ...]
) -> None:
    """Nothing is merged but the head that was qualified: the forge refuses any other. Raises `ForgeError` for what may pass."""
    case = MergeCase(
        head_sha=state.head_sha,
        base_sha=state.base_sha,
        is_open=state.state == "open",
        draft=state.draft,
        mergeable=station.forge.mergeable(state.repo, state.number),
        decision=decision,
        results=results,
    )
    answer = decide_merge(case, policy.ci)
    name = f"{state.repo}#{state.number}"
    log.info("%s: %s", name, sentence(answer.reason))
    if answer.action != "merge":
        return
    reason = answer.reason
    try:
        station.forge.merge(state.repo, state.number, decision.head_sha, policy.ci.merge.method)
    except ForgeError as error:
        if station.forge.pull(state.repo, state.number).merged:
            return
        if error.retry_after is not None:
            raise
        reason = judge_merge_refusal(error.status, error.problem, decision.head_sha)
        log.warning("%s: %s", name, sentence(reason))
    with station.database.write() as connection:
        action = "merged" if reason is answer.reason else "could not merge"
        audit.record(connection, station.clock(), station.owner, action, name, reason.model_dump(mode="json"))
