"""What clients left in a repository and the test has not looked at."""

from __future__ import annotations

from collections.abc import Iterator

from tests.standin.github.state import Posted, PullRequest, Repository


def unseen(repo: Repository) -> Iterator[str]:
    """A line for each."""
    for pull in repo.pulls.values():
        for what, posted in _on(pull):
            if not posted.seen:
                yield f"{repo.full_name}#{pull.number}: {what}"
    for suite in repo.suites:
        for run in suite.runs:
            if not run.seen:
                yield f"{repo.full_name}@{suite.head_sha[:12]}: check run {run.name}: {run.status} {run.conclusion}"
    for status in repo.statuses:
        if not status.seen:
            yield f"{repo.full_name}@{status.sha[:12]}: status {status.context}: {status.state}"


def _on(pull: PullRequest) -> Iterator[tuple[str, Posted]]:
    for comment in pull.comments:
        yield f"comment of {comment.user.login}: {comment.body[:80]!r}", comment
    for review in pull.reviews:
        yield f"review of {review.user.login}: {review.state} {review.body[:80]!r}", review
    for inline in pull.review_comments():
        yield f"inline comment of {inline.user.login}: {inline.body[:80]!r}", inline
