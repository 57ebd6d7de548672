"""What a patch says, file by file: plain slotted classes, for a patch may hold hundreds of thousands of lines."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from reviewer.model import Side

Kind = Literal[" ", "+", "-"]
Status = Literal["added", "deleted", "modified", "renamed", "copied", "mode", "type"]

SUBMODULE_MODE = "160000"

_KINDS: dict[int, Kind] = {ord(" "): " ", ord("+"): "+", ord("-"): "-"}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a hunk; `text` has neither marker nor `\\n`, but keeps a `\\r`.

    `old` and `new` are 1-based line numbers, None on the side that lacks the line. `newline` is False for
    the last line of a file that does not end in `\\n`.
    """

    kind: Kind
    text: bytes
    old: int | None
    new: int | None
    newline: bool = True


@dataclass(frozen=True, slots=True)
class Hunk:
    """A run of changed lines with its context.

    Starts are 1-based; with a count of 0 the start is the line before the change, as git writes it.
    `added` and `removed` count lines. `body` is a view into the patch, not a copy: hunks are most of a patch,
    and copies would double its memory.
    """

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    heading: bytes
    body: memoryview
    added: int
    removed: int

    @property
    def old_range(self) -> range:
        return range(self.old_start, self.old_start + self.old_count)

    @property
    def new_range(self) -> range:
        return range(self.new_start, self.new_start + self.new_count)

    def contains(self, side: Side, line: int) -> bool:
        """Whether the hunk shows this line of that side, changed or as context."""
        return line in (self.old_range if side is Side.LEFT else self.new_range)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the body. Line numbers and heading stay out: they change with code elsewhere."""
        return hashlib.sha256(self.body).hexdigest()

    def text(self) -> str:
        """The hunk with its `@@` line, as a prompt shows it; bytes that are not UTF-8 become U+FFFD."""
        heading = b" " + self.heading if self.heading else b""
        header = f"@@ -{self.old_start},{self.old_count} +{self.new_start},{self.new_count} @@".encode()
        return b"".join((header, heading, b"\n", self.body)).decode(errors="replace")

    def lines(self) -> Iterator[Line]:
        """Every line, in order. Made anew at each call: kept, they would outweigh the patch many times."""
        old, new = self.old_start, self.new_start
        rows = bytes(self.body).split(b"\n")
        for index, row in enumerate(rows[:-1]):  # the body ends in \n, so the last piece is empty
            if row[:1] == b"\\":
                continue
            kind: Kind = _KINDS[row[0]] if row else " "  # some tools strip the blank of an empty context line
            newline = rows[index + 1][:1] != b"\\"
            yield Line(kind, row[1:], None if kind == "+" else old, None if kind == "-" else new, newline)
            old += kind != "+"
            new += kind != "-"


@dataclass(frozen=True, slots=True)
class FileDiff:
    """What a patch does to one file.

    `path` is the file's name in the head, `old_path` in the base; both are the same for added and deleted
    files. They are UTF-8 decoded, other bytes written as `\\xNN`; `raw_path` and `raw_old_path` are exact.
    Modes are git's six octal digits, "" on the side where the file is not or where the patch names none.
    Blobs are object names, possibly abbreviated, "" where the patch names none. `similarity` is in percent,
    for renames and copies. Status `mode` changes the mode alone, `type` turns a file into a symbolic link, a
    submodule, or back; its hunks first empty the old file, then fill the new one.
    """

    path: str
    old_path: str
    raw_path: bytes
    raw_old_path: bytes
    status: Status
    similarity: int | None
    old_mode: str
    new_mode: str
    old_blob: str
    new_blob: str
    binary: bool
    hunks: tuple[Hunk, ...]

    @property
    def submodule(self) -> bool:
        return SUBMODULE_MODE in (self.old_mode, self.new_mode)

    @property
    def added(self) -> int:
        return sum(hunk.added for hunk in self.hunks)

    @property
    def removed(self) -> int:
        return sum(hunk.removed for hunk in self.hunks)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of what the patch does to the file, wherever in the file it does it."""
        blobs = (self.old_blob, self.new_blob) if self.binary else ()
        facts = (self.status, self.old_mode, self.new_mode, *blobs, *(hunk.digest for hunk in self.hunks))
        # A path may hold any byte but NUL.
        return hashlib.sha256(b"\0".join((self.raw_old_path, *map(str.encode, facts)))).hexdigest()


@dataclass(frozen=True, slots=True)
class Diff:
    """A whole patch; `size` is in bytes. No path occurs twice."""

    files: tuple[FileDiff, ...]
    size: int
    _by_path: dict[str, FileDiff] = field(default_factory=dict, init=False, repr=False, compare=False)

    def file(self, path: str) -> FileDiff | None:
        """The change of `path` (its name in the head), or None where the patch leaves it alone."""
        if not self._by_path:
            self._by_path.update((file.path, file) for file in self.files)
        return self._by_path.get(path)
