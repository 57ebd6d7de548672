"""Reviews and their inline comments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.standin.github.actions import comments as reactions
from tests.standin.github.actions import reviews as actions
from tests.standin.github.actions.reviews import STATES, Misplaced, Place
from tests.standin.github.answer import Answer, Refused, invalid, not_found
from tests.standin.github.render import base, pulls
from tests.standin.github.routing import BODY_LIMIT, Call, route
from tests.standin.github.state import PullRequest, ReviewComment

_REPO = "/repos/{owner}/{repo}"
_PULL = f"{_REPO}/pulls/{{pull_number}}"
_REVIEW = f"{_PULL}/reviews/{{review_id}}"
_COMMENT = f"{_REPO}/pulls/comments/{{comment_id}}"
_READ = "pull_requests:read"
_WRITE = "pull_requests:write"


def _unprocessable(*errors: str) -> Refused:
    return Refused(422, "Unprocessable Entity", list(errors))


@route(f"GET {_PULL}/reviews", _READ)
def list_reviews(call: Call) -> Answer:
    pull = call.pull()
    # A pending review is its author's alone.
    shown = [one for one in pull.reviews if one.state != "PENDING" or one.user is call.actor.user]
    return call.page(shown, lambda one: pulls.review(call.world, pull, one))


@route(f"POST {_PULL}/reviews", _WRITE)
def create_review(call: Call) -> Answer:
    pull, user = call.pull(), call.sender()
    event = call.body.get("event")
    body = call.body.get("body") or ""
    comments = call.body.get("comments") or []
    commit = call.body.get("commit_id") or pull.head_sha
    if event in ("APPROVE", "REQUEST_CHANGES") and user is pull.user:
        verb = "approve" if event == "APPROVE" else "request changes on"
        raise _unprocessable(f"Can not {verb} your own pull request")
    if event in ("REQUEST_CHANGES", "COMMENT") and not body.strip() and not comments:
        raise _unprocessable("Body can not be blank")
    if len(body) > BODY_LIMIT:
        raise _unprocessable(f"Body is too long (maximum is {BODY_LIMIT} characters)")
    if not actions.belongs(pull, commit):
        raise _unprocessable("The commit_id is not part of the pull request")
    placed, refused = [], []
    for one in comments:
        text = one.get("body") or ""
        if not text.strip() or len(text) > BODY_LIMIT:
            refused.append("Body can not be blank" if not text.strip() else "Body is too long")
            continue
        try:
            placed.append((actions.locate(pull, commit, one), text))
        except Misplaced as error:
            refused.append(str(error))
    # One comment out of place takes the whole review down.
    if refused:
        raise _unprocessable(*refused)
    state = STATES.get(event or "", "PENDING")
    made = actions.submit(call.world, pull, user, state, body, commit, placed, seen=False)
    return Answer(200, pulls.review(call.world, pull, made))


@route(f"GET {_REVIEW}", _READ)
def get_review(call: Call) -> Answer:
    pull, review = call.review()
    return Answer(200, pulls.review(call.world, pull, review))


@route(f"PUT {_REVIEW}", _WRITE)
def edit_review(call: Call) -> Answer:
    pull, review = call.review()
    if review.user is not call.sender():
        raise Refused(403, "You can only edit your own reviews.")
    body = call.text_field("body", "PullRequestReview")
    actions.edit(call.world, pull, review, call.sender(), body, seen=False)
    return Answer(200, pulls.review(call.world, pull, review))


@route(f"DELETE {_REVIEW}", _WRITE)
def delete_review(call: Call) -> Answer:
    pull, review = call.review()
    if review.state != "PENDING":
        raise _unprocessable("Can not delete a non-pending pull request review")
    pull.reviews.remove(review)
    pull.threads = [one for one in pull.threads if one.comments[0].review is not review]
    return Answer(200, pulls.review(call.world, pull, review))


@route(f"POST {_REVIEW}/events", _WRITE)
def submit_review(call: Call) -> Answer:
    pull, review = call.review()
    if review.state != "PENDING":
        raise _unprocessable("Can not submit a review that is not pending")
    actions.submit_pending(call.world, pull, review, STATES[call.body["event"]], call.body.get("body"))
    return Answer(200, pulls.review(call.world, pull, review))


@route(f"PUT {_REVIEW}/dismissals", _WRITE, role="write")
def dismiss_review(call: Call) -> Answer:
    pull, review = call.review()
    call.text_field("message", "PullRequestReview")
    if review.state not in ("APPROVED", "CHANGES_REQUESTED"):
        raise _unprocessable(f"Can not dismiss a {review.state.lower()} pull request review")
    actions.dismiss(call.world, pull, review, call.sender(), seen=False)
    return Answer(200, pulls.review(call.world, pull, review))


@route(f"GET {_REVIEW}/comments", _READ)
def list_comments_of_review(call: Call) -> Answer:
    pull, review = call.review()
    found = [one for one in pull.review_comments() if one.review is review]
    lines = (
        "line",
        "original_line",
        "side",
        "start_line",
        "original_start_line",
        "start_side",
        "subject_type",
    )

    def show(one: ReviewComment) -> base.Json:
        # This list is older than comments on lines, and knows positions only.
        shown = pulls.review_comment(call.world, pull, one)
        return {key: value for key, value in shown.items() if key not in lines}

    return call.page(found, show)


@route(f"GET {_PULL}/comments", _READ)
def list_comments(call: Call) -> Answer:
    pull = call.pull()
    after = call.since()
    found = [
        one
        for one in pull.review_comments()
        if one.review.state != "PENDING" and (after is None or one.updated_at >= after)
    ]
    if call.query.get("direction") == "desc":
        found.reverse()
    return call.page(found, lambda one: pulls.review_comment(call.world, pull, one))


@route(f"POST {_PULL}/comments", _WRITE)
def create_comment(call: Call) -> Answer:
    pull, user = call.pull(), call.sender()
    body = call.text_field("body", "PullRequestReviewComment")
    if "in_reply_to" in call.body:
        parent = _find(pull, call.body["in_reply_to"])
        if parent is None:
            raise invalid("PullRequestReviewComment", "in_reply_to")
        made = actions.reply(call.world, pull, parent, user, body, seen=False)
    else:
        commit = call.body["commit_id"]
        if not actions.belongs(pull, commit):
            raise invalid("PullRequestReviewComment", "commit_id")
        place = _locate(pull, commit, call.body)
        made = actions.comment(call.world, pull, user, place, body, commit, seen=False)
    return Answer(201, pulls.review_comment(call.world, pull, made))


def _locate(pull: PullRequest, commit: str, wanted: Mapping[str, Any]) -> Place:
    try:
        return actions.locate(pull, commit, wanted)
    except Misplaced as error:
        name = f"pull_request_review_thread.{error.field}"
        message = f"{name} {'must be part of the diff' if error.field != 'path' else 'is invalid'}"
        raise invalid("PullRequestReviewComment", name, "custom", message) from error


@route(f"POST {_PULL}/comments/{{comment_id}}/replies", _WRITE)
def reply(call: Call) -> Answer:
    pull = call.pull()
    parent = _find(pull, call.integer(call.params["comment_id"]))
    if parent is None:
        raise not_found()
    body = call.text_field("body", "PullRequestReviewComment")
    made = actions.reply(call.world, pull, parent, call.sender(), body, seen=False)
    return Answer(201, pulls.review_comment(call.world, pull, made))


@route(f"GET {_COMMENT}", _READ)
def get_comment(call: Call) -> Answer:
    pull, comment = _comment(call)
    return Answer(200, pulls.review_comment(call.world, pull, comment))


@route(f"PATCH {_COMMENT}", _WRITE)
def edit_comment(call: Call) -> Answer:
    pull, comment = _comment(call)
    if comment.user is not call.sender():
        raise Refused(403, "You can only edit your own comments.")
    body = call.text_field("body", "PullRequestReviewComment")
    actions.edit_comment(call.world, pull, comment, call.sender(), body, seen=False)
    return Answer(200, pulls.review_comment(call.world, pull, comment))


@route(f"DELETE {_COMMENT}", _WRITE)
def delete_comment(call: Call) -> Answer:
    pull, comment = _comment(call)
    if comment.user is not call.sender():
        raise Refused(403, "You can only delete your own comments.")
    actions.delete_comment(call.world, pull, comment, call.sender())
    return Answer(204)


@route(f"POST {_COMMENT}/reactions", _WRITE)
def react(call: Call) -> Answer:
    _, comment = _comment(call)
    made, new = reactions.react(call.world, comment.reactions, call.sender(), call.body["content"])
    return Answer(201 if new else 200, base.reaction(call.world, made))


@route(f"GET {_COMMENT}/reactions", _READ)
def list_reactions(call: Call) -> Answer:
    _, comment = _comment(call)
    return call.page(comment.reactions, lambda one: base.reaction(call.world, one))


def _comment(call: Call) -> tuple[PullRequest, ReviewComment]:
    wanted = call.integer(call.params["comment_id"])
    for pull in call.repo().pulls.values():
        found = _find(pull, wanted)
        if found is not None:
            return pull, found
    raise not_found()


def _find(pull: PullRequest, wanted: object) -> ReviewComment | None:
    return next((one for one in pull.review_comments() if one.id == wanted), None)
