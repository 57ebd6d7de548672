"""What is done about the forge's own workflow runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_dispatch.native import WorkflowRun, judge_refusal, native_states, plan_native
from ci_dispatch.policy import NativePolicy
from ci_dispatch.reasons import Why, sentence

HEAD, OTHER = "a" * 40, "b" * 40
NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
ANY = NativePolicy()


def run(
    status: str = "completed", conclusion: str | None = None, days: float = 1, **more: object
) -> WorkflowRun:
    values = {
        "id": 7,
        "event": "pull_request",
        "head_sha": HEAD,
        "created_at": NOW - timedelta(days=days),
        "attempt": 1,
        "path": ".github/workflows/ci.yml",
        **more,
    }
    return WorkflowRun(status=status, conclusion=conclusion, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "kind", "why"),
    [
        (run("queued"), "nothing", Why.RUN_ACTIVE),
        (run("in_progress"), "nothing", Why.RUN_ACTIVE),
        (run("pending"), "nothing", Why.RUN_ACTIVE),
        (run("requested"), "nothing", Why.RUN_ACTIVE),
        # For a deployment's reviewers, not for us.
        (run("waiting"), "nothing", Why.RUN_ACTIVE),
        (run(conclusion="success"), "nothing", Why.RUN_SUCCESSFUL),
        (run(conclusion="neutral"), "nothing", Why.RUN_SUCCESSFUL),
        (run(conclusion="success", days=200), "nothing", Why.RUN_SUCCESSFUL),
        (run(conclusion="action_required"), "approve", Why.RUN_WAITS),
        (run("action_required"), "approve", Why.RUN_WAITS),
        (run(conclusion="failure"), "rerun_failed", Why.RUN_FAILED),
        (run(conclusion="timed_out"), "rerun_failed", Why.RUN_FAILED),
        (run(conclusion="cancelled"), "rerun", Why.RUN_FAILED),
        (run(conclusion="stale"), "rerun", Why.RUN_FAILED),
        (run(conclusion="skipped"), "rerun", Why.RUN_FAILED),
        (run(conclusion="startup_failure"), "tell", Why.RUN_BROKEN),
        (run(conclusion="failure", days=31), "tell", Why.RUN_TOO_OLD),
        (run(conclusion="action_required", days=31), "tell", Why.RUN_TOO_OLD),
        (run(conclusion="failure", days=30), "rerun_failed", Why.RUN_FAILED),
    ],
    ids=lambda value: f"{value.status}-{value.conclusion}" if isinstance(value, WorkflowRun) else None,
)
def test_a_run_is_judged_by_how_it_stands(seen: WorkflowRun, kind: str, why: Why) -> None:
    (action,) = plan_native([seen], HEAD, ANY, NOW)
    assert (action.kind, action.reason.why, action.run_id) == (kind, why, 7)
    assert sentence(action.reason)


@pytest.mark.parametrize(
    "seen",
    [
        run(conclusion="success", head_sha=OTHER),
        run(conclusion="success", event="push"),
        run(conclusion="success", event="pull_request_target"),
        run(conclusion="success", event="workflow_dispatch"),
    ],
    ids=["another head", "a push", "of the base", "by hand"],
)
def test_a_run_of_something_else_is_no_run_of_the_pull_request(seen: WorkflowRun) -> None:
    (action,) = plan_native([seen], HEAD, ANY, NOW)
    assert (action.kind, action.reason.why, action.run_id) == ("tell", Why.RUN_NONE, 0)
    assert native_states([seen], HEAD, ANY) == {}


@pytest.mark.parametrize("seen", [[], [run(conclusion="failure", days=40)]], ids=["none", "too old"])
def test_who_lacks_a_run_is_told_to_reopen_before_to_push(seen: list[WorkflowRun]) -> None:
    (action,) = plan_native(seen, HEAD, ANY, NOW)
    said = sentence(action.reason)
    assert said.index("Close and reopen") < said.index("push")
    assert "voids the approval" in said


def test_the_newest_run_of_a_workflow_decides() -> None:
    closed, reopened = run(conclusion="failure", days=3, id=1), run("in_progress", days=2, id=2)
    for order in ([closed, reopened], [reopened, closed]):
        (action,) = plan_native(order, HEAD, ANY, NOW)
        assert (action.kind, action.run_id) == ("nothing", 2)


def test_each_workflow_has_its_own_action() -> None:
    lint = run(conclusion="success", id=1, path=".github/workflows/lint.yml@main")
    smoke = run(conclusion="failure", id=2, path=".github/workflows/smoke.yml")
    actions = plan_native([smoke, lint], HEAD, ANY, NOW)
    assert [(one.kind, one.run_id) for one in actions] == [("nothing", 1), ("rerun_failed", 2)]
    assert native_states([smoke, lint], HEAD, ANY) == {"lint.yml": "passed", "smoke.yml": "failed"}


@pytest.mark.parametrize("named", ["smoke.yml", ".github/workflows/smoke.yml"])
def test_only_the_policys_workflow_is_looked_at(named: str) -> None:
    lint = run(conclusion="failure", id=1, path=".github/workflows/lint.yml")
    smoke = run(conclusion="action_required", id=2, path=".github/workflows/smoke.yml@refs/heads/main")
    policy = NativePolicy(workflow=named)
    (action,) = plan_native([lint, smoke], HEAD, policy, NOW)
    assert (action.kind, action.run_id) == ("approve", 2)
    assert native_states([lint, smoke], HEAD, policy) == {"smoke.yml": "waiting"}
    (missing,) = plan_native([lint], HEAD, policy, NOW)
    assert "no run of" in sentence(missing.reason)
    assert "smoke.yml" in sentence(missing.reason)


def test_the_age_is_the_policys() -> None:
    policy = NativePolicy(max_age_days=0.5)
    (action,) = plan_native([run(conclusion="failure")], HEAD, policy, NOW)
    assert (action.reason.why, action.reason.data["days"]) == (Why.RUN_TOO_OLD, "0.5")


def test_403_is_asked_again_later_and_409_is_no_failure() -> None:
    waits = [judge_refusal(403, tries) for tries in range(1, 10)]
    assert waits == [30, 60, 120, 240, 480, 900, 900, None, None]
    assert judge_refusal(409, 1) == "done"
    assert judge_refusal(404, 1) is None


@given(
    st.lists(
        st.builds(
            run,
            status=st.sampled_from(["queued", "in_progress", "completed", "waiting", "action_required"]),
            conclusion=st.sampled_from(
                [None, "success", "failure", "cancelled", "action_required", "startup_failure"]
            ),
            days=st.integers(0, 60),
            id=st.integers(1, 99),
            event=st.sampled_from(["pull_request", "push"]),
            head_sha=st.sampled_from([HEAD, OTHER]),
            path=st.sampled_from([".github/workflows/a.yml", ".github/workflows/b.yml"]),
        ),
        max_size=6,
        unique_by=lambda one: one.id,
    )
)
def test_only_runs_of_the_head_are_touched_and_each_workflow_once(runs: list[WorkflowRun]) -> None:
    actions = plan_native(runs, HEAD, ANY, NOW)
    ours = {one.id for one in runs if one.head_sha == HEAD and one.event == "pull_request"}
    assert actions
    assert {one.run_id for one in actions} <= ours | {0}
    assert len(actions) == max(1, len({one.path for one in runs if one.id in ours}))
