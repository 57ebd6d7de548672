"""Where in a pull request's diff a finding can be shown.

A forge takes a comment only on a line that the diff shows, and refuses a whole review for one that is not. A
comment on several lines must begin and end in one hunk. A line is on the LEFT only if it was removed; context
lines count as RIGHT.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from reviewer.diff import Diff, FileDiff, Hunk, Line
from reviewer.model import ReportedFinding, Side

Level = Literal["exact", "partial", "nearest", "file", "body"]


@dataclass(frozen=True, slots=True)
class Placement:
    """`exact`: on its lines; `partial`: on those of them that the diff shows; `nearest`: on the nearest line
    that it shows; `file`: on the file as a whole; `body`: nowhere in the diff.

    `path` is the file's name in the head. `line` (1-based, on `side`) is None for `file` and `body`;
    `start_line` is None for a single line.
    """

    level: Level
    path: str
    line: int | None = None
    side: Side = Side.RIGHT
    start_line: int | None = None
    start_side: Side | None = None


def place(finding: ReportedFinding, diff: Diff) -> Placement:
    """The most exact place for a finding. Never fails: `body` is left where the diff has no such file."""
    file = _file(finding, diff)
    if file is None:
        return Placement("body", finding.path)
    # Git empties the old file and then fills the new one: a forge shows no lines of such a change.
    if not file.hunks or not finding.line_start or file.status == "type":
        return Placement("file", file.path)
    shown = [
        (hunk, lines)
        for hunk in file.hunks
        if (lines := _numbers(hunk, finding.side))
        and lines.start <= finding.line_end
        and finding.line_start < lines.stop
    ]
    if not shown:
        return _nearest(finding, file)
    hunk, numbers = shown[0]
    first, last = max(finding.line_start, numbers.start), min(finding.line_end, numbers.stop - 1)
    whole = (first, last) == (finding.line_start, finding.line_end)
    placement = _on_lines(file.path, hunk, finding.side, first, last)
    return placement if whole else replace(placement, level="partial")


def _file(finding: ReportedFinding, diff: Diff) -> FileDiff | None:
    file = diff.file(finding.path)
    if file is None and finding.side is Side.LEFT:
        return next((one for one in diff.files if one.old_path == finding.path), None)
    return file


def _numbers(hunk: Hunk, side: Side) -> range:
    return hunk.old_range if side is Side.LEFT else hunk.new_range


def _on_lines(path: str, hunk: Hunk, side: Side, first: int, last: int) -> Placement:
    ends = {
        number: line
        for line in hunk.lines()
        if (number := line.old if side is Side.LEFT else line.new) in (first, last) and number is not None
    }
    end_side, end = _shown(ends[last])
    placement = Placement("exact", path, end, end_side)
    if first == last:
        return placement
    start_side, start = _shown(ends[first])
    return replace(placement, start_line=start, start_side=start_side)


def _nearest(finding: ReportedFinding, file: FileDiff) -> Placement:
    def distance(line: Line) -> int:
        number = line.old if finding.side is Side.LEFT else line.new
        if number is None:
            return _FAR
        return max(finding.line_start - number, number - finding.line_end, 0)

    line = min((line for hunk in file.hunks for line in hunk.lines()), key=distance)
    side, number = _shown(line)
    return Placement("nearest", file.path, number, side)


_FAR = 1 << 62


def _shown(line: Line) -> tuple[Side, int]:
    if line.new is not None:
        return Side.RIGHT, line.new
    assert line.old is not None
    return Side.LEFT, line.old
