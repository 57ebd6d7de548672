"""Small webhook payloads with what the service reads, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ci_dispatch.policy import CiPolicy
from service.events import Context, decide, read_payload
from service.events.intents import Intent
from service.events.policy import ServicePolicy

ME, APP = "whitesmoke[bot]", 77
CI_OFF = CiPolicy()
HEAD, OLD = "a" * 40, "b" * 40
ADA = {"login": "ada", "type": "User"}
BOB = {"login": "bob", "type": "User"}
RENOVATE = {"login": "renovate[bot]", "type": "Bot"}
OURSELVES = {"login": "Whitesmoke[bot]", "type": "Bot"}
REPO = {"id": 5, "full_name": "acme/app", "default_branch": "trunk"}


def pull(**other: Any) -> dict[str, Any]:
    return {
        "number": 7,
        "state": "open",
        "user": ADA,
        "head": {"sha": HEAD},
        "draft": False,
        "labels": [],
        **other,
    }


def event(action: str, sender: Mapping[str, Any] = BOB, **parts: Any) -> dict[str, Any]:
    return {"action": action, "sender": sender, "repository": REPO, **parts}


def pulled(
    action: str, sender: Mapping[str, Any] = ADA, *, more: Mapping[str, Any] = {}, **of_pull: Any
) -> dict[str, Any]:
    return event(action, sender, pull_request=pull(**of_pull), **more)


def labeled(action: str, name: str, sender: Mapping[str, Any] = BOB, **of_pull: Any) -> dict[str, Any]:
    return pulled(action, sender, more={"label": {"name": name}}, **of_pull)


def commented(
    body: str | None, author: Mapping[str, Any] | None = BOB, action: str = "created", **of_comment: Any
) -> dict[str, Any]:
    return event(
        action,
        author or {"login": "ghost"},
        issue={"number": 7, "pull_request": {"url": "u"}},
        comment={"id": 31, "user": author, "body": body, **of_comment},
    )


def remarked(body: str, author: Mapping[str, Any] = BOB, action: str = "created") -> dict[str, Any]:
    return event(action, author, pull_request={"number": 7}, comment={"id": 32, "user": author, "body": body})


def reviewed(action: str, author: Mapping[str, Any] = BOB, **of_review: Any) -> dict[str, Any]:
    review = {"id": 41, "user": author, "state": "approved", "commit_id": HEAD, **of_review}
    return event(action, author, pull_request={"number": 7}, review=review)


def checked(
    action: str, sender: Mapping[str, Any] = BOB, *, more: Mapping[str, Any] = {}, **of_check: Any
) -> dict[str, Any]:
    check = {
        "id": 51,
        "name": "whitesmoke/review",
        "head_sha": HEAD,
        "app": {"id": APP},
        "pull_requests": [{"number": 7, "base": {"repo": {"id": 5}}}],
        **of_check,
    }
    return event(action, sender, check_run=check, **more)


def suite(action: str, sender: Mapping[str, Any] = BOB, **of_suite: Any) -> dict[str, Any]:
    check = {"id": 61, "head_sha": HEAD, "app": {"id": APP}, "pull_requests": [], **of_suite}
    return event(action, sender, check_suite=check)


def pushed(ref: str = "refs/heads/trunk", *touched: str, **more: Any) -> dict[str, Any]:
    commits = [{"added": [], "modified": [path], "removed": []} for path in touched]
    return {"sender": BOB, "repository": REPO, "ref": ref, "commits": commits, **more}


def installed(action: str, **more: Any) -> dict[str, Any]:
    return {"action": action, "sender": BOB, "installation": {"id": 9}, **more}


SAMPLES: tuple[tuple[str, dict[str, Any]], ...] = (
    *(
        ("pull_request", pulled(action))
        for action in ("opened", "reopened", "ready_for_review", "converted_to_draft", "closed")
    ),
    ("pull_request", pulled("synchronize", more={"before": OLD, "after": HEAD})),
    ("pull_request", pulled("edited", more={"changes": {"base": {"ref": {"from": "old"}}}})),
    ("pull_request", labeled("labeled", "x")),
    ("pull_request", labeled("unlabeled", "x")),
    *(("pull_request_review", reviewed(action)) for action in ("submitted", "edited", "dismissed")),
    *(("issue_comment", commented("/review", action=action)) for action in ("created", "edited", "deleted")),
    *(
        ("pull_request_review_comment", remarked("/help", action=action))
        for action in ("created", "edited", "deleted")
    ),
    ("check_run", checked("rerequested")),
    ("check_run", checked("requested_action", more={"requested_action": {"identifier": "full"}})),
    ("check_suite", suite("requested")),
    ("check_suite", suite("rerequested")),
    ("push", pushed("refs/heads/trunk", ".whitesmoke.yml")),
    *(
        ("installation", installed(action, repositories=[{"full_name": "acme/app"}]))
        for action in ("created", "deleted", "suspend", "unsuspend", "new_permissions_accepted")
    ),
    ("installation_repositories", installed("added", repositories_added=[{"full_name": "acme/app"}])),
    ("installation_repositories", installed("removed", repositories_removed=[{"full_name": "acme/app"}])),
    ("ping", {"zen": "Keep it logically awesome.", "sender": BOB}),
)


def ask(
    name: str,
    payload: Mapping[str, Any],
    policy: Mapping[str, Any] | None = None,
    ci: CiPolicy | None = CI_OFF,
) -> tuple[Intent, ...]:
    """What the service makes of a delivery under a policy, as an App."""
    context = Context(ME, APP, ServicePolicy.model_validate(policy or {}), ci)
    return decide(read_payload(name, json.dumps(payload).encode()), context)
