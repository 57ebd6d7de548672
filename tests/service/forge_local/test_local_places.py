"""The rules by which a place in a diff is taken or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reviewer.model import ReportedFinding, Severity, Side
from reviewer.report.inline import InlineComment
from reviewer.report.placement import place
from service.forge.local_git import refusal
from tests.kit.checkouts import MemoryCheckout

LINES = [f"line {number}\n" for number in range(1, 41)]
CHANGED = [*LINES[:9], "line ten\n", *LINES[10:29], *LINES[30:]]
DIFF = MemoryCheckout({"a.txt": "".join(LINES)}, {"a.txt": "".join(CHANGED)}).diff
L, R = Side.LEFT, Side.RIGHT


@pytest.mark.parametrize(
    ("line", "side", "start", "start_side", "why"),
    [
        (10, R, None, None, ""),
        (7, R, None, None, ""),
        (13, R, None, None, ""),
        (10, L, None, None, ""),
        (30, L, None, None, ""),
        (13, R, 7, R, ""),
        (10, R, 10, L, ""),
        (None, R, None, None, ""),
        (6, R, None, None, "line 6 of 'a.txt' must be part of the diff"),
        (14, R, None, None, "line 14 of 'a.txt' must be part of the diff"),
        (7, L, None, None, "line 7 of 'a.txt' must be part of the diff"),
        (30, R, 10, R, "start_line 10 must be part of the same hunk as line 30"),
        (10, R, 6, R, "start_line 6 must be part of the same hunk as line 10"),
        (10, R, 11, R, "start_line 11 must precede line 10"),
        (10, R, 10, R, "start_line 10 must precede line 10"),
        (10, L, 10, R, "start_line 10 must precede line 10"),
        (None, R, 3, R, "start_line without line"),
    ],
)
def test_a_line_must_be_shown_and_several_lines_be_of_one_hunk_in_order(
    line: int | None, side: Side, start: int | None, start_side: Side | None, why: str
) -> None:
    assert refusal(InlineComment("F1", "a.txt", "body", line, side, start, start_side), DIFF) == why


def test_a_file_outside_the_diff_is_refused() -> None:
    comment = InlineComment("F1", "b.txt", "body", None, R, None, None)
    assert refusal(comment, DIFF) == "path 'b.txt' is not part of the diff"


TEXTS = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "d\n"]), min_size=1, max_size=40).map("".join)


@given(base=TEXTS, head=TEXTS, first=st.integers(0, 45), more=st.integers(0, 6), side=st.sampled_from(Side))
def test_every_place_that_a_report_chooses_is_taken(
    base: str, head: str, first: int, more: int, side: Side
) -> None:
    diff = MemoryCheckout({"a.txt": base}, {"a.txt": head}).diff
    finding = ReportedFinding(
        id="F1", path="a.txt", line_start=first, line_end=first + more, side=side, severity=Severity.P2,
        category="c", title="t", body="b",
    )  # fmt: skip
    where = place(finding, diff)
    if where.level == "body":
        assert diff.file("a.txt") is None
        return
    comment = InlineComment("F1", where.path, "b", where.line, where.side, where.start_line, where.start_side)
    assert refusal(comment, diff) == ""
