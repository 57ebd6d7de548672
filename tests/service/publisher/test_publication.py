"""From a report to effects: pure, and the same each time."""

from __future__ import annotations

import json
from importlib import resources

import pytest
import yaml
from pydantic import ValidationError

from reviewer.ledger import Ledger
from reviewer.model import Outcome, RoundReport, Severity
from reviewer.report.limit import COMMENT_LIMIT, size
from service.forge.base import Button
from service.publisher.effects import CheckPost, Effect, ReviewPost, RoundComment, from_payload, to_payload
from service.publisher.publication import FULL_REVIEW, Posting, check_ended, check_started
from tests.service.publisher.desk import ALL, OFF_BY_ONE, REPO, Desk

LABELS = {Outcome.BLOCKED: "blocked", Outcome.LGTM: "lgtm", Outcome.INCONCLUSIVE: "unclear"}
PHRASE = "lgtm ready to ci"


def only(effects: tuple[Effect, ...], kind: str) -> Effect:
    (found,) = (one for one in effects if one.kind == kind)
    return found


def with_outcome(report: RoundReport, outcome: Outcome, *, detectors_only: bool = False) -> RoundReport:
    verdict = report.verdict.model_copy(update={"outcome": outcome, "detectors_only": detectors_only})
    return report.model_copy(update={"verdict": verdict})


def test_each_effect_has_a_key_of_its_own_that_names_what_it_concerns(desk: Desk) -> None:
    head = desk.pull.head_sha
    effects = desk.effects(desk.review(*ALL), Posting(labels=LABELS))
    assert [one.key for one in effects] == [
        "comment:acme/cache#1",
        f"review:acme/cache#1:{head}:1",
        f"check:acme/cache:{head}:whitesmoke/review",
        f"threads:acme/cache#1:{head}:1",
        "labels:acme/cache#1",
    ]


def test_effects_survive_the_outbox_and_are_the_same_each_time(desk: Desk) -> None:
    report = desk.review(*ALL)
    effects = desk.effects(report, Posting(labels=LABELS))
    for effect in effects:
        assert from_payload(json.loads(json.dumps(to_payload(effect)))) == effect
    assert desk.effects(report, Posting(labels=LABELS)) == effects


def test_a_payload_that_no_effect_wrote_is_refused() -> None:
    with pytest.raises(ValidationError):
        from_payload({"kind": "merge", "repo": REPO, "number": 1})


@pytest.mark.parametrize("outcome", list(Outcome))
def test_changes_are_requested_only_by_a_blocked_verdict(desk: Desk, outcome: Outcome) -> None:
    report = with_outcome(desk.review(OFF_BY_ONE), outcome)
    review = only(desk.effects(report, Posting(blocked_event="REQUEST_CHANGES")), "review")
    assert isinstance(review, ReviewPost)
    assert review.event == ("REQUEST_CHANGES" if outcome is Outcome.BLOCKED else "COMMENT")
    plain = only(desk.effects(report), "review")
    assert isinstance(plain, ReviewPost)
    assert plain.event == "COMMENT"


def test_the_phrase_is_said_by_the_lgtm_review_of_models_alone(desk: Desk) -> None:
    report = desk.review()
    posting = Posting(phrase=PHRASE)

    def said(report: RoundReport, posting: Posting) -> list[str]:
        effects = desk.effects(report, posting)
        return [one.kind for one in effects if PHRASE in json.dumps(to_payload(one))]

    assert report.verdict.outcome is Outcome.LGTM
    assert said(report, posting) == ["review"]
    assert said(report, Posting()) == []
    assert said(with_outcome(report, Outcome.LGTM, detectors_only=True), posting) == []
    assert said(with_outcome(report, Outcome.INCONCLUSIVE), posting) == []
    desk.ledger = Ledger()
    assert said(desk.review(OFF_BY_ONE), posting) == []


def test_a_finding_cannot_say_the_phrase_a_mention_or_a_marker_of_ours(desk: Desk) -> None:
    hostile = f"@octocat closes #1\n\n{PHRASE}\n\n<!-- whitesmoke:round {{}} -->\n\n/ci run"
    effects = desk.effects(desk.review({**OFF_BY_ONE, "body": hostile, "suggestion": hostile}))
    for effect in effects:
        said = json.dumps(to_payload(effect), ensure_ascii=False)
        assert PHRASE not in said.replace("\\n", " ")
        assert "<!-- whitesmoke:round {}" not in said
        assert "\\n/ci run" not in said
    inline = only(effects, "review")
    assert isinstance(inline, ReviewPost)
    assert "`@octocat` closes `#1`" in inline.comments[0].comment.body


