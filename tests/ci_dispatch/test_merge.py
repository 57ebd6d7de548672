"""When a pull request is merged by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ci_dispatch.gate import Decision
from ci_dispatch.merge import MergeCase, MergeDecision, Result, decide_merge, judge_merge_refusal
from ci_dispatch.model import JobSpec, Outcome, Step
from ci_dispatch.policy import CiPolicy, MergePolicy, NativePolicy
from ci_dispatch.reasons import Reason, Why, give, sentence

HEAD, BASE, OTHER = "a" * 40, "b" * 40, "c" * 40
YES = Decision(qualified=True, head_sha=HEAD, reason=give(Why.APPROVED, login="bob", head=HEAD[:12], id=1))
NO = Decision(qualified=False, head_sha=HEAD, reason=give(Why.NOBODY, head=HEAD[:12], phrase="ship it"))


def job(name: str, required: bool = True) -> JobSpec:
    return JobSpec(name=name, required=required, steps=(Step(name="build", argv=("make",), timeout=60),))


POLICY = CiPolicy(
    mode="runner",
    merge=MergePolicy(automatic=True),
    jobs=(job("smoke"), job("perf"), job("extra", required=False)),
)


def result(name: str, outcome: Outcome | str | None = Outcome.PASSED, **more: str) -> Result:
    return Result(name, more.get("head", HEAD), more.get("base", BASE), outcome)  # type: ignore[arg-type]


GREEN = MergeCase(
    head_sha=HEAD,
    base_sha=BASE,
    is_open=True,
    draft=False,
    mergeable=True,
    decision=YES,
    results=(result("smoke"), result("perf", "skipped"), result("extra", Outcome.CODE)),
)


def test_what_is_qualified_and_green_is_merged_at_its_head() -> None:
    decision = decide_merge(GREEN, POLICY)
    assert (decision.action, decision.head_sha, decision.reason.why) == ("merge", HEAD, Why.MERGE_READY)


@pytest.mark.parametrize(
    ("case", "action", "why"),
    [
        (replace(GREEN, is_open=False), "no", Why.MERGE_CLOSED),
        (replace(GREEN, draft=True), "no", Why.MERGE_DRAFT),
        (replace(GREEN, decision=NO), "no", Why.MERGE_UNQUALIFIED),
        (replace(GREEN, head_sha=OTHER), "no", Why.MERGE_HEAD_MOVED),
        (replace(GREEN, mergeable=False), "no", Why.CONFLICT),
        (replace(GREEN, mergeable=None), "wait", Why.MERGE_UNKNOWN),
        (replace(GREEN, results=(result("smoke"),)), "wait", Why.MERGE_WAITS),
        (replace(GREEN, results=(result("smoke"), result("perf", None))), "wait", Why.MERGE_WAITS),
        (replace(GREEN, results=(result("smoke"), result("perf", head=OTHER))), "wait", Why.MERGE_WAITS),
        *(
            (replace(GREEN, results=(result("smoke"), result("perf", outcome))), "no", Why.MERGE_FAILED)
            for outcome in Outcome
            if outcome is not Outcome.PASSED
        ),
        # One that failed is told before one that is not there yet.
        (replace(GREEN, results=(result("perf", Outcome.CODE),)), "no", Why.MERGE_FAILED),
    ],
)
def test_anything_else_is_not_merged_and_says_why(case: MergeCase, action: str, why: Why) -> None:
    decision = decide_merge(case, POLICY)
    assert (decision.action, decision.reason.why) == (action, why)
    assert sentence(decision.reason).endswith(".")
    assert MergeDecision.model_validate_json(decision.model_dump_json()) == decision


def test_a_decision_for_an_older_head_merges_nothing() -> None:
    moved = replace(GREEN, head_sha=OTHER, results=(result("smoke", head=OTHER), result("perf", head=OTHER)))
    assert decide_merge(moved, POLICY).action == "no"


@pytest.mark.parametrize(
    "policy",
    [
        POLICY.model_copy(update={"merge": MergePolicy()}),
        POLICY.model_copy(update={"mode": "off"}),
    ],
    ids=["not automatic", "off"],
)
def test_people_merge_where_the_policy_does_not_say_so(policy: CiPolicy) -> None:
    assert decide_merge(GREEN, policy).reason.why is Why.MERGE_OFF


def test_nothing_required_is_nothing_that_speaks_for_it() -> None:
    policy = POLICY.model_copy(update={"jobs": (job("extra", required=False),)})
    assert decide_merge(GREEN, policy).reason.why is Why.MERGE_NOTHING_REQUIRED


def test_a_merge_that_was_tested_into_another_base_is_not_what_would_be_merged() -> None:
    moved = replace(GREEN, results=(result("smoke"), result("perf", base=OTHER)))
    decision = decide_merge(moved, POLICY.model_copy(update={"tree": "merge"}))
    assert (decision.action, decision.reason.why) == ("no", Why.MERGE_BASE_MOVED)
    assert decide_merge(moved, POLICY).action == "merge"


@pytest.mark.parametrize(
    ("named", "outcome", "why"),
    [
        ("ci.yml", Outcome.PASSED, Why.MERGE_READY),
        (".github/workflows/ci.yml", Outcome.PASSED, Why.MERGE_READY),
        ("", Outcome.PASSED, Why.MERGE_READY),
        ("ci.yml", "failed", Why.MERGE_FAILED),
        ("ci.yml", None, Why.MERGE_WAITS),
        ("other.yml", Outcome.PASSED, Why.MERGE_WAITS),
    ],
)
def test_in_native_mode_the_workflow_is_what_is_required(
    named: str, outcome: Outcome | str | None, why: Why
) -> None:
    policy = CiPolicy(mode="native", native=NativePolicy(workflow=named), merge=MergePolicy(automatic=True))
    assert decide_merge(replace(GREEN, results=(result("ci.yml", outcome),)), policy).reason.why is why
    assert decide_merge(replace(GREEN, results=()), policy).action != "merge"


def test_a_refusal_is_told_and_409_is_a_moved_head() -> None:
    assert judge_merge_refusal(409, "Head branch was modified", HEAD).why is Why.MERGE_HEAD_MOVED
    refused = judge_merge_refusal(405, "Pull Request is not\nmergeable", HEAD)
    assert sentence(refused) == "The forge refuses to merge aaaaaaaaaaaa: Pull Request is not mergeable"
    assert isinstance(refused, Reason)
