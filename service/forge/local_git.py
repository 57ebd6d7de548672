"""What the local forge asks of git: branches, files, and where a comment may stand in a diff."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Literal

from reviewer.checkout.repository import locate, resolve
from reviewer.checkout.snapshot import GitCheckout, open_range
from reviewer.diff import Diff, FileDiff, parse
from reviewer.errors import GitError
from reviewer.model import Side
from reviewer.report.inline import InlineComment
from service.forge import local_merge

_FILE_LIMIT = 16 << 20
_PATCH_LIMIT = 64 << 20

_DEFAULT_BRANCHES = ("main", "master", "trunk")


class LocalRepository:
    """One repository on disk, read through `reviewer.checkout`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._repository = locate(folder)
        self._diff = lru_cache(maxsize=16)(self._compare)

    def tips(self, *branches: str) -> list[str | None]:
        """The commit at the end of each branch, None where there is no such branch."""
        names = [f"refs/heads/{branch}" for branch in branches]
        listed = self._repository.git.out("for-each-ref", "--format=%(objectname) %(refname)", "--", *names)
        found = {
            name: commit for commit, name in map(str.split, listed.decode(errors="replace").splitlines())
        }
        return [found.get(name) for name in names]

    def checkout(self, base: str, head: str) -> GitCheckout:
        return open_range(self._folder, base, head)

    def diff(self, base: str, head: str) -> Diff:
        """From the merge base to `head`. Both are commits' full names, so that it can be kept."""
        return self._diff(base, head)

    def read(self, revision: str, path: str) -> bytes | None:
        """A file of at most 16 MiB at a branch or commit; HEAD is the default branch, whatever is checked out."""
        if revision == "HEAD":
            revision = next((name for name in _DEFAULT_BRANCHES if self.tips(name)[0]), revision)
        try:
            commit = self.tips(revision)[0] or resolve(self._repository, revision)
        except GitError:
            return None
        found = self._repository.git.run("cat-file", "blob", f"{commit}:{path}", limit=_FILE_LIMIT)
        return None if found.code or found.cut else found.out

    def reaches(self, commit: str, ancestor: str) -> bool:
        return self._repository.git.run("merge-base", "--is-ancestor", ancestor, commit).code == 0

    def subject(self, commit: str) -> str:
        said = self._repository.git.out("log", "--max-count=1", "--format=%s", commit, "--")
        return said.decode("utf-8", "replace").strip()

    def conflicts(self, base: str, head: str) -> bool:
        return local_merge.conflicts(self._repository, base, head)

    def merge(
        self,
        branch: str,
        base: str,
        head: str,
        method: Literal["merge", "squash"],
        message: str,
        author: str,
        when: datetime,
    ) -> str:
        """Merges `head` into the branch, which must stand at `base`; gives the commit at its end.

        Raises `local_merge.Conflict`, and `ForgeError` where the branch cannot be moved.
        """
        made = local_merge.make_merge(self._repository, base, head, method, message, author, when)
        if made != base:
            local_merge.advance(self._repository, branch, base, made)
        return made

    def changed_since(self, commit: str, head: str, path: str, lines: range) -> bool:
        """Whether the commits from `commit` to `head` touched these lines (numbered as in `commit`)."""
        if commit == head:
            return False
        found = self._repository.git.run(
            "diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--full-index",
            "--unified=0", "--src-prefix=a/", "--dst-prefix=b/", commit, head, "--", f":(literal){path}",
            limit=_PATCH_LIMIT,
        )  # fmt: skip
        if found.code or found.cut:
            return True
        return any(
            lines.start < hunk.old_range.stop and hunk.old_range.start < lines.stop
            for file in parse(found.out).files
            for hunk in file.hunks
        )

    def _compare(self, base: str, head: str) -> Diff:
        with self.checkout(base, head) as checkout:
            return checkout.diff


def refusal(comment: InlineComment, diff: Diff) -> str:
    """Why a forge refuses this comment's place, "" where it takes it.

    The rules are GitHub's: the file is in the diff; a line is one that the diff shows, on the LEFT a removed one;
    several lines are of one hunk and in order.
    """
    file = diff.file(comment.path)
    if file is None:
        return f"path {comment.path!r} is not part of the diff"
    if comment.line is None:
        return "" if comment.start_line is None else "start_line without line"
    last = _position(file, comment.side, comment.line)
    if last is None:
        return f"line {comment.line} of {comment.path!r} must be part of the diff"
    if comment.start_line is None:
        return ""
    first = _position(file, comment.start_side or comment.side, comment.start_line)
    if first is None or first[0] != last[0]:
        return f"start_line {comment.start_line} must be part of the same hunk as line {comment.line}"
    return "" if first < last else f"start_line {comment.start_line} must precede line {comment.line}"


def shows(diff: Diff, path: str, side: Side, line: int) -> bool:
    """Whether a comment could stand on this line."""
    file = diff.file(path)
    return file is not None and _position(file, side, line) is not None


def _position(file: FileDiff, side: Side, line: int) -> tuple[int, int] | None:
    """Hunk and row in which the diff shows a line."""
    for index, hunk in enumerate(file.hunks):
        if not hunk.contains(side, line):
            continue
        for row, shown in enumerate(hunk.lines()):
            if side is Side.RIGHT and shown.new == line:
                return index, row
            if side is Side.LEFT and shown.old == line and shown.new is None:
                return index, row
    return None


def span(first: int | None, last: int) -> range:
    """The lines of a comment, 1-based, as a range."""
    return range(first if first is not None and first <= last else last, last + 1)
