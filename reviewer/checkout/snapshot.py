"""Both sides of a pull request, taken from a local repository or from a patch and the commit it applies to."""

from __future__ import annotations

import itertools
import re
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from reviewer.checkout.base import Entry, Match
from reviewer.checkout.git import MIB, Git, TimedOut
from reviewer.checkout.objects import Blobs, Node, decode_path, list_tree
from reviewer.checkout.patches import apply
from reviewer.checkout.repository import Repository, locate, open_scratch, resolve
from reviewer.diff import Diff, parse
from reviewer.errors import GitError
from reviewer.model import Side

PATCH_LIMIT = 64 * MIB
"""The largest patch that is reviewed, in bytes, where the caller sets no other limit."""

READ_LIMIT = 16 * MIB
"""The largest file that `read`, `blob` and `merge` give; a larger one counts as absent."""

_SHOW_LIMIT = 1 * MIB
_GREP_LIMIT = 8 * MIB
_GREP_SECONDS = 20.0
_DIFF_SECONDS = 300.0
_ARCHIVE_SECONDS = 600.0

# A name may hold a newline, so the records cannot be split at newlines.
_GREP_RECORD = re.compile(rb"([^\0]*)\0(\d+)\0([^\n]*)\n")

# Spelled out although the scratch repository has no configuration: defaults differ between versions of git.
_DIFF_OPTIONS = (
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--full-index",
    "--find-renames=50%",
    "-l2000",
    "--diff-algorithm=myers",
    "--indent-heuristic",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--unified=3",
    "--inter-hunk-context=0",
    "--submodule=short",
    "--ignore-submodules=none",
)


