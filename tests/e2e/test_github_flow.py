"""A pull request's life on GitHub: webhooks in over HTTP, comments, reviews, checks and threads out through the API."""

from __future__ import annotations

from tests.kit.github_service import GitHubService
from tests.kit.rounds import PATH


def test_an_opened_pull_request_gets_comment_review_inline_comment_and_check_run(
    github: GitHubService,
) -> None:
    pull = github.open()
    github.settle()

    (comment,) = github.comments(pull)
    assert f"PR #{pull.number} round 1 - BLOCKED(1)" in comment.body
    (review,) = github.reviews(pull)
    assert "Status: BLOCKING" in review.body
    assert (review.state, review.commit) == ("COMMENTED", pull.head_sha)
    (inline,) = github.inline(pull)
    assert (inline.path, inline.line, inline.review) == (PATH, 2, review)
    (check,) = github.checks(pull)
    assert (check.status, check.conclusion) == ("completed", "failure")
    assert [one["path"] for one in check.annotations] == [PATH]
    assert [one["identifier"] for one in check.actions] == ["review_full"]
    assert github.unsettled() == []
