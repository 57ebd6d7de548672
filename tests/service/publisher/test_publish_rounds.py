"""What stands on a pull request after a round, and after the next ones."""

from __future__ import annotations

import pytest

from reviewer.model import Outcome
from reviewer.report.marker import marker, read_marker
from service.publisher.effects import RoundComment
from service.publisher.own import StaleHead
from service.publisher.publication import Posting, check_ended, check_started
from tests.service.publisher.desk import (
    ALL,
    FAR_AWAY,
    FIXED,
    OFF_BY_ONE,
    PATH,
    REPO,
    Desk,
    FlakyForge,
    snapshot,
)

FIX = {PATH: "def write(page, slot, value):\n    page[slot] = value\n    return None\n"}


def test_a_round_is_one_comment_one_review_with_its_inline_comments_and_one_completed_check(
    desk: Desk,
) -> None:
    desk.publish(desk.review(*ALL))
    assert len(desk.comments()) == len(desk.reviews()) == 1
    assert "BLOCKED(1)" in desk.comments()[0]
    assert "Status: BLOCKING" in desk.reviews()[0].body
    assert [one.place for one in desk.inline()] == [f"{PATH}:2", f"{PATH}:5"]
    (check,) = desk.forge.checks(REPO, desk.pull.head_sha)
    assert (check.name, check.status, check.conclusion) == ("whitesmoke/review", "completed", "failure")
    assert [one.path for one in check.annotations] == [PATH, PATH, "docs/guide.md"]


def test_a_finding_outside_every_hunk_or_file_of_the_diff_is_not_lost(desk: Desk) -> None:
    desk.publish(desk.review(*ALL))
    assert f"Actual place `{PATH}:39`" in desk.inline()[1].body
    assert "`docs/guide.md:2`" in desk.reviews()[0].body
    assert "Pages hold slots." in desk.reviews()[0].body


def test_three_pushes_leave_one_comment_among_more_than_a_hundred(desk: Desk) -> None:
    ada = desk.forge.as_user("ada")
    for number in range(60):
        ada.create_comment(REPO, desk.number, f"before {number}")
    for push in range(3):
        desk.push({"notes.txt": f"push {push}"})
        desk.outbox.clear()
        desk.publish(desk.review(OFF_BY_ONE))
        for number in range(60):
            ada.create_comment(REPO, desk.number, f"after {push}, {number}")
    ours = [body for body in desk.comments() if "whitesmoke:round" in body]
    assert len(ours) == 1
    assert "round 3 - BLOCKED(1)" in ours[0]


def test_publishing_the_same_head_again_posts_and_edits_nothing(desk: Desk) -> None:
    report = desk.review(*ALL)
    desk.publish(report)
    before = snapshot(desk)
    for notes in (desk.outbox, {}):
        desk.outbox = dict(notes)
        forge = FlakyForge(desk.forge)
        desk.publish(desk.review(*ALL), forge=forge)
        assert forge.writes == ["update_check"]
        assert snapshot(desk) == before


def test_a_marker_that_someone_else_pasted_first_is_not_taken_for_ours(desk: Desk) -> None:
    report = desk.review(*ALL)
    effects = desk.effects(report)
    body = next(one.body for one in effects if isinstance(one, RoundComment))
    review = marker("review", pull=7, round=1, head=desk.pull.head_sha)
    pasted = []
    for login in ("mallory", "whitesmoke", "other[bot]"):
        face = desk.forge.as_user(login)
        pasted.append(face.create_comment(REPO, desk.number, body))
        face.create_review(REPO, desk.number, desk.pull.head_sha, review, "COMMENT", [])
    desk.send(effects)
    ours = [one for one in desk.forge.comments(REPO, desk.number) if one.author.login == "whitesmoke[bot]"]
    assert len(ours) == 1
    assert ours[0].id not in pasted
    assert [one.author.login for one in desk.reviews()].count("whitesmoke[bot]") == 1
    assert len(desk.inline()) == 2


