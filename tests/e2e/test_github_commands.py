"""Commands, buttons and checks on GitHub: who may, who may not, and what each one answers."""

from __future__ import annotations

import pytest

from tests.kit.github_service import GitHubService
from tests.standin.github import Pull


@pytest.fixture
def pull(github: GitHubService) -> Pull:
    """Reviewed once, and blocked; acme owns the repository, bob may write, eve may read."""
    github.repo.grant("bob", "write")
    github.repo.grant("eve", "read")
    pull = github.open()
    github.settle()
    github.look(pull)
    return pull


def answers(github: GitHubService, pull: Pull) -> list[str]:
    """What the service said besides its report."""
    return [one.body for one in github.comments(pull)[1:]]


def test_review_full_reads_everything_again_and_is_acknowledged(github: GitHubService, pull: Pull) -> None:
    said = pull.comment("bob", "/review full")
    github.settle()
    assert "round 2" in github.comments(pull)[0].body
    assert [one.content for one in said.reactions] == ["+1"]
    assert len(answers(github, pull)) == 1
    github.look(pull)


def test_authors_may_ask_for_a_review_of_their_own_pull_request(github: GitHubService) -> None:
    pull = github.open(author="fay", fork=True, draft=True)
    pull.comment("fay", "/review")
    github.settle()
    assert "round 1" in "".join(one.body for one in github.comments(pull))
    github.look(pull)


def test_dismissing_lifts_the_verdict_and_is_told(github: GitHubService, pull: Pull) -> None:
    said = pull.comment("bob", "/dismiss F1 the slot is one-based")
    github.settle()
    report = github.comments(pull)[0]
    assert "LGTM" in report.body
    (answer,) = answers(github, pull)
    assert "dismissed" in answer
    assert [one.conclusion for one in github.checks(pull)] == ["success"]
    assert [one.content for one in said.reactions] == ["+1"]
    github.look(pull)


def test_reopening_blocks_again(github: GitHubService, pull: Pull) -> None:
    pull.comment("bob", "/dismiss F1 the slot is one-based")
    github.settle()
    pull.comment("bob", "/reopen F1")
    github.settle()
    assert "BLOCKED(1)" in github.comments(pull)[0].body
    assert [one.conclusion for one in github.checks(pull)] == ["failure"]
    github.look(pull)


@pytest.mark.parametrize("login", ["eve", "nobody-here"])
def test_people_without_the_permission_are_refused(github: GitHubService, pull: Pull, login: str) -> None:
    said = pull.comment(login, "/dismiss F1 no")
    github.settle()
    assert "BLOCKED(1)" in github.comments(pull)[0].body
    (answer,) = answers(github, pull)
    assert "may not do that" in answer
    assert [one.content for one in said.reactions] == ["confused"]
    github.look(pull)


def test_a_permission_that_was_taken_away_meanwhile_counts_no_more(github: GitHubService, pull: Pull) -> None:
    github.hub.hooks.hold()
    pull.comment("bob", "/dismiss F1 no")
    github.repo.grant("bob", "read")
    github.hub.hooks.release()
    github.settle()
    assert "BLOCKED(1)" in github.comments(pull)[0].body
    assert "may not do that" in answers(github, pull)[0]
    github.look(pull)


def test_authors_may_not_dismiss_blockers_of_their_own_pull_request(
    github: GitHubService, pull: Pull
) -> None:
    github.repo.grant("ada", "admin")
    pull.comment("ada", "/dismiss F1 no")
    github.settle()
    assert "BLOCKED(1)" in github.comments(pull)[0].body
    assert "may not dismiss" in answers(github, pull)[0]
    github.look(pull)


@pytest.mark.parametrize("login", ["whitesmoke[bot]", "renovate[bot]"])
def test_the_bot_never_answers_itself_or_another_bot(github: GitHubService, pull: Pull, login: str) -> None:
    """REVIEW.md 17."""
    github.hub.user(login, bot=True)
    github.repo.grant(login, "admin")
    said = pull.comment(login, "/help")
    github.settle()
    assert [one for one in answers(github, pull) if one != "/help"] == []
    assert said.reactions == []


def test_a_command_in_a_quote_or_an_edited_comment_runs_nothing(github: GitHubService, pull: Pull) -> None:
    pull.comment("bob", "> /help\n\n```\n/help\n```")
    said = pull.comment("bob", "hello")
    pull.edit_comment(said, "/help")
    github.settle()
    assert answers(github, pull) == []


def test_a_command_on_the_diff_is_answered_once(github: GitHubService, pull: Pull) -> None:
    pull.reply("bob", github.inline(pull)[0], "/explain F1")
    github.settle()
    assert len(answers(github, pull)) == 1
    assert "F1" in answers(github, pull)[0]
    github.look(pull)


def test_a_comment_delivered_twice_is_answered_once(github: GitHubService, pull: Pull) -> None:
    github.hub.hooks.duplicate(1, "issue_comment", new_guid=True)
    pull.comment("bob", "/help")
    github.settle()
    github.reconcile()
    assert len(answers(github, pull)) == 1
    github.look(pull)


def test_a_comment_deleted_before_it_is_worked_on_does_not_stop_its_command(
    github: GitHubService, pull: Pull
) -> None:
    said = pull.comment("bob", "/dismiss F1 the slot is one-based")
    github.hub.hooks.settle()
    pull.delete_comment(said, "bob")
    github.settle()
    assert "LGTM" in github.comments(pull)[0].body
    assert github.unsettled() == []
    github.look(pull)


class TestChecks:
    def test_re_running_the_check_reads_everything_again(self, github: GitHubService, pull: Pull) -> None:
        github.repo.rerequest(github.checks(pull)[0], "bob")
        github.settle()
        assert "round 2" in github.comments(pull)[0].body
        assert github.checks(pull)[-1].conclusion == "failure"
        assert {one.status for one in github.checks(pull)} == {"completed"}
        github.look(pull)

    def test_re_running_all_checks_makes_one_round(self, github: GitHubService, pull: Pull) -> None:
        github.repo.rerequest_suite(github.checks(pull)[0], "bob")
        github.settle()
        assert "round 2" in github.comments(pull)[0].body
        github.look(pull)

    def test_the_button_reads_everything_again(self, github: GitHubService, pull: Pull) -> None:
        github.repo.press(github.checks(pull)[0], "review_full", "bob")
        github.settle()
        assert "round 2" in github.comments(pull)[0].body
        github.look(pull)

    def test_it_works_on_a_pull_request_from_a_fork(self, github: GitHubService) -> None:
        """GitHub does not say which pull request such a check is of."""
        github.repo.grant("bob", "write")
        pull = github.open(author="fay", fork=True)
        github.settle()
        github.repo.press(github.checks(pull)[0], "review_full", "bob")
        github.settle()
        assert "round 2" in github.comments(pull)[0].body
        github.look(pull)

    def test_readers_press_in_vain(self, github: GitHubService, pull: Pull) -> None:
        github.repo.press(github.checks(pull)[0], "review_full", "eve")
        github.settle()
        assert "round 1" in github.comments(pull)[0].body
        assert [one.status for one in github.checks(pull)] == ["completed"]
