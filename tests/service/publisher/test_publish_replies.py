"""Answers to commands and words said unasked: once each, whatever happens."""

from __future__ import annotations

import pytest

from service.forge.base import ForgeError, User
from service.publisher.effects import Reaction, Reply
from service.publisher.own import is_own
from tests.service.publisher.desk import OFF_BY_ONE, REPO, Desk, FlakyForge, Killed

BOT = User("whitesmoke[bot]", is_bot=True)


def reply(to: str = "comment:7", body: str = "Queued.") -> Reply:
    return Reply(repo=REPO, number=1, to=to, body=body)


def test_an_answer_is_given_once_and_edited_where_it_changes(desk: Desk) -> None:
    for notes in (True, False):
        for body in ("Queued.", "Queued.", "Done."):
            if not notes:
                desk.outbox.clear()
            desk.send((reply(body=body),))
    (said,) = desk.comments()
    assert said.endswith("-->\nDone.")


def test_answers_to_different_comments_and_the_report_are_apart(desk: Desk) -> None:
    desk.publish(desk.review(OFF_BY_ONE))
    for _ in range(2):
        desk.outbox.clear()
        desk.send((reply("comment:7", "One."), reply("comment:77", "Two."), reply("policy:a-b", "Three.")))
        desk.publish(desk.review(OFF_BY_ONE))
    assert [body.rsplit("\n", 1)[1] for body in desk.comments()[1:]] == ["One.", "Two.", "Three."]


def test_an_answer_given_before_the_first_report_is_not_written_over(desk: Desk) -> None:
    desk.send((reply(),))
    desk.publish(desk.review(OFF_BY_ONE))
    answer, report = desk.comments()
    assert answer.endswith("Queued.")
    assert "BLOCKED(1)" in report


def test_an_answer_of_ours_that_someone_copied_is_not_ours(desk: Desk) -> None:
    desk.send((reply(),))
    copied = desk.comments()[0]
    desk.forge.delete_comment(REPO, 1, next(desk.forge.comments(REPO, 1)).id)
    desk.outbox.clear()
    desk.forge.as_user("mallory").create_comment(REPO, 1, copied)
    desk.send((reply(body="Other."),))
    assert [one.author.login for one in desk.forge.comments(REPO, 1)] == ["mallory", "whitesmoke[bot]"]
    assert desk.comments()[0] == copied


@pytest.mark.parametrize("position", ["fail_before", "fail_after"])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_an_answer_that_was_interrupted_is_given_once(desk: Desk, position: str, call: int) -> None:
    with pytest.raises(Killed):
        desk.send((reply(),), FlakyForge(desk.forge, **{position: call}))
    desk.send((reply(),))
    assert len(desk.comments()) == 1


def test_a_reaction_is_given_once_and_a_deleted_comment_gets_none(desk: Desk) -> None:
    comment = desk.forge.as_user("ada").create_comment(REPO, 1, "/review")
    react = Reaction(repo=REPO, number=1, comment_id=comment, reaction="+1")
    desk.send((react, react))
    assert desk.forge.reactions(REPO, 1, comment) == (("+1", BOT),)
    desk.forge.delete_comment(REPO, 1, comment)
    desk.send((react,))


def test_a_reaction_that_fails_for_another_reason_is_an_error(desk: Desk) -> None:
    react = Reaction(repo=REPO, number=1, comment_id=1, reaction="eyes")
    forge = FlakyForge(desk.forge, fail_before=1, fault=lambda: ForgeError("no", "", status=403))
    with pytest.raises(ForgeError):
        desk.send((react,), forge)


def test_a_person_with_the_name_of_a_bot_is_not_the_bot() -> None:
    assert is_own(User("WhiteSmoke[bot]", is_bot=True), BOT)
    assert not is_own(User("whitesmoke[bot]"), BOT)
    assert not is_own(User("whitesmoke", is_bot=True), BOT)
