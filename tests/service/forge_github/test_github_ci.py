"""What CI asks of GitHub: workflow runs, edits, pushes, mergeability, the merge."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from ci_dispatch.native import judge_refusal, plan_native
from ci_dispatch.policy import NativePolicy
from service.forge.base import Edited, ForgeError, MergeMethod
from service.forge.github.forge import GitHubForge
from tests.service.forge_github.connect import Connect
from tests.standin.github import GitHub, Pull, Repo
from tests.standin.github.hub import PERMISSIONS
from tests.standin.github.state import App

Count = Callable[[str, str], int]
REPO = "acme/app"
RERUN = "POST /repos/*/*/actions/runs/*/*"


@pytest.fixture
def pull(repo: Repo) -> Pull:
    return repo.open_pull(files={"a.py": "x\n"})


@pytest.fixture
def merging(hub: GitHub, repo: Repo, connect: Connect) -> GitHubForge:
    """As an App that may also write contents."""
    app = hub.create_app("merger", permissions={**PERMISSIONS, "contents": "write"})
    hub.install(app, "acme")
    return connect.app(hub, app)


# Workflow runs


def test_runs_of_a_commit_are_listed_over_all_pages_the_newest_first(
    forge: GitHubForge, repo: Repo, pull: Pull, count: Count
) -> None:
    repo.workflow_run("Smoke test", repo.sha("main"), event="push")
    made = [repo.workflow_run("Smoke test", pull.head_sha, conclusion="failure") for _ in range(130)]
    seen = list(forge.workflow_runs(REPO, pull.head_sha))
    assert [one.id for one in seen] == [one.id for one in reversed(made)]
    assert count("GET", "/actions/runs") == 2
    first = seen[-1]
    assert (first.event, first.head_sha, first.status, first.conclusion, first.attempt, first.path) == (
        "pull_request", pull.head_sha, "completed", "failure", 1, ".github/workflows/smoke-test.yml",
    )  # fmt: skip
    assert first.created_at == made[0].created_at


def test_runs_of_a_forks_head_are_found_by_its_commit(forge: GitHubForge, repo: Repo) -> None:
    forked = repo.open_pull(author="eve", files={"a.py": "y\n"}, fork=True)
    waiting = repo.workflow_run("CI", forked.head_sha, conclusion="action_required")
    (seen,) = forge.workflow_runs(REPO, forked.head_sha)
    (action,) = plan_native([seen], forked.head_sha, NativePolicy(), datetime.now(UTC))
    assert (action.kind, action.run_id) == ("approve", waiting.id)
    forge.approve_workflow(REPO, action.run_id)
    assert (waiting.reruns, waiting.status) == (["approve"], "queued")


@pytest.mark.parametrize(("failed_only", "asked"), [(True, "failed"), (False, "all")])
def test_a_run_is_run_again_once_and_then_active(
    forge: GitHubForge, repo: Repo, pull: Pull, failed_only: bool, asked: str
) -> None:
    failed = repo.workflow_run("CI", pull.head_sha, conclusion="failure")
    forge.rerun_workflow(REPO, failed.id, failed_only)
    assert failed.reruns == [asked]
    (seen,) = forge.workflow_runs(REPO, pull.head_sha)
    assert (seen.status, seen.conclusion, seen.attempt) == ("queued", None, 2)
    with pytest.raises(ForgeError, match="already running") as refused:
        forge.rerun_workflow(REPO, failed.id, failed_only)
    assert (refused.value.status, refused.value.retry_after) == (409, None)
    assert judge_refusal(refused.value.status, 1) == "done"
    assert failed.reruns == [asked]


def test_409_is_active_too(forge: GitHubForge, hub: GitHub, repo: Repo, pull: Pull) -> None:
    failed = repo.workflow_run("CI", pull.head_sha, conclusion="failure")
    hub.fail(RERUN, 409)
    with pytest.raises(ForgeError) as refused:
        forge.rerun_workflow(REPO, failed.id, False)
    assert judge_refusal(refused.value.status, 1) == "done"


def test_403_says_when_to_look_again(forge: GitHubForge, hub: GitHub, repo: Repo, pull: Pull) -> None:
    failed = repo.workflow_run("CI", pull.head_sha, conclusion="failure")
    hub.fail(RERUN, 403, message="Unable to retry this workflow run because it was created over a month ago")
    with pytest.raises(ForgeError, match="over a month ago") as refused:
        forge.rerun_workflow(REPO, failed.id, True)
    assert (refused.value.status, refused.value.retry_after is not None) == (403, True)
    assert failed.reruns == []
    with pytest.raises(ForgeError) as refused:
        forge.approve_workflow(REPO, failed.id)
    assert (refused.value.status, refused.value.retry_after is not None) == (403, True)


def test_a_missing_permission_is_no_matter_of_time(
    hub: GitHub, repo: Repo, pull: Pull, connect: Connect
) -> None:
    poor: App = hub.create_app("poor", permissions={"pull_requests": "write"})
    hub.install(poor, "acme")
    failed = repo.workflow_run("CI", pull.head_sha, conclusion="failure")
    with pytest.raises(ForgeError, match="grant Actions: write") as refused:
        connect.app(hub, poor).rerun_workflow(REPO, failed.id, True)
    assert (refused.value.status, refused.value.retry_after) == (403, None)
    repo.grant("reader", "read")
    with pytest.raises(ForgeError) as refused:
        connect.token(hub, "reader").approve_workflow(REPO, failed.id)
    assert (refused.value.status, refused.value.retry_after) == (403, None)


def test_a_rerun_whose_answer_is_lost_is_not_asked_for_again_blindly(
    forge: GitHubForge, hub: GitHub, repo: Repo, pull: Pull
) -> None:
    failed = repo.workflow_run("CI", pull.head_sha, conclusion="failure")
    hub.fail(RERUN, drop="after")
    with pytest.raises(ForgeError) as lost:
        forge.rerun_workflow(REPO, failed.id, False)
    assert lost.value.retry_after
    assert failed.reruns == ["all"]


# What the gate asks for


def test_edits_are_known_even_within_the_second_in_which_it_was_written(
    forge: GitHubForge, pull: Pull
) -> None:
    said, kept = pull.comment("bob", "thanks"), pull.comment("bob", "hm")
    reviewed, untouched = pull.review("bob", "COMMENTED", body="ok"), pull.review("bob", "APPROVED")
    assert forge.edited(REPO, 1) == Edited(frozenset(), frozenset())
    pull.edit_comment(said, "lgtm ready to ci", by="ada")
    pull.edit_review(reviewed, "lgtm ready to ci", by="ada")
    pull.dismiss(untouched, "ada")
    assert forge.edited(REPO, 1) == Edited(frozenset({said.id}), frozenset({reviewed.id}))
    assert len(pull.comments) == len(pull.reviews) == 2
    assert kept.updated_at == kept.created_at


def test_edits_are_found_on_every_page(forge: GitHubForge, pull: Pull, count: Count) -> None:
    made = [pull.comment("bob", f"number {number}") for number in range(120)]
    pull.edit_comment(made[3], "else")
    pull.edit_comment(made[117], "else")
    assert forge.edited(REPO, 1).comments == {made[3].id, made[117].id}
    assert count("POST", "/graphql") == 2
    assert len(pull.comments) == 120


def test_a_push_is_seen_by_the_check_suite_that_github_made_of_it(
    forge: GitHubForge, hub: GitHub, pull: Pull
) -> None:
    first = forge.push_seen(REPO, pull.head_sha, "topic")
    assert first is not None
    assert abs(first - datetime.now(UTC)) < timedelta(minutes=1)
    hub.pass_time(600)
    pushed = pull.push({"a.py": "z\n"})
    second = forge.push_seen(REPO, pushed, "topic")
    assert second is not None
    assert second - first >= timedelta(seconds=600)
    assert forge.push_seen(REPO, pull.state.base_sha, "topic") is None


def test_a_commit_that_was_pushed_elsewhere_before_was_not_seen_here(
    forge: GitHubForge, repo: Repo, pull: Pull
) -> None:
    elsewhere = repo.push("quiet", {"a.py": "evil\n"})
    assert forge.push_seen(REPO, elsewhere, "quiet") is not None
    assert forge.push_seen(REPO, elsewhere, "topic") is None


# Merging


def test_mergeability_is_yes_no_or_not_known(forge: GitHubForge, hub: GitHub, repo: Repo, pull: Pull) -> None:
    assert forge.mergeable(REPO, 1) is True
    hub.know_mergeability(False)
    assert forge.mergeable(REPO, 1) is None
    hub.know_mergeability(True)
    repo.push("main", {"a.py": "theirs\n"})
    assert forge.mergeable(REPO, 1) is False
    pull.close()
    assert forge.mergeable(REPO, 1) is None


@pytest.mark.parametrize(("method", "parents"), [("merge", 2), ("squash", 1), ("rebase", 1)])
def test_a_merge_takes_exactly_the_head_that_it_names(
    merging: GitHubForge, repo: Repo, pull: Pull, method: MergeMethod, parents: int
) -> None:
    made = merging.merge(REPO, 1, pull.head_sha, method)
    assert repo.sha("main") == made
    assert len(repo.state.git.describe(made)["parents"].split()) == parents
    assert merging.pull(REPO, 1).merged
    assert merging.read_file(REPO, "main", "a.py") == b"x\n"


def test_a_push_before_the_merge_is_409_and_merges_nothing(
    merging: GitHubForge, repo: Repo, pull: Pull
) -> None:
    approved, before = pull.head_sha, repo.sha("main")
    pull.push({"a.py": "evil\n"})
    with pytest.raises(ForgeError, match="Head branch was modified") as refused:
        merging.merge(REPO, 1, approved, "squash")
    assert (refused.value.status, refused.value.retry_after) == (409, None)
    assert (repo.sha("main"), merging.pull(REPO, 1).state) == (before, "open")


def test_what_cannot_be_merged_is_405(merging: GitHubForge, hub: GitHub, repo: Repo, pull: Pull) -> None:
    hub.fail(
        "PUT /repos/*/*/pulls/1/merge",
        405,
        message="Base branch was modified. Review and try the merge again.",
    )
    with pytest.raises(ForgeError) as moved:
        merging.merge(REPO, 1, pull.head_sha, "squash")
    assert (moved.value.status, moved.value.retry_after is not None) == (405, True)
    pull.to_draft()
    with pytest.raises(ForgeError, match="draft") as refused:
        merging.merge(REPO, 1, pull.head_sha, "squash")
    assert (refused.value.status, refused.value.retry_after) == (405, None)
    pull.ready()
    repo.push("main", {"a.py": "theirs\n"})
    with pytest.raises(ForgeError, match="not mergeable") as refused:
        merging.merge(REPO, 1, pull.head_sha, "squash")
    assert (refused.value.status, refused.value.retry_after) == (405, None)


def test_a_merge_of_no_head_is_not_sent(merging: GitHubForge, hub: GitHub, pull: Pull, count: Count) -> None:
    with pytest.raises(ForgeError, match="a merge of no head"):
        merging.merge(REPO, 1, "", "squash")
    assert count("PUT", "/merge") == 0


def test_a_merge_whose_answer_is_lost_is_found_as_merged(
    merging: GitHubForge, hub: GitHub, pull: Pull, count: Count
) -> None:
    hub.fail("PUT /repos/*/*/pulls/1/merge", drop="after")
    with pytest.raises(ForgeError) as lost:
        merging.merge(REPO, 1, pull.head_sha, "squash")
    assert lost.value.retry_after
    assert count("PUT", "/merge") == 1
    assert merging.pull(REPO, 1).merged


def test_an_app_without_the_right_to_contents_is_told_so(forge: GitHubForge, pull: Pull) -> None:
    with pytest.raises(ForgeError, match="grant Contents: write") as refused:
        forge.merge(REPO, 1, pull.head_sha, "squash")
    assert (refused.value.status, refused.value.retry_after) == (403, None)
