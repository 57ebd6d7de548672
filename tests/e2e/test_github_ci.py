"""CI on GitHub, from a comment to its checks and its one comment, with a runner that does as the test says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ci_dispatch.fleet import AGAIN_SECONDS
from tests.kit.github_ci import FAILED, LOST, PHRASE, RUNNER, GitHubCi
from tests.kit.github_service import GitHubService


@pytest.fixture
def ci(github: GitHubService, request: pytest.FixtureRequest) -> Iterator[GitHubCi]:
    """With the policy RUNNER, or the test's own parameter."""
    ci = GitHubCi(github, getattr(request, "param", RUNNER))
    yield ci
    ci.settle()
    ci.look()


def test_a_comment_starts_a_job_whose_check_goes_from_queued_to_its_end(ci: GitHubCi) -> None:
    pull = ci.open()
    assert ci.checks(pull) == []
    ci.say(pull, "bob")
    check = ci.check(pull, "smoke")
    assert (check.status, check.conclusion) == ("queued", None)
    comment = ci.report(pull)
    with ci.runner() as runner:
        grant = runner.begin()
        ci.settle(30)
        assert ci.check(pull, "smoke").id == check.id
        assert check.status == "in_progress"
        assert [one["identifier"] for one in check.actions] == ["ci:cancel"]
        assert "serving" in (check.text or "")
        runner.report(grant)
        ci.settle()
    assert (check.status, check.conclusion) == ("completed", "success")
    assert check.actions == []
    assert "**passed**" in ci.report(pull) != comment
    assert "bob said" in ci.report(pull)
    assert ci.answers(pull) == []
    ci.settle(3600, reviews=True)
    assert ci.service.unsettled() == []


def test_a_documentation_only_change_gets_all_its_checks_and_runs_nothing(ci: GitHubCi) -> None:
    """CI.md 8."""
    pull = ci.open(files={"README.md": "More words.\n"})
    ci.review(pull, "bob")
    assert ci.jobs(pull) == []
    assert [(one.name, one.status, one.conclusion) for one in ci.checks(pull)] == [
        ("whitesmoke/ci/smoke", "completed", "success"),
        ("whitesmoke/ci/docs", "completed", "success"),
    ]
    assert all("no matching paths" in f"{one.title}{one.summary}" for one in ci.checks(pull))