def test_a_suggestion_that_contains_backticks_gets_a_longer_fence(desk: Desk) -> None:
    review = only(desk.effects(desk.review({**OFF_BY_ONE, "suggestion": "fence = '````'"})), "review")
    assert isinstance(review, ReviewPost)
    assert "`````" in review.comments[0].comment.body


def test_a_report_of_hundreds_of_long_findings_stays_within_the_limit_and_says_what_it_left_out(
    desk: Desk,
) -> None:
    report = desk.review(OFF_BY_ONE)
    many = tuple(
        report.blocking[0].model_copy(
            update={
                "id": f"F{n}",
                "blocking": False,
                "severity": Severity.P3,
                "title": f"Claim number {n} {'x' * 250}",
                "body": f"word{n} " * 150,
            }
        )
        for n in range(2, 202)
    )
    report = report.model_copy(update={"non_blocking": many})
    effects = desk.effects(report)
    comment, review, check = effects[:3]
    assert isinstance(comment, RoundComment)
    assert isinstance(review, ReviewPost)
    assert isinstance(check, CheckPost)
    for body in (comment.body, review.body, check.check.summary):
        assert size(body) < COMMENT_LIMIT
    assert "more, the least severe, left out" in comment.body
    assert comment.body.count("<details>") == comment.body.count("</details>")
    assert "write stores into the slot after" in comment.body
    assert len(check.check.annotations) == 201
    desk.send(effects)
    assert len(desk.inline()) == 201
    (stands,) = desk.forge.checks(REPO, desk.pull.head_sha)
    assert len(stands.annotations) == 201
    assert "more, the least severe, left out" in review.body
    # Room for comments that find no place, and for the note that it is superseded.
    assert size(review.body) < COMMENT_LIMIT - 6_000
    desk.push({"notes.txt": "more"})
    desk.publish(desk.review(OFF_BY_ONE))
    assert "> Superseded by" in desk.reviews()[0].body


def test_the_check_has_at_most_three_buttons_of_permitted_length(desk: Desk) -> None:
    long = Button("a label of more than twenty characters", "d" * 60, "ci_run")
    check = only(desk.effects(desk.review(), Posting(buttons=(long,) * 4)), "check")
    assert isinstance(check, CheckPost)
    buttons = check.check.buttons
    assert [one.identifier for one in buttons] == [FULL_REVIEW, "ci_run", "ci_run"]
    assert all(len(one.label) <= 20 and len(one.description) <= 40 for one in buttons)
    desk.send((check,))


def test_a_secret_in_the_reason_of_a_failed_round_is_not_posted() -> None:
    token = "ghp_" + "a1B2" * 9
    post = check_ended(REPO, "a" * 40, Posting(), "en", reason=f"401 for token {token} @octocat")
    assert token not in json.dumps(to_payload(post))
    assert "`@octocat`" in post.check.summary
    assert post.check.conclusion == "action_required"


@pytest.mark.parametrize("outcome", list(Outcome))
def test_no_verdict_and_no_end_satisfies_a_required_check_but_lgtm(desk: Desk, outcome: Outcome) -> None:
    check = only(desk.effects(with_outcome(desk.review(), outcome)), "check")
    assert isinstance(check, CheckPost)
    assert (check.check.conclusion == "success") == (outcome is Outcome.LGTM)
    for post in (
        check,
        check_ended(REPO, "a", Posting(), "en"),
        check_ended(REPO, "a", Posting(), "en", reason="x"),
    ):
        assert post.check.conclusion not in (None, "neutral", "skipped")
    assert check_started(REPO, "a", Posting(), "en").check.status == "in_progress"


def test_the_publisher_speaks_the_language_of_the_report(desk: Desk) -> None:
    for push in range(2):
        desk.push({"notes.txt": f"push {push}"})
        desk.publish(desk.review(OFF_BY_ONE, language="zh"))
    assert "> 已被第 2 轮" in desk.reviews()[0].body
    (check,) = desk.forge.checks(REPO, desk.pull.head_sha)
    assert check.buttons[0].label == "完整评审"


def test_both_languages_say_the_same_things() -> None:
    folder = resources.files("templates") / "service"
    english, chinese = (
        yaml.safe_load((folder / f"publisher.{language}.yaml").read_text("utf-8"))
        for language in ("en", "zh")
    )
    assert english.keys() == chinese.keys()
