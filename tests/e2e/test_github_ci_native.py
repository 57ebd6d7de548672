"""GitHub's own workflows, with `mode: native`: approved, run again, or asked for in a comment; and merging after them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.github_ci import NATIVE, GitHubCi
from tests.kit.github_service import github_service
from tests.standin.github import GitHub, Pull, Repo
from tests.standin.github.state import WorkflowRun

MERGING = "ci: {mode: native, merge: {automatic: true}}\n"


@pytest.fixture
def ci(hub: GitHub, cache: Repo, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[GitHubCi]:
    with github_service(tmp_path, hub, cache, merging=True) as service:
        ci = GitHubCi(service, getattr(request, "param", NATIVE))
        yield ci
        ci.settle()
        ci.look()


def run_of(ci: GitHubCi, pull: Pull, conclusion: str | None, status: str = "completed") -> WorkflowRun:
    return ci.repo.workflow_run("Build", pull.head_sha, status=status, conclusion=conclusion)


@pytest.mark.parametrize(
    ("status", "conclusion", "done"),
    [
        ("completed", "action_required", ["approve"]),
        ("completed", "failure", ["failed"]),
        ("completed", "cancelled", ["all"]),
        ("in_progress", None, []),
        ("completed", "success", []),
    ],
)
def test_a_word_brings_the_run_of_the_head_under_way(
    ci: GitHubCi, status: str, conclusion: str | None, done: list[str]
) -> None:
    pull = ci.open(author="fay", fork=True)
    run = run_of(ci, pull, conclusion, status)
    older = ci.repo.workflow_run("Build", ci.repo.sha("main"), conclusion="failure")
    assert run.reruns == []
    ci.say(pull, "bob")
    assert run.reruns == done
    ci.say(pull, "bob", "That was all.")
    ci.read_through()
    assert (run.reruns, older.reruns) == (done, [])
    assert ci.answers(pull) == []


def test_without_a_run_it_is_said_once_how_to_get_one(ci: GitHubCi) -> None:
    pull = ci.open()
    ci.review(pull, "bob")
    (answer,) = ci.answers(pull)
    assert "lose and reopen" in answer
    ci.review(pull, "bob")
    ci.read_through()
    assert ci.answers(pull) == [answer]


def test_closing_and_reopening_as_told_gets_a_run_that_is_then_brought_under_way(ci: GitHubCi) -> None:
    pull = ci.open()
    ci.say(pull, "bob")
    ci.hub.pass_time(2)
    pull.close()
    ci.settle()
    ci.hub.pass_time(2)
    run = run_of(ci, pull, "action_required")
    pull.reopen()
    ci.settle()
    assert run.reruns == ["approve"]


def test_a_run_of_too_long_ago_is_told_and_left(ci: GitHubCi) -> None:
    pull = ci.open()
    run = run_of(ci, pull, "failure")
    ci.clock.forward(40 * 24 * 3600)
    ci.say(pull, "bob")
    assert run.reruns == []
    assert "days old" in ci.answers(pull)[0]


def test_a_word_that_does_not_count_touches_no_run(ci: GitHubCi) -> None:
    pull = ci.open(author="fay", fork=True)
    run = run_of(ci, pull, "action_required")
    ci.say(pull, "eve")
    ci.say(pull, "fay", "/ci run")
    ci.review(pull, ci.service.login, "COMMENTED", body="lgtm ready to ci")
    assert run.reruns == []


def test_a_run_that_github_refuses_for_now_is_tried_again_later_and_later(ci: GitHubCi) -> None:
    pull = ci.open()
    run = run_of(ci, pull, "failure")
    refused = ci.hub.fail(
        "POST /repos/*/*/actions/runs/*/rerun-failed-jobs", 403, 4, message="It cannot be run now"
    )
    ci.say(pull, "bob")
    assert refused.hits == 1
    waits = []
    for _ in range(3):
        hits, waited = refused.hits, 0
        while refused.hits == hits and waited < 600:
            ci.settle(5)
            waited += 5
        waits.append(waited)
    assert waits == sorted(waits)
    assert waits[-1] > waits[0]
    ci.settle(1800)
    assert run.reruns == ["failed"]


def test_a_run_that_somebody_else_just_started_is_done(ci: GitHubCi) -> None:
    pull = ci.open()
    run = run_of(ci, pull, "failure")
    ci.hub.fail("POST /repos/*/*/actions/runs/*/rerun-failed-jobs", 409, 100)
    ci.say(pull, "bob")
    ci.settle(3600)
    assert run.reruns == []
    assert not [one for one in ci.service.unsettled() if "ci_gate" in one or "409" in one]


def test_a_rerun_whose_answer_is_lost_is_not_made_twice(ci: GitHubCi) -> None:
    pull = ci.open()
    run = run_of(ci, pull, "failure")
    ci.hub.fail("POST /repos/*/*/actions/runs/*/rerun-failed-jobs", drop="after")
    ci.say(pull, "bob")
    ci.settle(3600)
    assert run.reruns == ["failed"]


@pytest.mark.parametrize("ci", [MERGING], indirect=True)
class TestMerging:
    def test_it_is_merged_once_its_workflows_have_passed(self, ci: GitHubCi) -> None:
        pull = ci.open()
        run = run_of(ci, pull, "action_required")
        ci.say(pull, "bob")
        assert not pull.state.merged_at
        ci.repo.finish_run(run)
        ci.settle()
        assert pull.state.merged_at
        assert pull.state.merged_by is not None
        assert pull.state.merged_by.login == ci.service.login

    def test_not_after_one_that_failed(self, ci: GitHubCi) -> None:
        pull = ci.open()
        run = run_of(ci, pull, "action_required")
        ci.say(pull, "bob")
        ci.repo.finish_run(run, "failure")
        ci.read_through()
        assert not pull.state.merged_at

    def test_not_without_a_word_for_this_head(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.say(pull, "bob")
        ci.push(pull)
        run_of(ci, pull, "success")
        ci.read_through()
        assert not pull.state.merged_at
