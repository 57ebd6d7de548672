"""The forge's own workflow, where `mode` is native: what to do with its runs for the head. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from ci_dispatch.model import Frozen
from ci_dispatch.policy import NativePolicy
from ci_dispatch.reasons import Reason, Why, give, short

EVENT = "pull_request"

_FOLDER = ".github/workflows/"
_PASSED = ("success", "neutral")
_FAILED = ("failure", "timed_out")
_FIRST_WAIT = 30.0
_LONGEST_WAIT = 900.0
_TRIES = 8


@dataclass(frozen=True, slots=True)
class WorkflowRun:
    """A run as the forge lists it. `path` is the workflow's file; `conclusion` is None until it is completed."""

    id: int
    event: str
    head_sha: str
    status: str
    conclusion: str | None
    created_at: datetime
    attempt: int
    path: str


class NativeAction(Frozen):
    """What to do about one workflow. `run_id` is 0 where there is no run; `tell` is answered in a comment."""

    kind: Literal["nothing", "approve", "rerun", "rerun_failed", "tell"]
    reason: Reason
    run_id: int = 0


def plan_native(
    runs: Iterable[WorkflowRun], head_sha: str, policy: NativePolicy, now: datetime
) -> tuple[NativeAction, ...]:
    """One action for each workflow that ran for the head, or is named in the policy: its newest run decides.

    Never empty. `now` is the forge's time, or close to it.
    """
    newest = _newest(runs, head_sha, policy)
    if not newest:
        workflow = policy.workflow or "a workflow for pull requests"
        return (
            NativeAction(kind="tell", reason=give(Why.RUN_NONE, workflow=workflow, head=short(head_sha))),
        )
    return tuple(_act(newest[file], policy, now) for file in sorted(newest))


def judge_refusal(status: int, tries: int) -> Literal["done"] | float | None:
    """What a refusal of an approval or of a rerun means after so many tries.

    "done": the run is active already (409). A number: seconds after which to list the runs and plan again, as 403 also
    comes for a run that somebody else just started, or is not ready yet. None: it stays refused.
    """
    if status == 409:
        return "done"
    if status == 403 and tries < _TRIES:
        return float(min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** max(tries - 1, 0)))
    return None


def native_states(
    runs: Iterable[WorkflowRun], head_sha: str, policy: NativePolicy
) -> Mapping[str, Literal["passed", "failed", "waiting"]]:
    """How the workflows stand for the head, by file name: what a merge waits for in this mode."""
    return {_file(run): _state(run) for run in _newest(runs, head_sha, policy).values()}


def _newest(runs: Iterable[WorkflowRun], head_sha: str, policy: NativePolicy) -> dict[str, WorkflowRun]:
    """By file. Closing and reopening a pull request makes another run of the same commit."""
    newest: dict[str, WorkflowRun] = {}
    for run in sorted(runs, key=lambda one: (one.created_at, one.id)):
        wanted = policy.workflow in ("", _file(run), f"{_FOLDER}{_file(run)}")
        if wanted and run.event == EVENT and run.head_sha == head_sha:
            newest[_file(run)] = run
    return newest


def _file(run: WorkflowRun) -> str:
    """Its name in the one folder that workflows are in; a branch may follow the path after an @."""
    return run.path.partition("@")[0].removeprefix(_FOLDER)


def _state(run: WorkflowRun) -> Literal["passed", "failed", "waiting"]:
    if run.status != "completed" or run.conclusion == "action_required":
        return "waiting"
    return "passed" if run.conclusion in _PASSED else "failed"


def _act(run: WorkflowRun, policy: NativePolicy, now: datetime) -> NativeAction:
    data = {"workflow": _file(run), "head": short(run.head_sha), "id": run.id}
    approvable = "action_required" in (run.status, run.conclusion)
    if run.status != "completed" and not approvable:
        return NativeAction(kind="nothing", reason=give(Why.RUN_ACTIVE, **data), run_id=run.id)
    if run.conclusion in _PASSED:
        return NativeAction(kind="nothing", reason=give(Why.RUN_SUCCESSFUL, **data), run_id=run.id)
    if now - run.created_at > timedelta(days=policy.max_age_days):
        reason = give(Why.RUN_TOO_OLD, **data, days=f"{policy.max_age_days:g}")
        return NativeAction(kind="tell", reason=reason, run_id=run.id)
    if approvable:
        return NativeAction(kind="approve", reason=give(Why.RUN_WAITS, **data), run_id=run.id)
    if run.conclusion == "startup_failure":
        return NativeAction(kind="tell", reason=give(Why.RUN_BROKEN, **data), run_id=run.id)
    reason = give(Why.RUN_FAILED, **data, conclusion=run.conclusion)
    kind: Literal["rerun_failed", "rerun"] = "rerun_failed" if run.conclusion in _FAILED else "rerun"
    return NativeAction(kind=kind, reason=reason, run_id=run.id)