def test_a_comment_that_people_deleted_is_made_anew_once(desk: Desk) -> None:
    report = desk.review(OFF_BY_ONE)
    desk.publish(report)
    key = f"comment:{REPO}#{desk.number}"
    desk.forge.delete_comment(REPO, desk.number, int(desk.outbox[key] or 0))
    assert desk.comments() == []
    desk.publish(report)
    desk.publish(report)
    assert len(desk.comments()) == 1


def test_an_inline_comment_that_people_deleted_stays_deleted(desk: Desk) -> None:
    report = desk.review(*ALL)
    desk.publish(report)
    desk.forge.delete_review_comment(REPO, desk.number, desk.inline()[0].id)
    body = desk.reviews()[0].body
    desk.publish(report)
    assert len(desk.inline()) == 1
    assert desk.reviews()[0].body == body


def test_findings_still_open_are_not_posted_inline_again(desk: Desk) -> None:
    desk.publish(desk.review(OFF_BY_ONE))
    desk.push({"notes.txt": "more"})
    desk.publish(desk.review(OFF_BY_ONE, FAR_AWAY))
    assert ["F1" in one.body for one in desk.inline()] == [True, False]


def test_ids_that_begin_anew_after_a_lost_ledger_do_not_hide_new_comments(desk: Desk) -> None:
    desk.publish(desk.review(OFF_BY_ONE))
    desk.push({"notes.txt": "more"})
    desk.ledger = type(desk.ledger)()
    desk.outbox.clear()
    # Refused at first, so that the comments are posted one by one and compared with what is there.
    effects = desk.effects(desk.review(FAR_AWAY))
    refusals = iter([True])
    desk.send(effects, FlakyForge(desk.forge, refuses=lambda _: next(refusals, False)))
    assert ["read" in one.body for one in desk.inline()] == [False, True]


def test_each_earlier_review_says_once_that_it_is_superseded(desk: Desk) -> None:
    for push in range(3):
        desk.push({"notes.txt": f"push {push}"})
        desk.publish(desk.review(OFF_BY_ONE))
        desk.publish(desk.review(OFF_BY_ONE))
    first, second, third = (one.body for one in desk.reviews())
    assert first.count("> Superseded by the review of round 2, commit `") == 1
    assert second.count("> Superseded by the review of round 3, commit `") == 1
    assert first.count("Superseded") == second.count("Superseded") == 1
    assert "Superseded" not in third
    assert [(read_marker(body) or ("", {}))[1]["round"] for body in (first, second)] == [1, 2]
    assert all("Status: BLOCKING" in body for body in (first, second, third))


def test_what_is_no_review_of_a_round_and_what_requests_nothing_is_left_alone(desk: Desk) -> None:
    desk.publish(desk.review(OFF_BY_ONE))
    # A comment posted by itself counts as a review on some forges.
    desk.forge.create_review(REPO, desk.number, desk.pull.head_sha, "On this line:", "COMMENT", [])
    desk.push(FIX)
    desk.publish(desk.review(recheck=FIXED))
    assert [one.state for one in desk.reviews()] == ["COMMENTED"] * 3
    assert [one.body for one in desk.reviews()][1] == "On this line:"


def test_a_superseded_review_is_not_written_over(desk: Desk) -> None:
    early = desk.effects(desk.review(OFF_BY_ONE))
    desk.send(early)
    desk.publish(desk.review(OFF_BY_ONE, full=True))
    before = snapshot(desk)
    assert len(desk.reviews()) == 2
    desk.send(tuple(one for one in early if one.kind == "review"))
    assert snapshot(desk) == before


