from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reviewer.diff import Diff, parse
from reviewer.model import Side
from reviewer.report import Placement, inline_comments, place

Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("where", "placement"),
    [
        # Added and context lines of the head.
        ({"line_start": 11, "line_end": 11}, Placement("exact", "kv/pages.py", 11)),
        ({"line_start": 8, "line_end": 8}, Placement("exact", "kv/pages.py", 8)),
        (
            {"line_start": 10, "line_end": 13},
            Placement("exact", "kv/pages.py", 13, Side.RIGHT, 10, Side.RIGHT),
        ),
        # Removed lines of the base.
        (
            {"side": "LEFT", "line_start": 41, "line_end": 41},
            Placement("exact", "kv/pages.py", 41, Side.LEFT),
        ),
        (
            {"side": "LEFT", "line_start": 10, "line_end": 11},
            Placement("exact", "kv/pages.py", 11, Side.LEFT, 10, Side.LEFT),
        ),
        # A context line of the base is shown as one of the head, which counts it differently.
        (
            {"side": "LEFT", "line_start": 12, "line_end": 12},
            Placement("exact", "kv/pages.py", 14, Side.RIGHT),
        ),
        (
            {"side": "LEFT", "line_start": 41, "line_end": 43},
            Placement("exact", "kv/pages.py", 44, Side.RIGHT, 41, Side.LEFT),
        ),
        # More lines than the hunk shows, and lines of two hunks: the part in the first.
        (
            {"line_start": 15, "line_end": 30},
            Placement("partial", "kv/pages.py", 16, Side.RIGHT, 15, Side.RIGHT),
        ),
        ({"line_start": 2, "line_end": 8}, Placement("partial", "kv/pages.py", 8)),
        ({"line_start": 16, "line_end": 43}, Placement("partial", "kv/pages.py", 16)),
        # Outside every hunk: the nearest line.
        ({"line_start": 17, "line_end": 17}, Placement("nearest", "kv/pages.py", 16)),
        ({"line_start": 35, "line_end": 39}, Placement("nearest", "kv/pages.py", 42)),
        ({"line_start": 900, "line_end": 901}, Placement("nearest", "kv/pages.py", 44)),
        ({"side": "LEFT", "line_start": 1, "line_end": 1}, Placement("nearest", "kv/pages.py", 8)),
        # No line to stand on.
        ({"line_start": 0, "line_end": 0}, Placement("file", "kv/pages.py")),
        ({"path": "kv/there.py", "line_start": 3, "line_end": 3}, Placement("file", "kv/there.py")),
        ({"path": "logo.png"}, Placement("file", "logo.png")),
        ({"path": "kv/elsewhere.py"}, Placement("body", "kv/elsewhere.py")),
        # A base line of a renamed file stands under its new name.
        (
            {"path": "kv/old_name.py", "side": "LEFT", "line_start": 2, "line_end": 2},
            Placement("exact", "kv/new_name.py", 2, Side.LEFT),
        ),
        ({"path": "kv/old_name.py", "line_start": 2, "line_end": 2}, Placement("body", "kv/old_name.py")),
    ],
)
def test_a_finding_is_placed(
    diff: Diff, make_finding: Make, where: dict[str, Any], placement: Placement
) -> None:
    assert place(make_finding(**where), diff) == placement


def test_a_hunk_without_context_is_found_from_the_other_side(make_finding: Make) -> None:
    removed = parse(b"--- a/x.py\n+++ b/x.py\n@@ -3,2 +2,0 @@\n-a\n-b\n")
    assert place(make_finding(path="x.py", line_start=2, line_end=2), removed) == Placement(
        "nearest", "x.py", 3, Side.LEFT
    )


@given(
    st.integers(0, 60),
    st.integers(0, 60),
    st.sampled_from(Side),
    st.sampled_from(["kv/pages.py", "logo.png", "x"]),
)
def test_a_comment_stands_on_lines_that_one_hunk_shows(
    diff: Diff, make_finding: Make, first: int, extra: int, side: Side, path: str
) -> None:
    where = place(make_finding(path=path, line_start=first, line_end=first + extra, side=side), diff)
    file = diff.file(path)
    if where.line is None:
        assert where.level in ("file", "body")
        assert (where.level == "body") == (file is None)
        return
    assert file is not None
    hunk = next(hunk for hunk in file.hunks if hunk.contains(where.side, where.line))
    shown = [(Side.LEFT, line.old) if line.new is None else (Side.RIGHT, line.new) for line in hunk.lines()]
    end = shown.index((where.side, where.line))
    if where.start_line is not None:
        assert shown.index((where.start_side, where.start_line)) < end
    assert (where.start_line is None) == (where.start_side is None)


def test_a_line_outside_a_hunk_loses_nothing(diff: Diff, make_report: Make, make_finding: Make) -> None:
    inside, outside = (
        make_finding(id="F1"),
        make_finding(id="F2", line_start=25, line_end=25, title="far away"),
    )
    near, far = inline_comments(make_report(non_blocking=[inside, outside]), diff)
    assert near.finding_id == "F1"
    assert (far.finding_id, far.path, far.line) == ("F2", "kv/pages.py", 16)
    assert (
        "📍 Actual place `kv/pages.py:25` (not shown in the diff; attached to the nearest line)" in far.body
    )
    assert "far away" in far.body


def test_the_note_is_in_the_language_of_the_report(diff: Diff, make_report: Make, make_finding: Make) -> None:
    finding = make_finding(line_start=25, line_end=25)
    (comment,) = inline_comments(make_report(non_blocking=[finding], language="zh"), diff)
    assert "📍 实际位置 `kv/pages.py:25`（不在 diff 展示范围内，就近挂载）" in comment.body


def test_a_file_without_lines_gets_a_comment_on_the_file(
    diff: Diff, make_report: Make, make_finding: Make
) -> None:
    (comment,) = inline_comments(make_report(non_blocking=[make_finding(path="logo.png")]), diff)
    assert (comment.path, comment.line) == ("logo.png", None)
    assert "📍 Actual place `logo.png:11-12` (the diff shows no line of this file)" in comment.body


def test_a_finding_about_the_whole_file_needs_no_note(
    diff: Diff, make_report: Make, make_finding: Make
) -> None:
    (comment,) = inline_comments(make_report(non_blocking=[make_finding(line_start=0, line_end=0)]), diff)
    assert comment.line is None
    assert "📍" not in comment.body


def test_findings_still_open_are_not_posted_inline_again(
    diff: Diff, make_report: Make, make_finding: Make
) -> None:
    old = make_finding(id="F1", first_round=1, recheck="still_open")
    again = make_finding(id="F2", first_round=1, last_round=2)
    new = make_finding(id="F3", first_round=2, last_round=2)
    report = make_report(round_index=2, blocking=[old], non_blocking=[again, new])
    assert [one.finding_id for one in inline_comments(report, diff)] == ["F3"]


def test_what_was_refuted_is_not_posted_inline(diff: Diff, make_report: Make, make_finding: Make) -> None:
    report = make_report(non_blocking=[make_finding(state="refuted", fact_check="refuted")])
    assert inline_comments(report, diff) == ()


def test_a_demoted_finding_says_inline_why_it_does_not_block(
    diff: Diff, make_report: Make, make_finding: Make
) -> None:
    (comment,) = inline_comments(make_report(non_blocking=[make_finding(demoted="said by 1 of 5")]), diff)
    assert "*does not block: said by 1 of 5*" in comment.body
