"""Whether a pull request may be merged now, and what a forge's refusal means. Pure; the merge itself pins the head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ci_dispatch.gate import Decision
from ci_dispatch.model import Frozen, Outcome
from ci_dispatch.policy import CiPolicy
from ci_dispatch.reasons import Reason, Why, give, sentence, short


@dataclass(frozen=True, slots=True)
class Result:
    """How a required job, or a workflow in native mode, ended. `outcome` is None while it has none; "skipped" where no
    path of the job changed. `base_sha` is the base that it was planned against."""

    name: str
    head_sha: str
    base_sha: str
    outcome: Outcome | Literal["skipped", "failed"] | None


@dataclass(frozen=True, slots=True)
class MergeCase:
    """A pull request as it is now. `decision` is the gate's, made now too. `results` are the newest of each job."""

    head_sha: str
    base_sha: str
    is_open: bool
    draft: bool
    mergeable: bool | None
    decision: Decision
    results: tuple[Result, ...] = ()


class MergeDecision(Frozen):
    """`merge`: merge this head and no other. `wait`: it may become so without anybody's doing. `no`: it will not."""

    action: Literal["merge", "wait", "no"]
    reason: Reason
    head_sha: str


def decide_merge(case: MergeCase, policy: CiPolicy) -> MergeDecision:
    """Merge where policy says so, the head is qualified and everything required of it has passed or is skipped."""

    def answer(action: Literal["merge", "wait", "no"], why: Why, **data: object) -> MergeDecision:
        reason = give(why, head=short(case.head_sha), **data)
        return MergeDecision(action=action, reason=reason, head_sha=case.head_sha)

    if policy.mode == "off" or not policy.merge.automatic:
        return answer("no", Why.MERGE_OFF)
    if not case.is_open:
        return answer("no", Why.MERGE_CLOSED)
    if case.draft:
        return answer("no", Why.MERGE_DRAFT)
    decision = case.decision
    if decision.head_sha != case.head_sha:
        return answer("no", Why.MERGE_HEAD_MOVED)
    if not decision.qualified:
        return answer("no", Why.MERGE_UNQUALIFIED, reason=sentence(decision.reason))
    if case.mergeable is False:
        return answer("no", Why.CONFLICT)
    required, found = _required(case, policy)
    if not required:
        return answer("no", Why.MERGE_NOTHING_REQUIRED)
    waiting = ""
    for name in required:
        result = found.get(name)
        if result is None or result.outcome is None:
            waiting = waiting or name
        elif result.outcome not in (Outcome.PASSED, "skipped"):
            return answer("no", Why.MERGE_FAILED, job=name, outcome=result.outcome)
        elif policy.tree == "merge" and result.base_sha != case.base_sha:
            tested = short(result.base_sha)
            return answer("no", Why.MERGE_BASE_MOVED, job=name, tested=tested, base=short(case.base_sha))
    if waiting:
        return answer("wait", Why.MERGE_WAITS, job=waiting)
    if case.mergeable is None:
        return answer("wait", Why.MERGE_UNKNOWN)
    return answer("merge", Why.MERGE_READY)


def judge_merge_refusal(status: int, problem: str, head_sha: str) -> Reason:
    """Why a merge that was pinned to this head did not happen: 409 says that the head moved, which voids all of it."""
    if status == 409:
        return give(Why.MERGE_HEAD_MOVED, head=short(head_sha))
    return give(Why.MERGE_REFUSED, head=short(head_sha), problem=" ".join(problem.split()))


def _required(case: MergeCase, policy: CiPolicy) -> tuple[tuple[str, ...], Mapping[str, Result]]:
    """The names that must have passed, and what is known of them for this head alone."""
    found = {one.name: one for one in case.results if one.head_sha == case.head_sha}
    if policy.mode == "runner":
        return tuple(job.name for job in policy.jobs if job.required), found
    named = policy.native.workflow.rpartition("/")[2]
    # Results of native mode are named by `native.native_states`, by file.
    return (named,) if named else tuple(sorted(found)), found