def test_changes_are_requested_where_policy_says_so_and_dismissed_on_lgtm(desk: Desk) -> None:
    posting = Posting(blocked_event="REQUEST_CHANGES")
    desk.publish(desk.review(OFF_BY_ONE), posting)
    assert [one.state for one in desk.reviews()] == ["CHANGES_REQUESTED"]
    desk.push(FIX)
    report = desk.review(recheck=FIXED)
    assert report.verdict.outcome is Outcome.LGTM
    desk.publish(report, posting)
    assert [one.state for one in desk.reviews()] == ["DISMISSED", "COMMENTED"]


def test_a_maintainers_dismissal_of_the_last_blocker_lifts_what_this_round_requested(desk: Desk) -> None:
    posting = Posting(blocked_event="REQUEST_CHANGES")
    desk.publish(desk.review(OFF_BY_ONE), posting)
    desk.ledger = desk.ledger.dismiss("F1", "olga", "slots are offset by one on purpose")
    assert desk.ledger.last is not None
    desk.publish(desk.ledger.last, posting)
    (review,) = desk.reviews()
    assert review.state == "DISMISSED"
    assert "Status: LGTM" in review.body
    assert "Superseded" not in review.body
    assert len(desk.comments()) == 1
    assert [one.state for one in desk.inline()] == [""]
    (check,) = desk.forge.checks(REPO, desk.pull.head_sha)
    assert check.conclusion == "success"


def test_changes_requested_stand_while_something_blocks(desk: Desk) -> None:
    posting = Posting(blocked_event="REQUEST_CHANGES")
    for push in range(2):
        desk.push({"notes.txt": f"push {push}"})
        desk.publish(desk.review(OFF_BY_ONE), posting)
    assert [one.state for one in desk.reviews()] == ["CHANGES_REQUESTED"] * 2


def test_nobody_requests_changes_of_its_own_pull_request(desk: Desk) -> None:
    desk.forge = desk.forge.as_user("ada")  # as with ada's token
    desk.publish(desk.review(*ALL), Posting(blocked_event="REQUEST_CHANGES"))
    assert [one.state for one in desk.reviews()] == ["COMMENTED"]
    assert len(desk.inline()) == 2


def test_a_review_of_a_head_that_was_pushed_over_is_refused_and_posts_nothing(desk: Desk) -> None:
    review = [one for one in desk.effects(desk.review(*ALL)) if one.kind == "review"]
    desk.push({"notes.txt": "newer"})
    with pytest.raises(StaleHead, match=r"acme/cache#1 is at [0-9a-f]{12}, not at the reviewed"):
        desk.send(tuple(review))
    assert snapshot(desk) == [()]


def test_labels_say_the_verdict_and_other_labels_are_kept(desk: Desk) -> None:
    names = {Outcome.BLOCKED: "review: blocked", Outcome.LGTM: "review: ok"}
    desk.forge.set_labels(REPO, desk.number, ["kernels", "review: ok"], [])
    desk.publish(desk.review(OFF_BY_ONE), Posting(labels=names))
    assert desk.pull.labels == ("kernels", "review: blocked")
    forge = FlakyForge(desk.forge)
    desk.publish(desk.review(OFF_BY_ONE), Posting(labels=names), forge)
    assert "set_labels" not in forge.calls
    desk.push(FIX)
    desk.publish(desk.review(recheck=FIXED), Posting(labels=names))
    assert desk.pull.labels == ("kernels", "review: ok")


def test_the_started_check_becomes_the_verdict_or_ends_without_one(desk: Desk) -> None:
    head = desk.pull.head_sha

    def standing() -> tuple[str, str | None]:
        (check,) = desk.forge.checks(REPO, head)
        return check.status, check.conclusion

    desk.send((check_started(REPO, head, Posting(), "en"),))
    assert standing() == ("in_progress", None)
    desk.send((check_ended(REPO, head, Posting(), "en", reason="the endpoint answers 401"),))
    assert standing() == ("completed", "action_required")
    desk.send((check_ended(REPO, head, Posting(), "en"),))
    assert standing() == ("completed", "cancelled")
    desk.publish(desk.review())
    assert standing() == ("completed", "success")
