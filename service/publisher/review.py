"""The review on the head commit with its inline comments, and the reviews that it takes the place of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from reviewer.model import Language
from reviewer.report.escape import code_span
from reviewer.report.limit import COMMENT_LIMIT, fit
from reviewer.report.marker import marker, read_marker
from service.forge.base import Forge, ForgeError, PullState, Review, ReviewEvent, User
from service.publisher.effects import PlacedComment, ReviewPost, RoundId
from service.publisher.own import StaleHead, first_line, is_own, normal, same_text
from service.publisher.text import load_text

# Kept free for the note that a review is superseded.
_NOTE_RESERVE = 500
_REFUSED = 422


def post_review(effect: ReviewPost, forge: Forge, external_id: str | None) -> str:
    """The review stands with every comment at its place, on its file, or told in the review itself.

    A forge refuses a whole review for one comment's place. It is then posted bare and the comments one by one.
    With `external_id` all that was done before: what is missing of it was deleted by people and stays so.
    """
    repo, number = effect.round.repo, effect.round.number
    me = forge.me(repo)
    pull = _pull_at(effect.round, forge)
    # Forges let nobody request changes to one's own work.
    event: ReviewEvent = "COMMENT" if is_own(pull.author, me) else effect.event
    standing = _find(effect.round, forge, me, external_id)
    if standing is None:
        try:
            return str(_create(effect, forge, event, effect.comments))
        except ForgeError as error:
            if error.status != _REFUSED:
                raise
        # A push that took the commit out of the pull request in between is refused in the same way.
        _pull_at(effect.round, forge)
        review_id, body = _create(effect, forge, event, ()), effect.body
    elif _facts(standing).get("superseded"):
        return str(standing.id)
    else:
        review_id, body = standing.id, normal(standing.body)
    homeless = [one for one in effect.comments if _mark(one) in body]
    if not external_id:
        posted = {
            first_line(one.body) for one in forge.review_comments(repo, number) if is_own(one.author, me)
        }
        for one in effect.comments:
            if _mark(one) not in posted and one not in homeless and not _post(one, effect, forge):
                homeless.append(one)
    wanted = _with_homeless(effect.body, homeless, effect.language)
    if not same_text(wanted, body):
        forge.edit_review(repo, number, review_id, wanted)
    return str(review_id)


def supersede_reviews(effect: ReviewPost, forge: Forge) -> None:
    """Every review of ours that is older than this one says so, once; with `dismiss` none requests changes."""
    repo, number = effect.round.repo, effect.round.number
    own = _own_reviews(effect.round, forge, forge.me(repo))
    ours = next((index for index, one in enumerate(own) if _is_of(one, effect.round)), len(own))
    text = load_text(effect.language)
    values = {"round": effect.round.round_index, "head": code_span(effect.round.head_sha[:12])}
    if effect.dismiss:
        # This round's own too: a maintainer may have dismissed what it requested changes for.
        for one in own[: ours + 1]:
            if one.state == "CHANGES_REQUESTED":
                forge.dismiss_review(repo, number, one.id, text("dismissed", **values))
    for one in own[:ours]:
        if not _facts(one).get("superseded"):
            note = text("superseded", **values)
            forge.edit_review(repo, number, one.id, _with_note(one, note, effect.round.round_index))


def _pull_at(round: RoundId, forge: Forge) -> PullState:
    pull = forge.pull(round.repo, round.number)
    if pull.head_sha != round.head_sha:
        raise StaleHead(
            f"{round.repo}#{round.number} is at {pull.head_sha[:12]}, not at the reviewed {round.head_sha[:12]}",
            "the newer head gets its own round",
        )
    return pull


def _own_reviews(round: RoundId, forge: Forge, me: User) -> list[Review]:
    """Ours, the oldest first. Comments posted by themselves count as reviews too, but carry no marker."""
    found = forge.reviews(round.repo, round.number)
    own = [one for one in found if is_own(one.author, me) and _facts(one)]
    return sorted(own, key=lambda one: (one.submitted_at, one.id))


def _find(round: RoundId, forge: Forge, me: User, external_id: str | None) -> Review | None:
    own = _own_reviews(round, forge, me)
    noted = (one for one in own if str(one.id) == external_id)
    return next(noted, None) or next((one for one in own if _is_of(one, round)), None)


def _is_of(review: Review, round: RoundId) -> bool:
    facts = _facts(review)
    return (facts.get("head"), facts.get("round")) == (round.head_sha, round.round_index)


def _facts(review: Review) -> dict[str, Any]:
    found = read_marker(review.body)
    return found[1] if found is not None and found[0] == "review" else {}


def _create(effect: ReviewPost, forge: Forge, event: ReviewEvent, comments: Sequence[PlacedComment]) -> int:
    return forge.create_review(
        effect.round.repo,
        effect.round.number,
        effect.round.head_sha,
        effect.body,
        event,
        [one.comment for one in comments],
    )


def _post(one: PlacedComment, effect: ReviewPost, forge: Forge) -> bool:
    """On its lines, else on its file; False where the forge takes it at neither."""
    tries = [one.comment]
    if one.comment.line is not None:
        note = load_text(effect.language)("refused_place", place=code_span(one.place))
        first, rest = one.comment.body.split("\n", 1)
        body = f"{first}\n{note}\n\n{rest}"
        tries.append(replace(one.comment, body=body, line=None, start_line=None, start_side=None))
    for comment in tries:
        try:
            forge.create_review_comment(
                effect.round.repo, effect.round.number, effect.round.head_sha, comment
            )
            return True
        except ForgeError as error:
            if error.status != _REFUSED:
                raise
    return False


def _with_homeless(body: str, homeless: Sequence[PlacedComment], language: Language) -> str:
    """The review with what found no other place, the least severe left out where there is no room."""
    if not homeless:
        return body
    text = load_text(language)

    def render(count: int) -> str:
        told = [
            f"{_mark(one)}\n**{code_span(one.place)}**\n\n{one.comment.body.partition(chr(10))[2]}"
            for one in homeless[:count]
        ]
        left = len(homeless) - count
        note = [f"*{text('homeless_left_out', n=left)}*"] if left else []
        return "\n\n".join([body, f"### {text('homeless')}", *told, *note])

    return fit(render, len(homeless), COMMENT_LIMIT - _NOTE_RESERVE)


def _with_note(review: Review, note: str, round_index: int) -> str:
    _, _, rest = normal(review.body).partition("\n")
    return f"{marker('review', **_facts(review), superseded=round_index)}\n> {note}\n\n{rest}"


def _mark(one: PlacedComment) -> str:
    """What tells this comment from all others."""
    return first_line(one.comment.body)
