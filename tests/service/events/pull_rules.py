"""The table of rules for pull requests and labels, and what its rows are made of."""

from __future__ import annotations

from typing import Any, NamedTuple

from ci_dispatch.policy import CiPolicy
from service.events.intents import (
    DraftChanged,
    HeadChanged,
    Ignored,
    Intent,
    PullClosed,
    Reason,
    ReviewRequested,
    RunCommand,
)
from service.forge.base import User
from tests.service.events.deliveries import CI_OFF, HEAD, OLD, OURSELVES, RENOVATE, labeled, pulled

AT: dict[str, Any] = {"repo": "acme/app", "number": 7}
BOB_ = User("bob")


class Row(NamedTuple):
    rule: str
    event: str
    payload: dict[str, Any]
    intents: tuple[Intent, ...]
    policy: dict[str, Any] = {}
    ci: CiPolicy | None = CI_OFF


def review(reason: Reason, *, debounce: bool = False) -> ReviewRequested:
    return ReviewRequested(**AT, head_sha=HEAD, reason=reason, debounce=debounce)


def head(supersedes: str | None = None) -> HeadChanged:
    return HeadChanged(**AT, head_sha=HEAD, supersedes=supersedes)


def no(reason: str) -> Ignored:
    return Ignored(reason=reason)


def run(command: Any, index: int = 0, *, comment_id: int = 31, inline: bool = False) -> RunCommand:
    return RunCommand(**AT, comment_id=comment_id, inline=inline, index=index, author=BOB_, command=command)


def check(kind: Any, pulls: tuple[int, ...] = (7,), **more: Any) -> Any:
    return kind(repo="acme/app", head_sha=HEAD, pulls=pulls, by=BOB_, **more)


RUN = {"check_run_id": 51, "name": "whitesmoke/review"}
CLOSED = no("the pull request is closed")
DRAFT = no("policy: drafts wait until they are ready")
HELD = no("policy: the label 'WIP' holds reviews back")
LABELS = {"triggers": {"labels": ["review me"], "skip_labels": ["wip"]}}
BASE = {"changes": {"base": {"ref": {"from": "old"}}}}
PUSH = {"before": OLD, "after": HEAD}
WIP = [{"name": "WIP"}]

PULLS = [
    Row("opened: reviewed at once", "pull_request", pulled("opened"), (head(), review("opened"))),
    Row("reopened: reviewed", "pull_request", pulled("reopened"), (head(), review("reopened"))),
    Row(
        "a push: debounced, and supersedes",
        "pull_request",
        pulled("synchronize", more=PUSH),
        (head(OLD), review("pushed", debounce=True)),
    ),
    Row(
        "a bot's push is reviewed",
        "pull_request",
        pulled("synchronize", RENOVATE, more=PUSH),
        (head(OLD), review("pushed", debounce=True)),
    ),
    Row("a draft waits", "pull_request", pulled("opened", draft=True), (head(), DRAFT)),
    Row(
        "a push to a draft waits",
        "pull_request",
        pulled("synchronize", more=PUSH, draft=True),
        (head(OLD), DRAFT),
    ),
    Row(
        "a draft is reviewed by policy",
        "pull_request",
        pulled("opened", draft=True),
        (head(), review("opened")),
        {"triggers": {"drafts": True}},
    ),
    Row(
        "a draft that is ready: reviewed",
        "pull_request",
        pulled("ready_for_review"),
        (DraftChanged(**AT, draft=False), review("ready")),
    ),
    Row(
        "converted to a draft",
        "pull_request",
        pulled("converted_to_draft", draft=True),
        (DraftChanged(**AT, draft=True),),
    ),
    Row("closed", "pull_request", pulled("closed", state="closed"), (PullClosed(**AT, merged=False),)),
    Row(
        "merged",
        "pull_request",
        pulled("closed", state="closed", merged=True),
        (PullClosed(**AT, merged=True),),
    ),
    Row(
        "another base: debounced",
        "pull_request",
        pulled("edited", more=BASE),
        (review("base_changed", debounce=True),),
    ),
    Row(
        "another title: nothing",
        "pull_request",
        pulled("edited", more={"changes": {"title": {"from": "x"}}}),
        (no("the base is the same as before"),),
    ),
    Row(
        "another base of a closed one", "pull_request", pulled("edited", more=BASE, state="closed"), (CLOSED,)
    ),
    Row(
        "a late push to a closed one", "pull_request", pulled("synchronize", state="closed"), (head(), CLOSED)
    ),
    Row(
        "a bot's pull request is reviewed",
        "pull_request",
        pulled("opened", RENOVATE, user=RENOVATE),
        (head(), review("opened")),
    ),
    Row(
        "a bot's pull request is left alone by policy",
        "pull_request",
        pulled("opened", RENOVATE, user=RENOVATE),
        (head(), no("policy: pull requests of bots are left alone")),
        {"triggers": {"bots": False}},
    ),
    Row(
        "nothing unasked by policy",
        "pull_request",
        pulled("opened"),
        (head(), no("policy: reviews are started by command or label")),
        {"triggers": {"automatic": False}},
    ),
    Row("a skip label holds back", "pull_request", pulled("opened", labels=WIP), (head(), HELD), LABELS),
    Row("no skip label by default", "pull_request", pulled("opened", labels=WIP), (head(), review("opened"))),
    Row(
        "assigned: nothing",
        "pull_request",
        pulled("assigned"),
        (no("nothing depends on pull_request assigned"),),
    ),
]

ASKED_NOTHING = no("the label asks for nothing")
LABELING = [
    Row(
        "a label asks, whatever its case",
        "pull_request",
        labeled("labeled", "Review ME"),
        (review("labeled"),),
        LABELS,
    ),
    Row(
        "a label asks for a draft",
        "pull_request",
        labeled("labeled", "review me", draft=True),
        (review("labeled"),),
        LABELS,
    ),
    Row(
        "a label asks where nothing is automatic",
        "pull_request",
        labeled("labeled", "review me"),
        (review("labeled"),),
        {"triggers": {"automatic": False, "labels": ["review me"]}},
    ),
    Row(
        "a label on a closed one",
        "pull_request",
        labeled("labeled", "review me", state="closed"),
        (CLOSED,),
        LABELS,
    ),
    Row("another label", "pull_request", labeled("labeled", "bug"), (ASKED_NOTHING,), LABELS),
    Row(
        "labels ask for nothing by default", "pull_request", labeled("labeled", "review me"), (ASKED_NOTHING,)
    ),
    Row("a skip label is gone", "pull_request", labeled("unlabeled", "wip"), (review("unlabeled"),), LABELS),
    Row(
        "a skip label is gone from a draft",
        "pull_request",
        labeled("unlabeled", "wip", draft=True),
        (DRAFT,),
        LABELS,
    ),
    Row(
        "a skip label is gone, one is left",
        "pull_request",
        labeled("unlabeled", "wip", labels=WIP),
        (HELD,),
        LABELS,
    ),
    Row(
        "another label is gone",
        "pull_request",
        labeled("unlabeled", "review me"),
        (no("the label held no review back"),),
        LABELS,
    ),
    *(
        Row(
            f"labels of {by['login']} ask for nothing: {action}",
            "pull_request",
            labeled(action, name, by),
            (no(f"{by['login']} is a bot: its labels ask for nothing"),),
            LABELS,
        )
        for by in (RENOVATE, OURSELVES, {"login": "whitesmoke[bot]", "type": "User"})
        for action, name in (("labeled", "review me"), ("unlabeled", "wip"))
    ),
]
