"""Every rule of when the service acts, and on whose word: one row each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ci_dispatch.policy import CiPolicy
from service.events.commands import Help, Invalid, Review
from service.events.intents import (
    ButtonPressed,
    ChecksEnded,
    Ignored,
    InstallationChanged,
    Intent,
    PhraseSaid,
    PolicyChanged,
    Recheck,
    ReviewDismissed,
    ReviewSubmitted,
    read_intent,
)
from service.events.payloads import read_payload
from service.events.policy import ServicePolicy
from service.events.rules import Context, decide
from service.forge.base import User
from tests.service.events.deliveries import (
    HEAD,
    ME,
    OURSELVES,
    RENOVATE,
    SAMPLES,
    ask,
    checked,
    commented,
    installed,
    labeled,
    pushed,
    remarked,
    reviewed,
    suite,
)
from tests.service.events.pull_rules import AT, BOB_, LABELING, LABELS, PULLS, RUN, Row, check, no, run

OWN_COMMENT = no("our own comment")
COMMENTS = [
    Row("a command", "issue_comment", commented("/review full"), (run(Review(full=True)),)),
    Row(
        "commands run in order",
        "issue_comment",
        commented("/help\ntext\n/reveiw"),
        (run(Help()), run(Invalid(line="/reveiw", problem="unknown", hint="/review"), 1)),
    ),
    Row(
        "a command on the diff",
        "pull_request_review_comment",
        remarked("/help"),
        (run(Help(), comment_id=32, inline=True),),
    ),
    Row("words", "issue_comment", commented("nice"), (no("a comment without commands"),)),
    Row("nothing", "issue_comment", commented(None), (no("a comment without commands"),)),
    Row(
        "an edited comment",
        "issue_comment",
        commented("/help", action="edited"),
        (no("a comment edited runs no command"),),
    ),
    Row(
        "a deleted comment",
        "issue_comment",
        commented("/help", action="deleted"),
        (no("a comment deleted runs no command"),),
    ),
    Row(
        "an edited comment on the diff",
        "pull_request_review_comment",
        remarked("/help", action="edited"),
        (no("a comment edited runs no command"),),
    ),
    Row(
        "a comment on an issue",
        "issue_comment",
        {**commented("/help"), "issue": {"number": 7}},
        (no("a comment on an issue"),),
    ),
    Row("our own comment, in any case", "issue_comment", commented("/help", OURSELVES), (OWN_COMMENT,)),
    Row("our own account as a user", "issue_comment", commented("/help", {"login": ME}), (OWN_COMMENT,)),
    Row(
        "a comment that our app wrote for a user",
        "issue_comment",
        commented("/help", performed_via_github_app={"id": 77}),
        (OWN_COMMENT,),
    ),
    Row(
        "a comment that another app wrote for a user",
        "issue_comment",
        commented("/help", performed_via_github_app={"id": 78}),
        (run(Help()),),
    ),
    *(
        Row(
            f"a bot commands nothing: {by}",
            "issue_comment",
            commented("/help", by),
            (no(f"{by['login']} is a bot: it commands nothing"),),
        )
        for by in (RENOVATE, {"login": "x[bot]", "type": "User"}, {"login": "y", "type": "Bot"})
    ),
    Row(
        "a bot on the diff",
        "pull_request_review_comment",
        remarked("/help", RENOVATE),
        (no("renovate[bot] is a bot: it commands nothing"),),
    ),
    Row(
        "a bot that posts for a user",
        "issue_comment",
        {**commented("/help"), "sender": RENOVATE},
        (no("renovate[bot] is a bot: it commands nothing"),),
    ),
]

PHRASE = "lgtm ready to ci"
CI = CiPolicy.model_validate({"mode": "native", "gate": {"trusted": ["renovate[bot]"]}})
SHIP = CiPolicy.model_validate({"mode": "native", "gate": {"phrase": "ship it"}})
SAID: dict[str, Any] = {**AT, "comment_id": 31, "author": BOB_}
PHRASES = [
    Row("the phrase", "issue_comment", commented(PHRASE), (PhraseSaid(**SAID),), ci=CI),
    Row(
        "the phrase where CI is off", "issue_comment", commented(PHRASE), (no("a comment without commands"),)
    ),
    Row("another phrase", "issue_comment", commented(PHRASE), (no("a comment without commands"),), ci=SHIP),
    Row("the policy's phrase", "issue_comment", commented("Ship it"), (PhraseSaid(**SAID),), ci=SHIP),
    Row(
        "any words before the policy is known",
        "issue_comment",
        commented("Ship"),
        (PhraseSaid(**SAID),),
        ci=None,
    ),
    Row(
        "the phrase beside a command",
        "issue_comment",
        commented(f"/help\n\n{PHRASE}"),
        (run(Help()), PhraseSaid(**SAID)),
        ci=CI,
    ),
    Row(
        "the phrase of a bot is told on: the gate decides",
        "issue_comment",
        commented(PHRASE, RENOVATE),
        (PhraseSaid(**{**SAID, "author": User("renovate[bot]", True)}),),
        ci=CI,
    ),
    Row("the phrase of ours", "issue_comment", commented(PHRASE, OURSELVES), (OWN_COMMENT,), ci=CI),
    Row(
        "the phrase in an edited comment",
        "issue_comment",
        commented(PHRASE, action="edited"),
        (no("a comment edited runs no command"),),
        ci=CI,
    ),
    Row(
        "the phrase on the diff",
        "pull_request_review_comment",
        remarked(PHRASE),
        (no("a comment without commands"),),
        ci=CI,
    ),
]

SUBMITTED: dict[str, Any] = {**AT, "review_id": 41, "author": BOB_, "commit": HEAD}
REVIEWS = [
    Row(
        "a review",
        "pull_request_review",
        reviewed("submitted"),
        (ReviewSubmitted(**SUBMITTED, state="APPROVED"),),
    ),
    Row(
        "a review of another bot is told on: the gate decides",
        "pull_request_review",
        reviewed("submitted", RENOVATE),
        (ReviewSubmitted(**{**SUBMITTED, "author": User("renovate[bot]", True)}, state="APPROVED"),),
    ),
    Row(
        "a review dismissed",
        "pull_request_review",
        reviewed("dismissed", state="dismissed"),
        (ReviewDismissed(**SUBMITTED),),
    ),
    Row(
        "a review edited",
        "pull_request_review",
        reviewed("edited"),
        (no("an edited review says nothing new"),),
    ),
    Row("our own review", "pull_request_review", reviewed("submitted", OURSELVES), (no("our own review"),)),
    Row(
        "our own review dismissed",
        "pull_request_review",
        reviewed("dismissed", OURSELVES),
        (no("our own review"),),
    ),
    Row(
        "commands are for comments, not for reviews",
        "pull_request_review",
        reviewed("submitted", body="/review full"),
        (ReviewSubmitted(**SUBMITTED, state="APPROVED"),),
    ),
]

PRESSED = {"requested_action": {"identifier": "full"}}
ANOTHER = no("another app's check")
ELSEWHERE = [{"number": 7, "base": {"repo": {"id": 5}}}, {"number": 90, "base": {"repo": {"id": 6}}}]
CHECKS = [
    Row("a check is asked for again", "check_run", checked("rerequested"), (check(Recheck, **RUN),)),
    Row(
        "from a fork: no pull request is named",
        "check_run",
        checked("rerequested", pull_requests=[]),
        (check(Recheck, (), **RUN),),
    ),
    Row(
        "pull requests of other repositories",
        "check_run",
        checked("rerequested", pull_requests=ELSEWHERE),
        (check(Recheck, **RUN),),
    ),
    Row(
        "a button",
        "check_run",
        checked("requested_action", more=PRESSED),
        (check(ButtonPressed, identifier="full", **RUN),),
    ),
    Row("another app's check", "check_run", checked("rerequested", app={"id": 78}), (ANOTHER,)),
    Row("another app's button", "check_run", checked("requested_action", more=PRESSED, app=None), (ANOTHER,)),
    Row(
        "a bot asks for a check",
        "check_run",
        checked("rerequested", RENOVATE),
        (no("renovate[bot] is a bot: it asks for no check"),),
    ),
    Row(
        "we ask ourselves",
        "check_run",
        checked("rerequested", {"login": ME}),
        (no(f"{ME} is a bot: it asks for no check"),),
    ),
    Row(
        "a check is done", "check_run", checked("completed"), (no("nothing depends on check_run completed"),)
    ),
    Row(
        "all checks again",
        "check_suite",
        suite("rerequested"),
        (check(Recheck, (), check_run_id=None, name=""),),
    ),
    Row("all of another app", "check_suite", suite("rerequested", app={"id": 78}), (ANOTHER,)),
    Row(
        "all of another app have ended",
        "check_suite",
        suite("completed", app={"id": 78}),
        (ChecksEnded(repo="acme/app", head_sha=suite("completed")["check_suite"]["head_sha"]),),
    ),
    Row("all of ours have ended", "check_suite", suite("completed"), (no("our own checks"),)),
    Row(
        "a new suite",
        "check_suite",
        suite("requested"),
        (no("a new check suite: the pull request's own event starts its review"),),
    ),
]

FILE = ".whitesmoke.yml"
AS_IT_WAS = no(f"the push leaves {FILE} as it was")
NO_BRANCH = no("no branch was pushed to")
TRUNK = PolicyChanged(repo="acme/app", branch="trunk", default=True)
PUSHES = [
    Row("the policy of the default branch", "push", pushed("refs/heads/trunk", "a.py", FILE), (TRUNK,)),
    *(
        Row(f"the policy is {change}", "push", pushed(commits=[{change: [FILE]}]), (TRUNK,))
        for change in ("added", "modified", "removed")
    ),
    Row(
        "the policy of another branch, with a slash",
        "push",
        pushed("refs/heads/release/1", FILE),
        (PolicyChanged(repo="acme/app", branch="release/1", default=False),),
    ),
    Row("a force push may take a commit away", "push", pushed(forced=True), (TRUNK,)),
    Row("a list that may be cut", "push", pushed(commits=[{}] * 2048), (TRUNK,)),
    Row("a list that is whole", "push", pushed(commits=[{}] * 2047), (AS_IT_WAS,)),
    Row("a file of that name elsewhere", "push", pushed("refs/heads/trunk", f"sub/{FILE}"), (AS_IT_WAS,)),
    Row("a tag", "push", pushed("refs/tags/v1", FILE), (NO_BRANCH,)),
    Row("a branch is gone", "push", pushed("refs/heads/trunk", deleted=True), (NO_BRANCH,)),
]

ONE = [{"full_name": "acme/app"}]
INSTALLATIONS = [
    *(
        Row(
            f"installation {action}",
            "installation",
            installed(action, repositories=ONE),
            (InstallationChanged(installation_id=9, active=True, added=("acme/app",)),),
        )
        for action in ("created", "unsuspend", "new_permissions_accepted")
    ),
    *(
        Row(
            f"installation {action}",
            "installation",
            installed(action, repositories=ONE),
            (InstallationChanged(installation_id=9, active=False, removed=("acme/app",)),),
        )
        for action in ("deleted", "suspend")
    ),
    Row(
        "repositories come and go",
        "installation_repositories",
        installed("added", repositories_added=ONE, repositories_removed=[{"full_name": "acme/old"}]),
        (InstallationChanged(installation_id=9, active=True, added=("acme/app",), removed=("acme/old",)),),
    ),
    Row("ping", "ping", {"zen": "x"}, (no("ping"),)),
    Row("an event without use", "star", {"action": "created"}, (no("nothing depends on star created"),)),
    Row("an event without use or action", "fork", {}, (no("nothing depends on fork"),)),
]

ROWS = [*PULLS, *LABELING, *COMMENTS, *PHRASES, *REVIEWS, *CHECKS, *PUSHES, *INSTALLATIONS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rule)
def test_rule(row: Row) -> None:
    assert ask(row.event, row.payload, row.policy, row.ci) == row.intents


def test_every_kind_of_intent_stands_in_the_table() -> None:
    assert {type(intent) for row in ROWS for intent in row.intents} == set(Intent.__args__)


def test_every_delivery_that_is_read_has_a_rule() -> None:
    for event, payload in SAMPLES:
        assert ask(event, payload), event


def test_with_a_token_no_check_is_ours_not_even_one_without_an_app() -> None:
    for app in (None, {"id": 77}):
        payload = read_payload("check_run", json.dumps(checked("rerequested", app=app)).encode())
        assert decide(payload, Context("whitesmoke-user")) == (ANOTHER,)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rule)
def test_intents_survive_the_way_through_a_queue(row: Row) -> None:
    for intent in row.intents:
        assert read_intent(intent.model_dump_json()) == intent


def test_our_labels_never_start_a_review_whatever_the_policy() -> None:
    for policy in (LABELS, {"triggers": {"labels": ["wip"]}}):
        for name in ("review me", "wip"):
            for action in ("labeled", "unlabeled"):
                (intent,) = ask("pull_request", labeled(action, name, OURSELVES), policy)
                assert isinstance(intent, Ignored)


@pytest.mark.parametrize(
    ("event", "payload"),
    [
        ("issue_comment", commented("/help", {"login": "Carol"})),
        ("pull_request_review", reviewed("submitted", {"login": "Carol"})),
        ("pull_request", labeled("labeled", "review me", {"login": "Carol"})),
        ("check_run", checked("rerequested", {"login": "Carol"})),
    ],
)
def test_an_account_of_ours_that_is_no_bot_is_still_ours(event: str, payload: dict[str, Any]) -> None:
    policy = ServicePolicy.model_validate(LABELS)
    (intent,) = decide(read_payload(event, json.dumps(payload).encode()), Context("carol", 77, policy))
    assert isinstance(intent, Ignored)
    assert decide(read_payload(event, json.dumps(payload).encode()), Context("dave", 77, policy)) != (intent,)