class TestWhoMay:
    def test_not_one_who_may_not_write(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.read_through()
        ci.say(pull, "eve")
        assert "eve has no write permission" in ci.answers(pull)[0]
        ci.review(pull, "eve")
        assert len(ci.answers(pull)) == 1
        assert ci.jobs(pull) == ci.checks(pull) == []

    def test_not_the_author(self, ci: GitHubCi) -> None:
        pull = ci.open(author="bob")
        ci.say(pull, "bob")
        ci.say(pull, "bob", "/ci run")
        assert len(ci.answers(pull)) >= 2
        assert ci.jobs(pull) == []

    def test_not_with_words_that_somebody_edited(self, ci: GitHubCi) -> None:
        pull = ci.open()
        comment = ci.say(pull, "bob", "Let me look.")
        ci.hub.pass_time(2)
        pull.edit_comment(comment, PHRASE)
        ci.settle()
        assert ci.jobs(pull) == []
        ci.read_through()
        ci.say(pull, "eve", "Is it running?")
        assert ci.jobs(pull) == []

    def test_not_our_own_text_whatever_it_says(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.say(pull, ci.service.login)
        ci.review(pull, ci.service.login, "COMMENTED", body=PHRASE)
        ci.review(pull, ci.service.login)
        ci.read_through()
        assert ci.jobs(pull) == []

    def test_not_while_changes_are_requested(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.repo.grant("cyd", "write")
        objection = ci.review(pull, "cyd", "CHANGES_REQUESTED", body="No.")
        ci.say(pull, "bob")
        assert "cyd" in ci.answers(pull)[0]
        ci.push(pull)
        ci.say(pull, "bob")
        assert ci.jobs(pull) == []
        ci.hub.pass_time(2)
        pull.dismiss(objection, "acme")
        ci.settle()
        assert ci.ended(pull) == [("smoke", "")]


class TestPushes:
    def test_an_approval_is_of_its_head_alone(self, ci: GitHubCi) -> None:
        """CI.md 2 and 3."""
        pull = ci.open()
        ci.service.hub.hooks.hold()
        ci.hub.pass_time(2)
        pull.review("bob", "APPROVED")
        old = pull.head_sha
        pull.push({"README.md": "Pushed.\n"})
        ci.hub.hooks.release()
        ci.settle()
        assert ci.jobs(pull) == ci.jobs(pull, old) == []

    def test_a_comment_that_is_delivered_after_a_later_push_runs_no_head(self, ci: GitHubCi) -> None:
        """CI.md 4."""
        pull = ci.open()
        old = pull.head_sha
        ci.hub.hooks.hold()
        ci.hub.pass_time(2)
        pull.comment("bob", PHRASE)
        ci.hub.pass_time(2)
        new = pull.push({"README.md": "Pushed.\n"})
        ci.hub.hooks.release(reversed)
        ci.settle()
        assert ci.jobs(pull, old) == ci.jobs(pull, new) == []
        ci.say(pull, "bob")
        assert ci.ended(pull) == [("smoke", "")]

    def test_a_newer_head_stops_the_older_ones_job_and_needs_its_own_word(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.say(pull, "bob")
        old = pull.head_sha
        with ci.runner() as runner:
            grant = runner.begin()
            ci.push(pull)
            assert runner.is_stopped(grant)
            runner.report(grant, FAILED.model_copy(update={"cancelled": True}))
            ci.settle()
            assert runner.take() is None
        assert ci.ended(pull, old) == [("smoke", "superseded")]
        assert ci.check(pull, "smoke", old).conclusion == "cancelled"
        assert ci.jobs(pull) == ci.checks(pull) == []

    def test_closing_and_reopening_keeps_the_word_that_was_given(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.say(pull, "bob")
        ci.hub.pass_time(2)
        pull.close()
        ci.settle()
        assert ci.ended(pull) == [("smoke", "cancelled")]
        ci.hub.pass_time(2)
        pull.reopen()
        ci.settle()
        ci.say(pull, "bob", "/ci retry")
        assert ci.ended(pull) == [("smoke", "cancelled"), ("smoke", "")]
        assert not any("push" in answer for answer in ci.answers(pull))

    def test_the_base_moving_on_leaves_a_comment_its_force(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.repo.push("main", {"other.py": "x = 1\n"})
        ci.say(pull, "bob")
        assert ci.ended(pull) == [("smoke", "")]


class TestButtons:
    def test_cancel_stops_the_job(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.say(pull, "bob")
        with ci.runner() as runner:
            grant = runner.begin()
            ci.settle(30)
            ci.press(pull, "smoke", "ci:cancel", "eve")
            assert not runner.is_stopped(grant)
            ci.press(pull, "smoke", "ci:cancel", "bob")
            assert runner.is_stopped(grant)
            runner.report(grant, FAILED.model_copy(update={"cancelled": True}))
            ci.settle()
        assert ci.ended(pull) == [("smoke", "cancelled")]
        assert ci.check(pull, "smoke").conclusion == "cancelled"
        ci.read_through()
        assert ci.ended(pull) == [("smoke", "cancelled")]

    def test_what_no_machine_could_run_is_run_again_by_itself_and_then_on_request(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.say(pull, "bob")
        with ci.runner() as runner:
            for attempt in (1, 2, 3):
                runner.report(runner.begin(), LOST)
                ci.settle()
                assert [outcome for _, outcome in ci.ended(pull)][:attempt] == ["infra"] * attempt
                assert runner.take() is None, "the host that failed has the job again at once"
                ci.clock.forward(AGAIN_SECONDS)
            assert len(ci.jobs(pull)) == 3
            check = ci.check(pull, "smoke")
            assert check.conclusion == "action_required"
            assert "ci:retry" in [one["identifier"] for one in check.actions]
            ci.press(pull, "smoke", "ci:retry", "eve")
            assert runner.take() is None
            ci.press(pull, "smoke", "ci:retry", "bob")
            assert ci.check(pull, "smoke").status == "queued"
            runner.report(runner.begin())
            ci.settle()
        assert ci.check(pull, "smoke").conclusion == "success"
        assert "**passed**" in ci.report(pull)

    def test_rebaseline_says_how(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.say(pull, "bob")
        check = ci.check(pull, "smoke")
        check.actions = [{"label": "Re-baseline", "description": "How", "identifier": "ci:rebaseline"}]
        ci.press(pull, "smoke", "ci:rebaseline", "bob")
        (answer,) = ci.answers(pull)
        assert "smoke" in answer
        assert ci.ended(pull) == [("smoke", "")]

    def test_a_check_that_is_asked_for_again_runs_again(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.say(pull, "bob")
        with ci.runner() as runner:
            runner.report(runner.begin(), FAILED)
            ci.settle()
            check = ci.check(pull, "smoke")
            assert check.conclusion == "failure"
            ci.repo.rerequest(check, "bob")
            ci.settle()
            runner.report(runner.begin())
            ci.settle()
        assert ci.ended(pull) == [("smoke", "code"), ("smoke", "passed")]
        assert ci.check(pull, "smoke").conclusion == "success"

    def test_one_that_is_asked_for_again_by_who_may_not_stands_as_it_was(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.say(pull, "bob")
        with ci.runner() as runner:
            runner.report(runner.begin(), FAILED)
            ci.settle()
        for again in (ci.repo.rerequest, ci.repo.rerequest_suite):
            again(ci.check(pull, "smoke"), "eve")
            ci.settle()
            assert (ci.check(pull, "smoke").status, ci.check(pull, "smoke").conclusion) == (
                "completed",
                "failure",
            )
            assert ci.check(pull, "docs").conclusion == "success"
        assert ci.ended(pull) == [("smoke", "code")]

    def test_all_checks_asked_for_again_all_end(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.say(pull, "bob")
        with ci.runner() as runner:
            runner.report(runner.begin(), FAILED)
            ci.settle()
            ci.repo.rerequest_suite(ci.check(pull, "smoke"), "bob")
            ci.settle()
            runner.report(runner.begin())
            ci.settle()
        assert {one.name: one.conclusion for one in ci.checks(pull)} == {
            "whitesmoke/ci/smoke": "success",
            "whitesmoke/ci/docs": "success",
        }

    def test_an_older_heads_check_asked_for_again_stands_as_it_was(self, ci: GitHubCi) -> None:
        pull = ci.open()
        ci.say(pull, "bob")
        old = pull.head_sha
        ci.push(pull)
        ci.repo.rerequest(ci.check(pull, "smoke", old), "bob")
        ci.settle()
        check = ci.check(pull, "smoke", old)
        assert (check.status, check.conclusion) == ("completed", "cancelled")
        assert ci.jobs(pull) == []


class TestForks:
    def test_each_head_needs_a_go_of_its_own(self, ci: GitHubCi) -> None:
        pull = ci.open(author="fay", fork=True)
        ci.say(pull, "bob")
        assert ci.ended(pull) == [("smoke", "")]
        assert [job.trusted for job in ci.jobs(pull)] == [False]
        ci.push(pull)
        assert ci.jobs(pull) == []
        ci.say(pull, "fay", "/ci run")
        assert ci.jobs(pull) == []
        ci.say(pull, "bob", "/ci run")
        assert ci.ended(pull) == [("smoke", "")]

    def test_a_check_of_a_fork_is_found_by_its_commit(self, ci: GitHubCi) -> None:
        """CI.md 6: GitHub lists no pull requests in it."""
        pull = ci.open(author="fay", fork=True)
        ci.say(pull, "bob")
        with ci.runner() as runner:
            runner.report(runner.begin(), FAILED)
            ci.settle()
            ci.repo.rerequest(ci.check(pull, "smoke"), "bob")
            ci.settle()
            event = [one for one in ci.hub.deliveries if one.action == "rerequested"][-1]
            assert event.payload["check_run"]["pull_requests"] == []
            runner.report(runner.begin())
            ci.settle()
        assert ci.check(pull, "smoke").conclusion == "success"
