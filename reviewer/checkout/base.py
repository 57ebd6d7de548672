"""What a review may see of the repository: read-only, both sides of the pull request, nothing outside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from reviewer.diff import Diff
from reviewer.model import Side


@dataclass(frozen=True, slots=True)
class Match:
    """One line found by `Checkout.grep`; `line` is 1-based."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a directory: `kind` is file, directory, symlink or submodule."""

    name: str
    kind: str
    size: int


class Checkout(Protocol):
    """Base and head of one pull request. Paths are as in `FileDiff.path`: relative, `/`-separated.

    RIGHT is the head, LEFT the merge base. Nothing is executed, symlinks are never followed, and only
    objects reachable from base or head can be seen.
    """

    @property
    def base_sha(self) -> str: ...

    @property
    def head_sha(self) -> str: ...

    @property
    def diff(self) -> Diff:
        """The parsed patch from merge base to head."""
        ...

    def read(self, path: str, side: Side) -> bytes | None:
        """The whole file, or None where that side has no regular file of this name."""
        ...

    def files(self, side: Side) -> tuple[str, ...]:
        """Every path of that side's tree, sorted."""
        ...

    def list_dir(self, path: str, side: Side) -> tuple[Entry, ...] | None:
        """The entries of a directory ("" is the root), or None where there is none."""
        ...

    def grep(
        self,
        pattern: str,
        side: Side,
        *,
        paths: tuple[str, ...] = (),
        fixed: bool = False,
        word: bool = False,
        limit: int = 200,
    ) -> tuple[Match, ...]:
        """Lines matching an extended regular expression (or a fixed string) in text files of that side.

        Raises `ValueError` for a pattern that git refuses.
        """
        ...

    def log(self, path: str | None, limit: int) -> str:
        """One line a commit, newest first, of the history that head reaches."""
        ...

    def show(self, revision: str) -> str:
        """One commit reachable from head with its patch. Raises `ValueError` for anything else."""
        ...

    def blob(self, object_id: str) -> bytes | None:
        """A blob by full object name, or None where this repository does not have it."""
        ...

    def merge(self, old_base: str, old_head: str, new_base: str) -> bytes | None:
        """What the change from blob `old_base` to `old_head` makes of blob `new_base`: a three-way merge.

        None on a conflict, for binary content, or where a blob is missing.
        """
        ...
