"""Merging by itself once everything required has passed for the head that was qualified, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.forge.base import ForgeError
from tests.kit.github_ci import FAILED, JOBS, GitHubCi
from tests.kit.github_service import github_service
from tests.kit.rounds import PATH
from tests.standin.github import GitHub, Pull, Repo

POLICY = "ci:\n  mode: runner\n  merge: {automatic: true}" + JOBS


@pytest.fixture
def ci(hub: GitHub, cache: Repo, tmp_path: Path) -> Iterator[GitHubCi]:
    with github_service(tmp_path, hub, cache, merging=True) as service:
        ci = GitHubCi(service, POLICY)
        yield ci
        ci.settle()
        ci.look()


def run_all(ci: GitHubCi, pull: Pull, login: str = "bob") -> None:
    """Somebody's word, and the jobs of it pass."""
    ci.say(pull, login)
    with ci.runner() as runner:
        runner.report(runner.begin())
        ci.settle()


def is_merged(pull: Pull) -> bool:
    return pull.state.merged_at is not None


def merges(ci: GitHubCi) -> int:
    """How often GitHub was asked to merge."""
    return sum(one.method == "PUT" and one.path.endswith("/merge") for one in ci.hub.requests)


def test_a_qualified_head_is_merged_when_its_last_job_has_passed(ci: GitHubCi) -> None:
    pull = ci.open()
    ci.say(pull, "bob")
    assert not is_merged(pull)
    with ci.runner() as runner:
        runner.report(runner.begin())
        ci.settle()
    assert is_merged(pull)
    assert merges(ci) == 1
    assert ci.service.repo.sha("main") == pull.state.merge_commit


def test_a_documentation_only_change_is_merged_at_once(ci: GitHubCi) -> None:
    """CI.md 8."""
    pull = ci.open(files={"README.md": "More words.\n"})
    ci.review(pull, "bob")
    assert is_merged(pull)


@pytest.mark.parametrize("call", ["mergeable", "merge"])
def test_a_push_at_the_last_moment_is_refused_and_nothing_is_merged(
    ci: GitHubCi, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """CI.md 5: the merge names the head that was qualified."""
    pull = ci.open()
    old = pull.head_sha
    ci.say(pull, "bob")
    forge = ci.service.forge
    pushed_at, merge = getattr(forge, call), forge.merge
    refused: list[int] = []

    def after_a_push(*given: Any) -> Any:
        if pull.head_sha == old:
            pull.push({PATH: "raise SystemExit\n"})
        return pushed_at(*given)

    monkeypatch.setattr(forge, call, after_a_push)
    asked = forge.merge if call == "merge" else merge

    def noted(*given: Any) -> str:
        try:
            return asked(*given)
        except ForgeError as error:
            refused.append(error.status)
            raise

    monkeypatch.setattr(forge, "merge", noted)
    with ci.runner() as runner:
        runner.report(runner.begin())
        ci.settle()
    assert refused == [409]
    assert pull.head_sha != old
    ci.read_through()
    assert not is_merged(pull)
    assert ci.jobs(pull) == []
    assert merges(ci) == 1


def test_a_merge_whose_answer_is_lost_is_done(ci: GitHubCi) -> None:
    ci.hub.fail("PUT /repos/*/*/pulls/*/merge", drop="after")
    pull = ci.open()
    run_all(ci, pull)
    assert is_merged(pull)
    ci.settle(3600)
    assert merges(ci) == 1


def test_github_being_down_at_the_merge_puts_it_off(ci: GitHubCi) -> None:
    ci.hub.fail("PUT /repos/*/*/pulls/*/merge", 502, 2)
    pull = ci.open()
    run_all(ci, pull)
    ci.settle(600)
    assert is_merged(pull)


class TestNot:
    def test_as_a_draft_until_it_is_ready(self, ci: GitHubCi) -> None:
        pull = ci.open(draft=True)
        run_all(ci, pull)
        assert not is_merged(pull)
        pull.ready()
        ci.settle()
        assert is_merged(pull)

    def test_in_conflict_with_its_base(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.say(pull, "bob")
        ci.repo.push("main", {PATH: "other = 1\n"})
        with ci.runner() as runner:
            runner.report(runner.begin())
            ci.settle()
        ci.read_through()
        assert not is_merged(pull)

    def test_while_changes_are_requested(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.repo.grant("cyd", "write")
        ci.say(pull, "bob")
        objection = ci.review(pull, "cyd", "CHANGES_REQUESTED", body="No.")
        with ci.runner() as runner:
            runner.report(runner.begin())
            ci.settle()
        assert not is_merged(pull)
        ci.hub.pass_time(2)
        pull.dismiss(objection, "acme")
        ci.settle()
        assert is_merged(pull)

    def test_after_a_job_that_failed(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.say(pull, "bob")
        with ci.runner() as runner:
            runner.report(runner.begin(), FAILED)
            ci.settle()
        ci.read_through()
        assert not is_merged(pull)

    def test_before_github_knows_whether_it_can_be(self, ci: GitHubCi) -> None:
        ci.hub.know_mergeability(False)
        pull = ci.open()
        run_all(ci, pull)
        assert not is_merged(pull)
        ci.hub.know_mergeability(True)
        ci.read_through()
        assert is_merged(pull)

    def test_where_the_default_branch_does_not_say_so_whatever_the_base_says(self, ci: GitHubCi) -> None:
        ci.repo.push("release", {".whitesmoke.yml": POLICY})
        ci.repo.push("main", {".whitesmoke.yml": POLICY.replace("automatic: true", "automatic: false")})
        pull = ci.open(base="release")
        run_all(ci, pull)
        assert [outcome for _, outcome in ci.ended(pull)] == ["passed"]
        assert not is_merged(pull)
