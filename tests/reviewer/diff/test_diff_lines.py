"""Lines and hunks: what counts as a line, where a hunk ends, which number a line has."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from reviewer.diff import Diff, Hunk, Line, parse
from reviewer.model import Side

DiffOf = Callable[..., Diff]


def only_hunk(diff: Diff) -> Hunk:
    (file,) = diff.files
    (hunk,) = file.hunks
    return hunk


def patch(body: str | bytes, header: str) -> bytes:
    body = body.encode() if isinstance(body, str) else body
    return b"diff --git a/f b/f\n--- a/f\n+++ b/f\n" + header.encode() + b"\n" + body


@pytest.mark.parametrize(
    "inside",
    [
        pytest.param("\u2028".encode(), id="line separator U+2028"),
        pytest.param("\u2029".encode(), id="paragraph separator U+2029"),
        pytest.param("\u0085".encode(), id="next line U+0085"),
        pytest.param(b"\r", id="lone carriage return"),
        pytest.param(b"\f", id="form feed"),
        pytest.param(b"\v", id="vertical tab"),
        pytest.param(b"\x1c\x1d\x1e", id="ASCII separators"),
        pytest.param(b"\xe9\xff\x85", id="latin-1"),
    ],
)
def test_only_newline_ends_a_line(diff_of: DiffOf, inside: bytes) -> None:
    odd = b"before" + inside + b"after"
    hunk = only_hunk(diff_of({b"f": b"1\n2\n"}, {b"f": b"1\n" + odd + b"\n2\nnew\n"}))
    assert list(hunk.lines()) == [
        Line(" ", b"1", 1, 1),
        Line("+", odd, None, 2),
        Line(" ", b"2", 2, 3),
        Line("+", b"new", None, 4),
    ]


def test_crlf_stays_in_the_text(diff_of: DiffOf) -> None:
    hunk = only_hunk(diff_of({b"f": b"a\r\nb\n"}, {b"f": b"a\r\nb\r\n"}))
    assert [(line.kind, line.text) for line in hunk.lines()] == [(" ", b"a\r"), ("-", b"b"), ("+", b"b\r")]


MARKERS = [
    b"--- a/x",
    b"+++ b/x",
    b"-- a/x",
    b"++ b/x",
    b"@@ -1 +1 @@",
    b"-1 +1 @@",
    b"diff --git a/x b/x",
    b"-- ",
    b"- ",
    b"2.39.5",
    b"\\ No newline at end of file",
    b"Binary files a/x and b/x differ",
    b"GIT binary patch",
    b"index 1234567..1234567 100644",
    b"rename from x",
    b"",
]


@pytest.mark.parametrize("change", ["added", "removed", "context"])
def test_source_text_that_reads_like_a_diff_marker_shifts_nothing(diff_of: DiffOf, change: str) -> None:
    with_markers = b"".join(marker + b"\n" for marker in MARKERS)
    head = with_markers if change != "removed" else b""
    base = with_markers if change != "added" else b""
    diff = diff_of(
        {b"f": b"top\n" + base + b"end\n", b"g": b"g\n"},
        {b"f": b"top!\n" + head + b"end!\n", b"g": b"g!\n"},
        "-U20",
    )
    assert [file.path for file in diff.files] == ["f", "g"]
    (hunk,) = diff.files[0].hunks
    kind = {"added": "+", "removed": "-", "context": " "}[change]
    marked = [line for line in hunk.lines() if line.text in MARKERS and line.kind == kind]
    assert [line.text for line in marked] == MARKERS
    sides = [line.old if change == "removed" else line.new for line in marked]
    assert sides == list(range(2, 2 + len(MARKERS)))


def test_omitted_counts_mean_one() -> None:
    hunk = only_hunk(parse(patch("-a\n+b\n", "@@ -1 +1 @@")))
    assert (hunk.old_start, hunk.old_count, hunk.new_start, hunk.new_count) == (1, 1, 1, 1)
    assert list(hunk.lines()) == [Line("-", b"a", 1, None), Line("+", b"b", None, 1)]


def test_a_new_file_starts_at_line_one(diff_of: DiffOf) -> None:
    hunk = only_hunk(diff_of({b"g": b""}, {b"g": b"", b"f": b"1\n2\n3\n"}))
    assert (hunk.old_start, hunk.old_count, hunk.new_start, hunk.new_count) == (0, 0, 1, 3)
    assert [line.new for line in hunk.lines()] == [1, 2, 3]
    assert hunk.old_range == range(0)


def test_without_context_an_insertion_is_after_the_line_that_its_header_names(diff_of: DiffOf) -> None:
    hunk = only_hunk(diff_of({b"f": b"1\n2\n3\n"}, {b"f": b"1\n2\nnew\n3\n"}, "-U0"))
    assert (hunk.old_start, hunk.old_count, hunk.new_start, hunk.new_count) == (2, 0, 3, 1)
    assert list(hunk.lines()) == [Line("+", b"new", None, 3)]
    assert not any(hunk.contains(Side.LEFT, line) for line in range(5))


@pytest.mark.parametrize(
    ("base", "head", "expected"),
    [
        (b"a", b"a\n", [("-", False), ("+", True)]),
        (b"a\n", b"a", [("-", True), ("+", False)]),
        (b"a", b"b", [("-", False), ("+", False)]),
        (b"a\nz", b"b\nz", [("-", True), ("+", True), (" ", False)]),
        (b"", b"b", [("+", False)]),
        (b"b", b"", [("-", False)]),
    ],
    ids=["old side", "new side", "both sides", "context", "filled", "emptied"],
)
def test_no_newline_at_end_of_file(
    diff_of: DiffOf, base: bytes, head: bytes, expected: list[tuple[str, bool]]
) -> None:
    diff = diff_of({b"f": base, b"g": b"g\n"}, {b"f": head, b"g": b"!\n"})
    assert [(line.kind, line.newline) for line in diff.files[0].hunks[0].lines()] == expected
    assert diff.files[1].path == "g"


def test_a_translated_no_newline_line_is_understood() -> None:
    hunk = only_hunk(parse(patch("-a\n+b\n\\ Kein Zeilenumbruch am Dateiende.\n", "@@ -1 +1 @@")))
    assert [line.newline for line in hunk.lines()] == [True, False]


def test_an_empty_context_line_may_have_lost_its_blank() -> None:
    hunk = only_hunk(parse(patch("-a\n\n+b\n\n", "@@ -1,3 +1,3 @@")))
    assert list(hunk.lines()) == [
        Line("-", b"a", 1, None),
        Line(" ", b"", 2, 1),
        Line("+", b"b", None, 2),
        Line(" ", b"", 3, 3),
    ]


def test_counts_of_added_and_removed_lines(diff_of: DiffOf) -> None:
    base = b"".join(b"%d\n" % line for line in range(100))
    head = base.replace(b"\n20\n", b"\n20\nx\ny\n").replace(b"\n70\n", b"\n").replace(b"\n80\n", b"\nz\n")
    (file,) = diff_of({b"f": base}, {b"f": head}).files
    assert [(hunk.added, hunk.removed) for hunk in file.hunks] == [(2, 0), (0, 1), (1, 1)]
    assert (file.added, file.removed) == (3, 2)


def test_contains_knows_both_sides() -> None:
    hunk = only_hunk(parse(patch(" a\n-b\n c\n", "@@ -10,3 +20,2 @@")))
    assert [line for line in range(40) if hunk.contains(Side.LEFT, line)] == [10, 11, 12]
    assert [line for line in range(40) if hunk.contains(Side.RIGHT, line)] == [20, 21]


def test_text_shows_header_heading_and_body() -> None:
    hunk = only_hunk(parse(patch(b" a\n+caf\xe9\n", "@@ -7 +7,2 @@ def f():")))
    assert hunk.heading == b"def f():"
    assert hunk.text() == "@@ -7,1 +7,2 @@ def f():\n a\n+caf\ufffd\n"


def test_a_hunk_without_heading_has_no_trailing_blank() -> None:
    assert only_hunk(parse(patch("+a\n", "@@ -7,0 +8 @@"))).text() == "@@ -7,0 +8,1 @@\n+a\n"


def test_digest_ignores_line_numbers_and_heading_alone() -> None:
    here = only_hunk(parse(patch(" a\n+b\n", "@@ -7 +7,2 @@ def f():")))
    moved = only_hunk(parse(patch(" a\n+b\n", "@@ -900 +907,2 @@ def g():")))
    other = only_hunk(parse(patch(" a\n+c\n", "@@ -7 +7,2 @@ def f():")))
    unended = only_hunk(parse(patch(" a\n+b\n\\ No newline at end of file\n", "@@ -7 +7,2 @@ def f():")))
    assert here.digest == moved.digest == hashlib.sha256(b" a\n+b\n").hexdigest()
    assert len({here.digest, other.digest, unended.digest}) == 3
