"""CI over what goes wrong: deliveries lost, doubled and out of order, workers that die, GitHub that does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.github_ci import FAILED, PHRASE, RUNNER, GitHubCi
from tests.kit.github_service import GitHubService
from tests.kit.rounds import HEAD, PATH
from tests.standin.github import Pull


@pytest.fixture
def ci(github: GitHubService) -> Iterator[GitHubCi]:
    ci = GitHubCi(github, RUNNER)
    yield ci
    ci.settle()
    ci.look()


@pytest.fixture
def by_token(with_token: GitHubService) -> Iterator[GitHubCi]:
    ci = GitHubCi(with_token, RUNNER)
    yield ci
    ci.settle()
    ci.look()


class Killed(BaseException):
    """The worker's process is gone: nothing catches it."""


def kill_after(ci: GitHubCi, monkeypatch: pytest.MonkeyPatch, call: str, times: int = 1) -> list[str]:
    """The worker dies as soon as that call to the forge was done; the calls that were made."""
    forge, made = ci.service.forge, []
    real = getattr(forge, call)

    def then_die(*given: Any, **named: Any) -> Any:
        answer = real(*given, **named)
        made.append(call)
        if len(made) <= times:
            raise Killed
        return answer

    monkeypatch.setattr(forge, call, then_die)
    return made


def work(ci: GitHubCi) -> None:
    try:
        ci.settle()
    except Killed:
        ci.restart()


