"""With a user's token in place of an App: a commit status stands where the check run would."""

from __future__ import annotations

from tests.kit.github_service import GitHubService
from tests.kit.rounds import BASE, PATH


def test_the_verdict_is_a_commit_status(with_token: GitHubService) -> None:
    pull = with_token.open()
    with_token.settle()
    old = pull.head_sha

    (comment,) = with_token.comments(pull)
    assert "round 1 - BLOCKED(1)" in comment.body
    assert len(with_token.reviews(pull)) == len(with_token.inline(pull)) == 1
    assert [(one.context, one.state) for one in pull.statuses] == [("whitesmoke/review", "failure")]
    assert pull.checks == []

    with_token.model.findings, with_token.model.recheck = [], "fixed"
    pull.push({PATH: BASE[PATH] + "\n# checked\n"})
    with_token.settle()
    assert [one.state for one in with_token.statuses(pull)] == ["success"]
    assert [one.state for one in with_token.repo.statuses(old)] == ["failure"]
    assert [one.resolved_by is not None for one in pull.threads] == [True]
    assert "round 2" in with_token.comments(pull)[0].body
    assert len(with_token.reviews(pull)) == 2
    assert with_token.unsettled() == []


def test_a_status_whose_answer_is_lost_ends_with_the_verdict(with_token: GitHubService) -> None:
    with_token.hub.fail("POST /repos/*/*/statuses/*", drop="after", times=3)
    pull = with_token.open()
    with_token.settle()
    assert [one.state for one in with_token.statuses(pull)] == ["failure"]
    assert with_token.unsettled() == []
    with_token.look(pull)


def test_the_users_own_pull_request_is_commented_on_and_no_changes_are_requested(
    with_token: GitHubService,
) -> None:
    """GitHub lets nobody request changes to one's own pull request."""
    with_token.repo.push("main", {".whitesmoke.yml": "service: {review_event: REQUEST_CHANGES}\n"})
    pull = with_token.open(author=with_token.login)
    with_token.settle()
    assert [one.state for one in with_token.reviews(pull)] == ["COMMENTED"]
    with_token.look(pull)


def test_the_user_of_the_token_commands_nothing(with_token: GitHubService) -> None:
    """REVIEW.md 17."""
    pull = with_token.open()
    with_token.settle()
    pull.comment(with_token.login, "/help")
    with_token.settle()
    assert [one.body for one in with_token.comments(pull)][1:] == ["/help"]
    with_token.look(pull)
