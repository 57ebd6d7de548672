"""Reads the hunks of one file. What a line is follows from the counts of its hunk's header, never from its looks."""

from __future__ import annotations

import re

from reviewer.diff.model import Hunk
from reviewer.diff.source import Source

# At most 18 digits: int() refuses thousands, and no file has that many lines.
_HEADER = re.compile(rb"@@ -(\d{1,18})(?:,(\d{1,18}))? \+(\d{1,18})(?:,(\d{1,18}))? @@(?: (.*)|.*)\n")
_NOT_IN_BODY = re.compile(rb"\n[^-+ ]")

# What may follow a complete hunk although it starts like a line of one: the signature that ends an e-mailed
# patch, and the header of the next file in a patch without `diff --git` lines.
_NOT_LEFT_OVER = re.compile(rb"-- ?\n(?![-+ @\\])|--- .*\n\+\+\+ .*\n@@ -")

_PLUS, _MINUS, _SPACE, _BACKSLASH, _NEWLINE = b"+- \\\n"


def read_hunks(source: Source, position: int, path: str) -> tuple[tuple[Hunk, ...], int]:
    """All hunks from `position` on, at least one, and the offset after them. Raises `PatchError`."""
    hunks: list[Hunk] = []
    old_free = new_free = 1  # the first line of each side that no hunk has shown yet
    data = source.data
    while data.startswith(b"@@ ", position):
        header = _HEADER.match(data, position)
        if header is None:
            raise source.error(position, "this hunk header is malformed", path)
        old_count, new_count = (1 if count is None else int(count) for count in header.group(2, 4))
        old_start, new_start = int(header[1]), int(header[3])
        # A side without lines names the line before the hunk.
        old_first, new_first = old_start + (not old_count), new_start + (not new_count)
        if old_first < old_free or new_first < new_free:
            raise source.error(position, "this hunk's line numbers lie before or within the one above", path)
        old_free, new_free = old_first + old_count, new_first + new_count

        start = header.end()
        end, added = _measure(source, start, old_count, new_count, path)
        removed = old_count - new_count + added
        body = source.view[start:end]
        heading = header[5] or b""
        hunks.append(Hunk(old_start, old_count, new_start, new_count, heading, body, added, removed))
        position = end
    if not hunks:
        raise source.error(position, "no hunk follows the names of this file", path)
    return tuple(hunks), position


def _measure(source: Source, start: int, old: int, new: int, path: str) -> tuple[int, int]:
    """The end of the hunk body at `start`, and its number of added lines."""
    data = source.data
    # Nearly every hunk ends where its lines stop looking like a hunk's. If the lines up to there satisfy the
    # counts exactly, no other end does, and counting them at C speed will do. Otherwise walk line by line.
    stop = _NOT_IN_BODY.search(data, start - 1)
    end = stop.start() + 1 if stop else source.size
    if data.endswith(b"\n", start, end) and not data.startswith(b"\\", end):
        added, removed = data.count(b"\n+", start - 1, end), data.count(b"\n-", start - 1, end)
        context = data.count(b"\n", start, end) - added - removed
        if (context + removed, context + added) == (old, new):
            return end, added
    return _walk(source, start, old, new, path)


def _walk(source: Source, start: int, old: int, new: int, path: str) -> tuple[int, int]:
    data = source.data
    position, added = start, 0
    last = _BACKSLASH  # the marker of the line before; a backslash where no `\` line may follow
    while True:
        marker = data[position] if position < source.size else None
        if marker == _BACKSLASH and last != _BACKSLASH:
            if (old and last != _PLUS) or (new and last != _MINUS):
                raise source.error(position, "a file ends here without a newline, but the hunk goes on", path)
            last = _BACKSLASH
        elif not old and not new:
            break
        elif marker == _PLUS and new:
            new -= 1
            added += 1
            last = marker
        elif marker == _MINUS and old:
            old -= 1
            last = marker
        elif marker in (_SPACE, _NEWLINE) and old and new:
            old -= 1
            new -= 1
            last = _SPACE
        else:
            missing = f"{old} old and {new} new lines are missing from the hunk"
            fault = "the patch ends here" if marker is None else "this line is not part of the hunk"
            raise source.error(position, f"{fault}, but {missing}", path)
        end = data.find(b"\n", position)
        if end < 0:
            raise source.error(position, "the patch stops in the middle of this line", path)
        position = end + 1
    left_over = marker in (_PLUS, _MINUS, _SPACE, _BACKSLASH)
    if left_over and not _NOT_LEFT_OVER.match(data, position):
        raise source.error(position, "the hunk has more lines than its header says", path)
    return position, added