def test_a_check_whose_maker_was_killed_is_completed_by_another(
    ci: GitHubCi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CI.md 7."""
    made = kill_after(ci, monkeypatch, "create_check")
    pull = ci.open()
    ci.hub.pass_time(2)
    pull.comment("bob", PHRASE)
    work(ci)
    assert made
    with ci.runner() as runner:
        runner.report(runner.begin())
        ci.settle(60)
    assert sorted((one.name, one.status, one.conclusion) for one in ci.checks(pull)) == [
        ("whitesmoke/ci/docs", "completed", "success"),
        ("whitesmoke/ci/smoke", "completed", "success"),
    ]


@pytest.mark.parametrize("call", ["update_check", "edit_comment", "create_comment"])
def test_a_worker_that_is_killed_in_a_report_leaves_one_of_everything(
    ci: GitHubCi, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    pull = ci.open()
    made = kill_after(ci, monkeypatch, call)
    ci.hub.pass_time(2)
    pull.comment("bob", PHRASE)
    work(ci)
    with ci.runner() as runner:
        runner.report(runner.begin())
        work(ci)
        ci.settle(60)
    assert made
    assert ci.ended(pull) == [("smoke", "passed")]
    assert ci.check(pull, "smoke").conclusion == "success"
    assert "**passed**" in ci.report(pull)


def test_a_gate_that_is_killed_over_its_question_is_asked_again(
    ci: GitHubCi, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull = ci.open()
    made = kill_after(ci, monkeypatch, "checkout")
    ci.hub.pass_time(2)
    pull.comment("bob", PHRASE)
    work(ci)
    assert len(made) == 2
    assert ci.ended(pull) == [("smoke", "")]


class TestDeliveries:
    def test_the_same_twice_and_again_later_run_a_job_once(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.hub.hooks.duplicate(1, "issue_comment")
        ci.hub.hooks.duplicate(1, "issue_comment", new_guid=True)
        ci.say(pull, "bob")
        with ci.runner() as runner:
            runner.report(runner.begin(), FAILED)
            ci.settle()
            said = next(one for one in ci.hub.deliveries if one.event == "issue_comment")
            ci.hub.hooks.redeliver(said)
            ci.settle()
            assert runner.take() is None
        assert ci.ended(pull) == [("smoke", "code")]
        assert ci.report(pull)

    def test_of_a_button_twice_run_a_job_once(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.say(pull, "bob")
        with ci.runner() as runner:
            runner.report(runner.begin(), FAILED)
            ci.settle()
            ci.hub.hooks.duplicate(1, "check_run", new_guid=True)
            ci.repo.rerequest(ci.check(pull, "smoke"), "bob")
            ci.settle()
            runner.begin()
            assert runner.take() is None
        assert ci.ended(pull) == [("smoke", "code"), ("smoke", "")]

    def test_the_comment_before_the_opening(self, ci: GitHubCi) -> None:
        ci.hub.hooks.hold()
        pull = ci.repo.open_pull(files={PATH: HEAD[PATH]})
        ci.hub.pass_time(5)
        pull.comment("bob", PHRASE)
        ci.hub.hooks.release(reversed)
        ci.settle()
        assert [name for name, _ in ci.ended(pull)] == ["smoke"]

    def test_pushes_in_any_order_leave_the_newest_head_alone_in_force(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.hub.hooks.hold()
        ci.hub.pass_time(2)
        first = pull.push({"README.md": "One.\n"})
        ci.hub.pass_time(2)
        pull.push({"README.md": "Two.\n"})
        ci.hub.hooks.release(reversed)
        ci.settle()
        ci.review(pull, "bob")
        assert ci.ended(pull) == [("smoke", "")]
        assert ci.jobs(pull, first) == []


class TestWhatWasMissed:
    """CI.md 1: with a token nothing is redelivered, so that open pull requests are looked through."""

    def test_a_comment(self, by_token: GitHubCi) -> None:
        pull = by_token.open()
        by_token.hub.hooks.lose(1, "issue_comment")
        by_token.say(pull, "bob")
        assert by_token.jobs(pull) == []
        by_token.read_through()
        by_token.read_through()
        assert by_token.ended(pull) == [("smoke", "")]

    def test_an_approval_though_the_pull_request_itself_was_missed_too(self, by_token: GitHubCi) -> None:
        by_token.hub.hooks.lose(2, "pull_request", "pull_request_review")
        pull = by_token.open()
        by_token.review(pull, "bob")
        by_token.read_through()
        assert by_token.ended(pull) == [("smoke", "")]

    def test_a_push_that_ends_the_trust_in_what_was_before_it(self, by_token: GitHubCi) -> None:
        pull = by_token.open()
        by_token.say(pull, "bob")
        old = pull.head_sha
        by_token.hub.hooks.lose(1, "pull_request")
        by_token.push(pull)
        assert by_token.ended(pull, old) == [("smoke", "")]
        by_token.read_through()
        assert by_token.ended(pull, old) == [("smoke", "superseded")]
        assert by_token.jobs(pull) == []

    def test_that_it_was_closed(self, by_token: GitHubCi) -> None:
        pull = by_token.open()
        by_token.say(pull, "bob")
        by_token.hub.hooks.lose(1, "pull_request")
        pull.close()
        by_token.settle()
        assert by_token.ended(pull) == [("smoke", "")]
        by_token.read_through()
        assert by_token.ended(pull) == [("smoke", "cancelled")]

    def test_an_app_has_them_delivered_again(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.read_through()
        ci.hub.hooks.lose(1, "issue_comment")
        ci.say(pull, "eve")
        assert ci.answers(pull) == []
        ci.read_through()
        assert "eve has no write permission" in ci.answers(pull)[0]
        ci.hub.hooks.lose(1, "pull_request_review")
        ci.review(pull, "bob")
        ci.read_through()
        assert ci.ended(pull) == [("smoke", "")]


class TestWithAToken:
    def test_statuses_stand_where_checks_would(self, by_token: GitHubCi) -> None:
        pull = by_token.open()
        by_token.say(pull, "bob")
        assert states(pull) == {"whitesmoke/ci/smoke": "pending", "whitesmoke/ci/docs": "success"}
        with by_token.runner() as runner:
            grant = runner.begin()
            by_token.settle(30)
            runner.report(grant, FAILED)
            by_token.settle()
            assert states(pull) == {"whitesmoke/ci/smoke": "failure", "whitesmoke/ci/docs": "success"}
            by_token.say(pull, "bob", "/ci run smoke")
            runner.report(runner.begin())
            by_token.settle()
        assert states(pull) == {"whitesmoke/ci/smoke": "success", "whitesmoke/ci/docs": "success"}
        assert by_token.checks(pull) == []
        assert "**passed**" in by_token.report(pull)

    def test_the_tokens_own_user_is_the_bot_and_starts_nothing(self, by_token: GitHubCi) -> None:
        pull = by_token.open()
        by_token.say(pull, by_token.service.login)
        by_token.say(pull, by_token.service.login, "/ci run")
        assert by_token.jobs(pull) == []


def states(pull: Pull) -> dict[str, str]:
    return {one.context: one.state for one in pull.statuses}