class GitCheckout:
    """`reviewer.checkout.base.Checkout` over git; safe to use from several threads; close it after use."""

    def __init__(
        self, git: Git, owner: tempfile.TemporaryDirectory[str], base: str, head: str, patch_limit: int
    ) -> None:
        self._git = git
        self._owner = owner
        self._commits = {Side.LEFT: base, Side.RIGHT: head}
        self._diff = _diff(git, base, head, patch_limit)
        self._blobs = Blobs(git, READ_LIMIT)
        self._trees: dict[Side, dict[str, Node]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends git and removes the scratch repository."""
        self._blobs.close()
        self._owner.cleanup()

    @property
    def base_sha(self) -> str:
        return self._commits[Side.LEFT]

    @property
    def head_sha(self) -> str:
        return self._commits[Side.RIGHT]

    @property
    def diff(self) -> Diff:
        return self._diff

    def read(self, path: str, side: Side) -> bytes | None:
        node = self._tree(side).get(path)
        return self._blobs.read(node.object_id) if node and node.kind == "file" else None

    def blob(self, object_id: str) -> bytes | None:
        return self._blobs.read(object_id)

    def files(self, side: Side) -> tuple[str, ...]:
        return tuple(sorted(path for path, node in self._tree(side).items() if node.kind != "directory"))

    def list_dir(self, path: str, side: Side) -> tuple[Entry, ...] | None:
        if path:
            node = self._tree(side).get(path)
            if node is None or node.kind != "directory":
                return None
            tree = node.object_id
        else:
            tree = self._commits[side]
        return tuple(
            Entry(decode_path(child.raw), child.kind, child.size)
            for child in list_tree(self._git, tree, "-l")
        )

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
        """`paths` are files, folders or globs in which `*` also matches `/`."""
        if any(path.startswith(":") for path in paths):
            raise ValueError("a path may not start with ':'")
        commit = self._commits[side]
        options = ["-w"] if word else []
        try:
            result = self._git.run(
                "grep", "-I", "-n", "-z", "--no-textconv", "--no-recurse-submodules", "--full-name", "--no-color",
                "-F" if fixed else "-E", *options, "-e", pattern, commit,
                "--", *(self._raw(path) for path in paths),
                limit=_GREP_LIMIT,
                timeout=_GREP_SECONDS,
            )  # fmt: skip
        except TimedOut:
            raise ValueError(f"the pattern took longer than {_GREP_SECONDS:g} s") from None
        if result.code not in (0, 1) and not result.cut:
            raise ValueError(result.complaint)
        # A line that the limit cuts has no end and is left out.
        records = itertools.islice(_GREP_RECORD.finditer(result.out), limit)
        return tuple(
            Match(decode_path(name[len(commit) + 1 :]), int(number), text.decode(errors="replace"))
            for name, number, text in (record.groups() for record in records)
        )

    def log(self, path: str | None, limit: int) -> str:
        return self._git.out(
            "--literal-pathspecs", "log", "--no-color", "--no-decorate", "--date=short", "--abbrev=12",
            "--format=%h %ad %an: %s", f"--max-count={limit}", self.head_sha,
            "--", *([self._raw(path)] if path else []),
        ).decode(errors="replace")  # fmt: skip

    def show(self, revision: str) -> str:
        """`revision` is a commit's name, whole or shortened, or `head` or `base`, with `~2` and the like."""
        commit = self._reachable(revision)
        if commit is None:
            raise ValueError(f"no commit {revision!r} is reachable from the pull request's head")
        result = self._git.run(
            "show", *_DIFF_OPTIONS, "--no-decorate", "--diff-merges=first-parent", "--stat", "--patch", commit,
            limit=_SHOW_LIMIT,
        )  # fmt: skip
        note = f"\n(cut after {_SHOW_LIMIT} bytes)\n" if result.cut else ""
        return result.out.decode(errors="replace") + note

    def merge(self, old_base: str, old_head: str, new_base: str) -> bytes | None:
        """What the change from blob `old_base` to blob `old_head` makes of blob `new_base`.

        None on a conflict, for binary files, and where a blob is absent or too large.
        """
        blobs = [self.blob(name) for name in (new_base, old_base, old_head)]
        with tempfile.TemporaryDirectory(dir=self._owner.name) as folder:
            paths = [Path(folder, name) for name in ("ours", "base", "theirs")]
            for path, content in zip(paths, blobs, strict=True):
                if content is None:
                    return None
                path.write_bytes(content)
            result = self._git.run("merge-file", "-p", *(str(path) for path in paths))
        return None if result.code else result.out

    def tree_of(self, commit: str) -> str:
        """The name of a commit's tree."""
        return (
            self._git.out("rev-parse", "--verify", "--end-of-options", f"{commit}^{{tree}}").decode().strip()
        )

    def merge_tree(self, base: str) -> str | None:
        """The tree that merging the head into the commit `base` gives; None on a conflict."""
        result = self._git.run("merge-tree", "--write-tree", "--no-messages", base, self.head_sha)
        if result.code > 1:
            raise GitError(f"git cannot merge {self.head_sha[:12]} into {base[:12]}: {result.complaint}", "")
        return None if result.code else result.out.decode().split()[0]

    def archive(self, tree: str, to: Path) -> None:
        """Writes all files of a commit or tree into a .tar.gz. Raises `GitError` where it cannot."""
        result = self._git.run(
            "archive", "--format=tar.gz", "-1", f"--output={to}", tree, timeout=_ARCHIVE_SECONDS
        )
        if result.code:
            raise GitError(
                f"git cannot write {tree[:12]} to {to}: {result.complaint}",
                "check the disk, and fetch the files",
            )

    def _tree(self, side: Side) -> dict[str, Node]:
        with self._lock:
            if side not in self._trees:
                listed = list_tree(self._git, self._commits[side], "-r", "-t")
                self._trees[side] = {decode_path(node.raw): node for node in listed}
            return self._trees[side]

    def _raw(self, path: str) -> bytes:
        for side in (Side.RIGHT, Side.LEFT):
            if node := self._tree(side).get(path):
                return node.raw
        return path.encode()

    def _reachable(self, revision: str) -> str | None:
        """The full name of a commit in the history of base or head; the user's references do not exist here."""
        if not revision or revision.startswith("-") or "\0" in revision:
            return None
        names = {"HEAD": self.head_sha, "head": self.head_sha, "base": self.base_sha}
        spelled = re.sub(r"^(HEAD|head|base)(?=$|[~^])", lambda match: names[match[1]], revision)
        found = self._git.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{spelled}^{{commit}}")
        commit = found.out.decode().strip()
        if found.code or not any(
            self._git.run("merge-base", "--is-ancestor", commit, tip).code == 0
            for tip in self._commits.values()
        ):
            return None
        return commit


def open_range(repo: Path, base: str, head: str, *, patch_limit: int = PATCH_LIMIT) -> GitCheckout:
    """The change that `head` makes since it left `base`: merge base to head, as a pull request shows it."""
    repository = locate(repo)
    tips = (resolve(repository, base), resolve(repository, head))
    git, owner = open_scratch(repository)
    try:
        found = git.run("merge-base", *tips)
        if found.code:
            raise _no_merge_base(repository, base, head)
        return GitCheckout(git, owner, found.out.decode().strip(), tips[1], patch_limit)
    except BaseException:
        owner.cleanup()
        raise


def open_patch(repo: Path, base: str, patch: bytes, *, patch_limit: int = PATCH_LIMIT) -> GitCheckout:
    """The change that `patch` makes to the commit `base`.

    Where the patch only applies in reverse, `base` already holds it and is taken as the head.
    """
    if len(patch) > patch_limit:
        raise _too_large(f"the patch has {len(patch) / MIB:.1f} MiB", patch_limit)
    repository = locate(repo)
    commit = resolve(repository, base)
    git, owner = open_scratch(repository)
    try:
        return GitCheckout(git, owner, *apply(git, commit, patch), patch_limit)
    except BaseException:
        owner.cleanup()
        raise


def _diff(git: Git, base: str, head: str, limit: int) -> Diff:
    result = git.run("diff", *_DIFF_OPTIONS, base, head, "--", limit=limit, timeout=_DIFF_SECONDS)
    if result.cut:
        raise _too_large(f"the patch from {base[:12]} to {head[:12]} is larger", limit)
    if result.code:
        raise GitError(
            f"git cannot compare {base[:12]} with {head[:12]}: {result.complaint}",
            "in a partial clone, fetch what is missing with `git fetch --refetch --no-filter`",
        )
    return parse(result.out)


def _too_large(problem: str, limit: int) -> GitError:
    return GitError(
        f"{problem}, and {limit / MIB:.1f} MiB is the limit", "split the change, or leave out generated files"
    )


def _no_merge_base(repository: Repository, base: str, head: str) -> GitError:
    if repository.shallow:
        return GitError(
            f"{repository.folder} is a shallow clone without the merge base of {base} and {head}",
            f"get the whole history: git -C {repository.folder} fetch --unshallow",
        )
    return GitError(f"{base} and {head} have no common commit", "name a base that the head was branched from")
