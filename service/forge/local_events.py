"""What GitHub would deliver, for things that happen on the local forge: so that both take the same way in."""

from __future__ import annotations

from typing import Any, Literal

from service.forge.base import Comment, PullState, Review, User

PullAction = Literal["opened", "reopened", "synchronize", "closed", "ready_for_review", "converted_to_draft"]


def pull_event(action: PullAction, pull: PullState, sender: User) -> dict[str, Any]:
    """The payload of a `pull_request` event."""
    return {
        "action": action,
        "number": pull.number,
        "pull_request": _pull(pull),
        "repository": _repository(pull),
        "sender": _account(sender),
    }


def comment_event(pull: PullState, comment: Comment) -> dict[str, Any]:
    """The payload of an `issue_comment` event for a new comment on a pull request."""
    return {
        "action": "created",
        "issue": {"number": pull.number, "pull_request": {"url": ""}},
        "comment": {
            "id": comment.id,
            "user": _account(comment.author),
            "body": comment.body,
            "created_at": comment.created_at.isoformat(),
            "updated_at": comment.updated_at.isoformat(),
        },
        "repository": _repository(pull),
        "sender": _account(comment.author),
    }


def review_event(pull: PullState, review: Review) -> dict[str, Any]:
    """The payload of a `pull_request_review` event for a review that was submitted."""
    return {
        "action": "submitted",
        "review": {
            "id": review.id,
            "user": _account(review.author),
            "state": review.state.lower(),
            "body": review.body,
            "commit_id": review.commit,
            "submitted_at": review.submitted_at.isoformat(),
        },
        "pull_request": _pull(pull),
        "repository": _repository(pull),
        "sender": _account(review.author),
    }


def _pull(pull: PullState) -> dict[str, Any]:
    repository = _repository(pull)
    return {
        "number": pull.number,
        "state": pull.state,
        "draft": pull.draft,
        "merged": pull.merged,
        "title": pull.title,
        "body": pull.body,
        "user": _account(pull.author),
        "labels": [{"name": label} for label in pull.labels],
        "head": {"ref": pull.head_ref, "sha": pull.head_sha, "repo": repository},
        "base": {"ref": pull.base_ref, "sha": pull.base_sha, "repo": repository},
    }


def _repository(pull: PullState) -> dict[str, Any]:
    return {"id": 1, "full_name": pull.repo, "default_branch": pull.base_ref}


def _account(user: User) -> dict[str, Any]:
    return {"login": user.login, "type": "Bot" if user.is_bot else "User"}
