"""Which threads are resolved."""

from __future__ import annotations

import pytest

from reviewer.model import Side
from reviewer.report.inline import InlineComment
from reviewer.report.marker import marker
from service.publisher.effects import ResolveThreads, RoundId
from tests.service.publisher.desk import ALL, FAULTY, FIXED, OFF_BY_ONE, PATH, REPO, Desk, FlakyForge

MOVED = FAULTY.replace("slot + 1", "slot + 2")


def resolve(desk: Desk, *fixed: str, still_open: tuple[str, ...] = ()) -> list[bool]:
    round_id = RoundId(repo=REPO, number=desk.number, head_sha=desk.pull.head_sha, round_index=2)
    desk.send((ResolveThreads(round=round_id, fixed=fixed, still_open=still_open),))
    return [one.resolved for one in desk.forge.threads(REPO, desk.number)]


def test_the_thread_of_a_fixed_finding_is_resolved_and_others_are_left(desk: Desk) -> None:
    desk.publish(desk.review(*ALL))
    assert resolve(desk, "F1", still_open=("F2",)) == [True, False]


def test_a_fix_resolves_its_thread_in_the_round_that_sees_it(desk: Desk) -> None:
    desk.publish(desk.review(OFF_BY_ONE))
    desk.push({PATH: FAULTY.replace("slot + 1", "slot")})
    desk.publish(desk.review(recheck=FIXED))
    assert [one.state for one in desk.inline()] == ["resolved"]


def test_an_outdated_thread_is_resolved_unless_its_finding_is_still_open(desk: Desk) -> None:
    desk.publish(desk.review(OFF_BY_ONE))
    desk.push({PATH: MOVED})
    assert [one.outdated for one in desk.forge.threads(REPO, desk.number)] == [True]
    assert resolve(desk, still_open=("F1",)) == [False]
    assert resolve(desk) == [True]


def test_a_thread_that_is_neither_outdated_nor_fixed_is_left(desk: Desk) -> None:
    desk.publish(desk.review(OFF_BY_ONE))
    assert resolve(desk) == [False]


@pytest.mark.parametrize(("login", "expected"), [("ada", False), ("olga", False), ("ci[bot]", True)])
def test_a_thread_in_which_a_human_replied_is_left(desk: Desk, login: str, expected: bool) -> None:
    desk.publish(desk.review(OFF_BY_ONE))
    (thread,) = desk.forge.threads(REPO, desk.number)
    desk.forge.as_user(login).reply(REPO, desk.number, thread.id, "I disagree")
    assert resolve(desk, "F1") == [expected]


@pytest.mark.parametrize(
    ("login", "mark"),
    [
        ("mallory", marker("finding", id="F1")),
        ("other[bot]", marker("finding", id="F1")),
        ("whitesmoke[bot]", marker("review", id="F1")),
        ("whitesmoke[bot]", "F1"),
    ],
)
def test_only_a_thread_that_we_opened_about_a_finding_is_resolved(desk: Desk, login: str, mark: str) -> None:
    comment = InlineComment("F1", PATH, f"{mark}\nWrong.", 2, Side.RIGHT, None, None)
    desk.forge.as_user(login).create_review_comment(REPO, desk.number, desk.pull.head_sha, comment)
    assert resolve(desk, "F1") == [False]


def test_a_resolved_thread_is_not_resolved_again(desk: Desk) -> None:
    desk.publish(desk.review(OFF_BY_ONE))
    assert resolve(desk, "F1") == [True]
    forge = FlakyForge(desk.forge)
    round_id = RoundId(repo=REPO, number=desk.number, head_sha=desk.pull.head_sha, round_index=2)
    desk.send((ResolveThreads(round=round_id, fixed=("F1",)),), forge)
    assert forge.writes == []
