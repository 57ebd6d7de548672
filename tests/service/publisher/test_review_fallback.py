"""A forge that refuses places: the review stands, and every comment is told somewhere, once."""

from __future__ import annotations

from typing import Any

import pytest

from reviewer.report.limit import COMMENT_LIMIT, size
from service.forge.base import ForgeError
from service.publisher.effects import ReviewPost
from tests.service.publisher.desk import ALL, OFF_BY_ONE, PATH, REPO, Desk, FlakyForge, snapshot


def on_line(number: int) -> Any:
    return lambda comment: comment.line == number


def test_a_refused_comment_goes_to_its_file_and_takes_no_sibling_down(desk: Desk) -> None:
    desk.publish(desk.review(*ALL), forge=FlakyForge(desk.forge, refuses=on_line(2)))
    assert len(desk.reviews()) == 1
    on_file, sibling = desk.inline()
    assert on_file.place == PATH
    assert "write stores into the slot after" in on_file.body
    assert f"📍 Actual place `{PATH}:2` (no comment can be attached to this line)" in on_file.body
    assert sibling.place == f"{PATH}:5"


def test_what_even_its_file_refuses_is_told_in_the_review(desk: Desk) -> None:
    desk.publish(desk.review(*ALL), forge=FlakyForge(desk.forge, refuses=lambda comment: comment.line != 5))
    assert [one.place for one in desk.inline()] == [f"{PATH}:5"]
    (review,) = desk.reviews()
    told = review.body.partition("### Comments that could not be placed")[2]
    assert f"**`{PATH}:2`**" in told
    assert "overwrites the neighbour's value" in told
    assert "read\\_9" not in told


def test_a_copy_of_our_comment_by_someone_else_does_not_stand_for_ours(desk: Desk) -> None:
    report = desk.review(OFF_BY_ONE)
    (effect,) = (one for one in desk.effects(report) if isinstance(one, ReviewPost))
    mallory = desk.forge.as_user("mallory")
    mallory.create_review_comment(REPO, desk.number, desk.pull.head_sha, effect.comments[0].comment)
    refusals = iter([True])
    desk.publish(report, forge=FlakyForge(desk.forge, refuses=lambda _: next(refusals, False)))
    assert [one.author.login for one in desk.inline()] == ["mallory", "whitesmoke[bot]"]


def test_a_review_with_refused_comments_is_published_again_without_a_change(desk: Desk) -> None:
    report = desk.review(*ALL)
    desk.publish(report, forge=FlakyForge(desk.forge, refuses=lambda comment: True))
    before = snapshot(desk)
    for notes in (desk.outbox, {}):
        desk.outbox = dict(notes)
        forge = FlakyForge(desk.forge, refuses=lambda comment: True)
        desk.publish(report, forge=forge)
        assert forge.writes == ["update_check"]
        assert snapshot(desk) == before


def test_refused_comments_that_do_not_fit_are_counted(desk: Desk) -> None:
    (effect,) = (one for one in desk.effects(desk.review(*ALL)) if isinstance(one, ReviewPost))
    first = effect.comments[0]
    many = tuple(
        first.model_copy(
            update={"comment": type(first.comment)(f"F{n}", PATH, f"<!-- {n} -->\n{'x' * 9_000}", 2, first.comment.side, None, None)}
        )
        for n in range(10)
    )  # fmt: skip
    desk.send((effect.model_copy(update={"comments": many}),), FlakyForge(desk.forge, refuses=lambda _: True))
    (review,) = desk.reviews()
    assert size(review.body) <= COMMENT_LIMIT
    assert review.body.count("x" * 9_000) == 7
    assert review.body.endswith("*3 more are told in the round report.*")


def test_a_push_between_two_refusals_is_a_stale_head_not_a_refusal(desk: Desk) -> None:
    review = [one for one in desk.effects(desk.review(*ALL)) if isinstance(one, ReviewPost)]

    def push_and_refuse(comment: Any) -> bool:
        desk.push({"notes.txt": "newer"})
        return True

    with pytest.raises(Exception, match="not at the reviewed"):
        desk.send(tuple(review), FlakyForge(desk.forge, refuses=push_and_refuse))
    assert desk.reviews() == desk.inline() == []


def test_a_review_that_is_refused_even_bare_is_an_error_that_says_why(desk: Desk) -> None:
    (effect,) = (one for one in desk.effects(desk.review(OFF_BY_ONE)) if isinstance(one, ReviewPost))
    with pytest.raises(ForgeError, match="65537 characters long") as caught:
        desk.send((effect.model_copy(update={"body": "x" * (COMMENT_LIMIT + 1)}),))
    assert (caught.value.status, caught.value.retry_after) == (422, None)


def test_other_errors_of_the_forge_are_passed_on_for_the_caller_to_retry(desk: Desk) -> None:
    def limited() -> ForgeError:
        return ForgeError("secondary rate limit", "wait", status=403, retry_after=60)

    review = tuple(one for one in desk.effects(desk.review(OFF_BY_ONE)) if isinstance(one, ReviewPost))
    forge = FlakyForge(desk.forge, fail_before=4, fault=limited)
    with pytest.raises(ForgeError) as caught:
        desk.send(review, forge)
    assert forge.calls[3] == "create_review"
    assert caught.value.retry_after == 60
    assert list(desk.forge.reviews(REPO, desk.number)) == []
