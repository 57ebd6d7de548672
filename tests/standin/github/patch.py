"""GitHub's view of a diff: files with their patches, and the places where a review comment may stand."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Side = Literal["LEFT", "RIGHT"]

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_STATUS = {"A": "added", "M": "modified", "D": "removed", "R": "renamed", "C": "copied", "T": "changed"}


@dataclass(frozen=True)
class PatchLine:
    """A line of a patch. `position` counts from the first hunk header of the file, as GitHub's `position`."""

    sign: str
    old: int | None
    new: int | None
    hunk: int
    position: int


@dataclass(frozen=True)
class FileChange:
    path: str
    previous: str | None
    status: str
    oid: str
    patch: str | None
    """Hunks only, without the file header; None for binary files, pure renames and mode changes."""

    @property
    def additions(self) -> int:
        return sum(line.sign == "+" for line in self.lines())

    @property
    def deletions(self) -> int:
        return sum(line.sign == "-" for line in self.lines())

    def lines(self) -> list[PatchLine]:
        found = []
        old = new = 0
        hunk = -1
        for position, line in enumerate((self.patch or "").split("\n")):
            header = _HUNK.match(line)
            if header and (hunk < 0 or line.startswith("@@")):
                hunk += 1
                old, new = int(header[1]), int(header[3])
            elif line[:1] == "+":
                found.append(PatchLine("+", None, new, hunk, position))
                new += 1
            elif line[:1] == "-":
                found.append(PatchLine("-", old, None, hunk, position))
                old += 1
            elif line[:1] == " ":
                found.append(PatchLine(" ", old, new, hunk, position))
                old, new = old + 1, new + 1
        return found

    def find(self, line: int, side: Side) -> PatchLine | None:
        """The line of the patch that a comment on this side stands on: removed lines on the LEFT, others on the
        RIGHT."""
        for one in self.lines():
            if (side == "LEFT" and one.sign == "-" and one.old == line) or (
                side == "RIGHT" and one.sign != "-" and one.new == line
            ):
                return one
        return None

    def excerpt(self, at: PatchLine) -> str:
        """The hunk up to and including the line, as `diff_hunk` shows it."""
        rows = (self.patch or "").split("\n")
        start = max(i for i in range(at.position + 1) if _HUNK.match(rows[i]))
        return "\n".join(rows[start : at.position + 1])


def parse_changes(raw: bytes, patch: bytes) -> tuple[FileChange, ...]:
    """`raw` is `git diff --raw -z`, `patch` the same diff in full; both list the files in one order."""
    fields = raw.decode("utf-8", "replace").split("\0")[:-1]
    # Only a header can begin a line with `diff --git`: content is prefixed.
    sections = re.split(r"(?m)^diff --git ", patch.decode("utf-8", "replace"))[1:]
    changes = []
    at = 0
    while at < len(fields):
        _, _, old_oid, new_oid, status = fields[at].lstrip(":").split(" ")
        renamed = status[0] in "RC"
        previous = fields[at + 1] if renamed else None
        path = fields[at + 2] if renamed else fields[at + 1]
        at += 3 if renamed else 2
        # A type change is shown as two files in the patch and has no patch of its own on GitHub.
        body = "" if status[0] == "T" else sections.pop(0)
        if status[0] == "T":
            del sections[:2]
        start = re.search(r"(?m)^@@ ", body)
        hunks = body[start.start() :].removesuffix("\n") if start else None
        oid = old_oid if status[0] == "D" else new_oid
        changes.append(FileChange(path, previous, _STATUS[status[0]], oid, hunks))
    return tuple(changes)
