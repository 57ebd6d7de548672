"""Reviews, inline comments and where GitHub lets them stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.standin.github.patch import FileChange, PatchLine, Side
from tests.standin.github.state import PullRequest, Review, ReviewComment, Thread, User, World

STATES = {"APPROVE": "APPROVED", "REQUEST_CHANGES": "CHANGES_REQUESTED", "COMMENT": "COMMENTED"}


class Misplaced(Exception):
    """A comment is not on the diff; the text is GitHub's, `field` what it names."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class Place:
    """Where a comment stands, checked against the diff."""

    path: str
    diff_hunk: str
    subject_type: str
    line: int | None = None
    side: Side = "RIGHT"
    start_line: int | None = None
    start_side: Side | None = None
    position: int | None = None


def locate(pull: PullRequest, commit: str, wanted: Mapping[str, Any]) -> Place:
    """Checks path, line, side, start_line, start_side, position and subject_type as GitHub does; raises Misplaced."""
    change = next((one for one in pull.changes(commit) if one.path == wanted.get("path")), None)
    if change is None:
        raise Misplaced("Path could not be resolved", "path")
    if wanted.get("subject_type") == "file":
        return Place(change.path, "", "file")
    if wanted.get("line") is None:
        return _by_position(change, wanted.get("position"))
    side: Side = wanted.get("side") or "RIGHT"
    end = change.find(wanted["line"], side)
    if end is None:
        raise Misplaced("Line could not be resolved", "line")
    place = Place(change.path, change.excerpt(end), "line", wanted["line"], side, position=end.position)
    if wanted.get("start_line") is None:
        return place
    start_side: Side = wanted.get("start_side") or side
    start = change.find(wanted["start_line"], start_side)
    if start is None:
        raise Misplaced("Start line could not be resolved", "start_line")
    if start.hunk != end.hunk:
        raise Misplaced("Start line must be part of the same hunk as the line", "start_line")
    if start.position >= end.position:
        raise Misplaced("Start line must precede the end line", "start_line")
    return Place(
        change.path,
        change.excerpt(end),
        "line",
        wanted["line"],
        side,
        wanted["start_line"],
        start_side,
        end.position,
    )


def _by_position(change: FileChange, position: object) -> Place:
    found: PatchLine | None = next((one for one in change.lines() if one.position == position), None)
    if found is None:
        raise Misplaced("Position could not be resolved", "position")
    side: Side = "LEFT" if found.sign == "-" else "RIGHT"
    line = found.old if side == "LEFT" else found.new
    return Place(change.path, change.excerpt(found), "line", line, side, position=found.position)


def belongs(pull: PullRequest, commit: str) -> bool:
    """Whether a commit is one of the pull request's, now or before a force push."""
    git = pull.repo.git
    found = git.resolve(commit)
    return found == commit and not git.is_ancestor(commit, pull.base_sha)


def submit(
    world: World,
    pull: PullRequest,
    user: User,
    state: str,
    body: str,
    commit: str,
    comments: Sequence[tuple[Place, str]] = (),
    *,
    seen: bool = True,
) -> Review:
    """`state` is one of STATES' values or PENDING, which nobody is told of."""
    now = world.now()
    submitted = None if state == "PENDING" else now
    review = Review(world.next_id(), now, now, seen, user, body, state, commit, submitted)
    pull.reviews.append(review)
    made = [_comment(world, pull, review, user, place, text, seen=seen) for place, text in comments]
    if submitted:
        world.emit("pull_request_review", "submitted", pull.repo, user, pull, review)
        for one in made:
            world.emit("pull_request_review_comment", "created", pull.repo, user, pull, one)
    return review


def submit_pending(world: World, pull: PullRequest, review: Review, state: str, body: str | None) -> None:
    review.state, review.submitted_at = state, world.now()
    review.body = review.body if body is None else body
    world.emit("pull_request_review", "submitted", pull.repo, review.user, pull, review)


def edit(
    world: World, pull: PullRequest, review: Review, user: User, body: str, *, seen: bool = True
) -> None:
    changes = {"body": {"from": review.body}}
    review.body, review.updated_at, review.seen = body, world.now(), seen
    review.edited_at = review.updated_at
    world.emit("pull_request_review", "edited", pull.repo, user, pull, review, changes=changes)


def dismiss(world: World, pull: PullRequest, review: Review, user: User, *, seen: bool = True) -> None:
    review.state, review.updated_at, review.seen = "DISMISSED", world.now(), seen
    world.emit("pull_request_review", "dismissed", pull.repo, user, pull, review)


def comment(
    world: World, pull: PullRequest, user: User, place: Place, body: str, commit: str, *, seen: bool = True
) -> ReviewComment:
    """A comment by itself: GitHub makes a review of it alone."""
    review = submit(world, pull, user, "COMMENTED", "", commit, [(place, body)], seen=seen)
    # The review is no more than the comment's envelope: whoever looks at the comment has seen it.
    review.seen = True
    return next(one for one in pull.review_comments() if one.review is review)


def reply(
    world: World, pull: PullRequest, parent: ReviewComment, user: User, body: str, *, seen: bool = True
) -> ReviewComment:
    thread = next(one for one in pull.threads if parent in one.comments)
    first = thread.comments[0]
    place = Place(
        first.path,
        first.diff_hunk,
        first.subject_type,
        first.line,
        first.side,
        first.start_line,
        first.start_side,
        first.position,
    )
    review = submit(world, pull, user, "COMMENTED", "", first.commit)
    made = _comment(world, pull, review, user, place, body, seen=seen, thread=thread)
    world.emit("pull_request_review_comment", "created", pull.repo, user, pull, made)
    return made


def edit_comment(
    world: World, pull: PullRequest, one: ReviewComment, user: User, body: str, *, seen: bool = True
) -> None:
    changes = {"body": {"from": one.body}}
    one.body, one.updated_at, one.seen = body, world.now(), seen
    world.emit("pull_request_review_comment", "edited", pull.repo, user, pull, one, changes=changes)


def delete_comment(world: World, pull: PullRequest, one: ReviewComment, user: User) -> None:
    for thread in pull.threads:
        if one in thread.comments:
            thread.comments.remove(one)
    pull.threads = [thread for thread in pull.threads if thread.comments]
    world.emit("pull_request_review_comment", "deleted", pull.repo, user, pull, one)


def _comment(
    world: World,
    pull: PullRequest,
    review: Review,
    user: User,
    place: Place,
    body: str,
    *,
    seen: bool,
    thread: Thread | None = None,
) -> ReviewComment:
    now = world.now()
    made = ReviewComment(
        id=world.next_id(),
        created_at=now,
        updated_at=now,
        seen=seen,
        user=user,
        body=body,
        path=place.path,
        review=review,
        commit=review.commit,
        original_commit=review.commit,
        diff_hunk=place.diff_hunk,
        subject_type=place.subject_type,
        line=place.line,
        side=place.side,
        start_line=place.start_line,
        start_side=place.start_side,
        position=place.position,
        original_line=place.line,
        original_start_line=place.start_line,
        reply_to=thread.comments[0] if thread else None,
    )
    if thread:
        thread.comments.append(made)
    else:
        pull.threads.append(Thread(world.next_id(), [made]))
    return made
