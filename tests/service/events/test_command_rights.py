from __future__ import annotations

import pytest

from reviewer.model import ReportedFinding, Severity, Side
from service.events import Allowed, Refused, ServerCaps, ServicePolicy, allowed, resolve
from service.events.commands import (
    CiCancel,
    CiRetry,
    CiRun,
    CiStatus,
    Command,
    Dismiss,
    Explain,
    Help,
    Reopen,
    Review,
)
from service.events.permissions import right_of
from service.events.policy import Level, Rights, permission_of
from service.forge.base import Permission, User

ADA, BOB = User("ada"), User("bob")
DISMISS = Dismiss(finding="F1", reason="r")
COMMANDS: dict[Level, list[Command]] = {
    "read": [Help(), Explain(finding="F1"), CiStatus()],
    "triage": [Review()],
    "write": [Review(full=True), DISMISS, Reopen(finding="F1"), CiRun(), CiRetry(), CiCancel()],
}


def finding(severity: str, *, blocking: bool) -> ReportedFinding:
    return ReportedFinding(
        id="F1",
        path="a.py",
        line_start=1,
        line_end=1,
        side=Side.RIGHT,
        severity=Severity(severity),
        category="c",
        title="t",
        body="b",
        blocking=blocking,
    )


@pytest.mark.parametrize("permission", Permission)
@pytest.mark.parametrize(
    ("level", "command"),
    [(level, command) for level, commands in COMMANDS.items() for command in commands],
    ids=lambda value: value if isinstance(value, str) else right_of(value),
)
def test_each_command_asks_for_its_permission(level: Level, command: Command, permission: Permission) -> None:
    enough = permission >= permission_of(level)
    assert allowed(command, BOB, ADA, permission, Rights()) == (
        Allowed() if enough else Refused("level", level)
    )


def test_the_commands_are_all_in_the_table_and_each_has_a_right() -> None:
    rights = {right_of(command) for commands in COMMANDS.values() for command in commands}
    assert rights == set(Rights.model_fields) - {"author_may_review"}


def test_authors_may_ask_for_a_review_of_their_own_but_not_a_full_one() -> None:
    author = User("ADA")
    assert allowed(Review(), author, ADA, Permission.NONE, Rights()) == Allowed()
    assert allowed(Review(full=True), author, ADA, Permission.READ, Rights()) == Refused("level", "write")
    assert allowed(Review(), BOB, ADA, Permission.READ, Rights()) == Refused("level", "triage")
    strict = Rights(author_may_review=False)
    assert allowed(Review(), author, ADA, Permission.READ, strict) == Refused("level", "triage")


@pytest.mark.parametrize(("severity", "blocking"), [("P1", True), ("P3", True), ("P1", False), ("P0", False)])
@pytest.mark.parametrize("permission", [Permission.WRITE, Permission.ADMIN])
def test_authors_never_dismiss_what_blocks_or_could_on_their_own(
    severity: str, blocking: bool, permission: Permission
) -> None:
    one = finding(severity, blocking=blocking)
    lenient = Rights(dismiss="read")
    assert allowed(DISMISS, User("Ada"), ADA, permission, lenient, one) == Refused("own_blocker", "read")
    assert allowed(DISMISS, BOB, ADA, permission, lenient, one) == Allowed()


def test_authors_with_the_permission_dismiss_mild_findings_and_reopen_any() -> None:
    mild = finding("P2", blocking=False)
    assert allowed(DISMISS, ADA, ADA, Permission.WRITE, Rights(), mild) == Allowed()
    assert allowed(DISMISS, ADA, ADA, Permission.TRIAGE, Rights(), mild) == Refused("level", "write")
    blocker = finding("P0", blocking=True)
    assert allowed(Reopen(finding="F1"), ADA, ADA, Permission.WRITE, Rights(), blocker) == Allowed()


def test_a_finding_that_is_not_there_is_for_the_ledger_to_tell() -> None:
    assert allowed(DISMISS, ADA, ADA, Permission.WRITE, Rights(), None) == Allowed()


def test_policy_raises_a_level_and_lowers_it_down_to_the_servers() -> None:
    policy = ServicePolicy(permissions=Rights(review="admin", dismiss="read", explain="write", reopen="read"))
    rights = resolve(ServicePolicy(), policy, ServerCaps()).permissions
    assert (rights.review, rights.dismiss, rights.explain, rights.reopen) == (
        "admin",
        "write",
        "write",
        "triage",
    )
    assert rights.author_may_review
    server = ServerCaps(rights=Rights(author_may_review=False, help="triage"))
    rights = resolve(ServicePolicy(), ServicePolicy(), server).permissions
    assert (rights.author_may_review, rights.help) == (False, "triage")
