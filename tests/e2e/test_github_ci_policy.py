"""What the policy says of CI, where it must stand to count, and what our own review has to do with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.github_ci import JOBS, PHRASE, RUNNER, GitHubCi
from tests.kit.github_service import GitHubService
from tests.kit.rounds import HEAD, PATH


@pytest.fixture
def ci(github: GitHubService, request: pytest.FixtureRequest) -> Iterator[GitHubCi]:
    ci = GitHubCi(github, getattr(request, "param", RUNNER))
    yield ci
    ci.settle()
    ci.look()


WARNS = "ci:\n  mode: runner\n  gate: {blocked: warn}" + JOBS
OURS = "ci:\n  mode: runner\n  gate: {trusted: ['whitesmoke[bot]']}" + JOBS


class TestOurOwnReview:
    def test_blocked_stops_it(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.settle(300, reviews=True)
        ci.say(pull, "bob")
        assert ci.jobs(pull) == []
        assert "BLOCKED" in ci.answers(pull)[-1]

    @pytest.mark.parametrize("ci", [WARNS], indirect=True)
    def test_blocked_only_warns_where_the_policy_says_so(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.settle(300, reviews=True)
        ci.say(pull, "bob")
        assert ci.ended(pull) == [("smoke", "")]
        assert "BLOCKED" in ci.report(pull)

    def test_no_warning_stands_where_nothing_blocks(self, ci: GitHubCi) -> None:
        ci.service.model.findings = []
        pull = ci.open()
        ci.settle(300, reviews=True)
        ci.say(pull, "bob")
        assert ci.ended(pull) == [("smoke", "")]
        assert "BLOCKED" not in ci.report(pull)

    def test_lgtm_starts_nothing_by_itself(self, ci: GitHubCi) -> None:
        ci.service.model.findings = []
        pull = ci.open()
        ci.settle(300, reviews=True)
        assert ci.jobs(pull) == []

    @pytest.mark.parametrize("ci", [OURS], indirect=True)
    def test_lgtm_starts_it_where_the_policy_names_the_bot_but_for_forks(self, ci: GitHubCi) -> None:
        ci.service.model.findings = []
        pull = ci.open()
        fork = ci.open(author="fay", fork=True)
        ci.settle(300, reviews=True)
        ci.settle()
        assert ci.ended(pull) == [("smoke", "")]
        assert ci.jobs(fork) == []


class TestWhereItStands:
    def test_who_is_trusted_the_default_branch_says_whatever_the_base_branch_does(self, ci: GitHubCi) -> None:
        gate = "  gate: {phrase: go now, trusted: [eve], blocked: warn}\n"
        ci.repo.push("release", {".whitesmoke.yml": RUNNER.replace("  jobs:\n", f"{gate}  jobs:\n", 1)})
        pull = ci.open(base="release")
        ci.review(pull, "eve")
        ci.say(pull, "eve", "go now")
        ci.say(pull, "bob", "go now")
        assert ci.jobs(pull) == []
        ci.say(pull, "bob")
        assert ci.ended(pull) == [("smoke", "")]

    def test_a_change_of_the_policy_in_the_pull_request_counts_for_nothing(self, ci: GitHubCi) -> None:
        own = RUNNER.replace("  jobs:\n", "  gate: {trusted: [eve]}\n  jobs:\n", 1).replace("smoke", "mine")
        pull = ci.open(files={PATH: HEAD[PATH], ".whitesmoke.yml": own})
        ci.review(pull, "eve")
        assert ci.jobs(pull) == []
        ci.say(pull, "bob")
        assert ci.ended(pull) == [("smoke", "")]

    @pytest.mark.parametrize("ci", ["review: {reps: 3}\n"], indirect=True)
    def test_ci_that_is_set_up_later_is_there_for_pull_requests_that_are_open(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.say(pull, "bob", "/ci run")
        ci.settle(300, reviews=True)
        ci.service.model.findings = []
        assert ci.jobs(pull) == []
        ci.repo.push("main", {".whitesmoke.yml": WARNS})
        ci.settle()
        ci.say(pull, "bob")
        assert ci.ended(pull) == [("smoke", "")]

    def test_an_invalid_file_is_told_and_the_last_good_one_stays_in_force(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.read_through()
        ci.repo.push("main", {".whitesmoke.yml": RUNNER + "  gaet: {}\n"})
        ci.say(pull, "bob")
        (told,) = ci.answers(pull)
        assert ".whitesmoke.yml" in told
        assert "gaet" in told
        assert ci.ended(pull) == [("smoke", "")]
        ci.say(pull, "bob")
        assert ci.answers(pull) == [told]

    def test_an_invalid_file_from_the_beginning_is_told_and_runs_nothing(self, ci: GitHubCi) -> None:
        ci.repo.push("main", {".whitesmoke.yml": "ci: {mode: runner}\n"})
        pull = ci.open()
        ci.say(pull, "bob")
        assert ci.jobs(pull) == []
        assert any("jobs" in answer for answer in ci.answers(pull))

    @pytest.mark.parametrize("ci", ["ci: {mode: 'off'}\n"], indirect=True)
    def test_off_is_off(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.say(pull, "bob")
        ci.say(pull, "bob", "/ci run")
        ci.review(pull, "bob", body=PHRASE)
        ci.read_through()
        assert ci.jobs(pull) == []
        assert ci.report(pull) == ""
