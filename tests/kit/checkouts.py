"""Checkouts for tests: one in memory, made from two sets of files, and a real git repository to commit to."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import subprocess
from pathlib import Path

from reviewer.checkout.base import Entry, Match
from reviewer.diff import Diff, parse
from reviewer.model import PullRequest, Side

Files = dict[str, str]


class MemoryCheckout:
    """Base and head as dictionaries from path to text; the patch between them is real and parsed."""

    def __init__(self, base: Files, head: Files, *, base_sha: str = "", head_sha: str = "") -> None:
        self._sides = {Side.LEFT: base, Side.RIGHT: head}
        self.base_sha = base_sha or _sha(repr(sorted(base.items())))
        self.head_sha = head_sha or _sha(repr(sorted(head.items())))
        self._diff = parse(_patch(base, head).encode())

    @property
    def diff(self) -> Diff:
        return self._diff

    def read(self, path: str, side: Side) -> bytes | None:
        text = self._sides[side].get(path)
        return None if text is None else text.encode()

    def files(self, side: Side) -> tuple[str, ...]:
        return tuple(sorted(self._sides[side]))

    def list_dir(self, path: str, side: Side) -> tuple[Entry, ...] | None:
        return tuple(Entry(name, "file", len(text)) for name, text in sorted(self._sides[side].items()))

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
        expression = re.escape(pattern) if fixed else pattern
        if word:
            expression = rf"\b{expression}\b"
        found = [
            Match(path, number, line)
            for path, text in sorted(self._sides[side].items())
            for number, line in enumerate(text.split("\n"), start=1)
            if re.search(expression, line)
        ]
        return tuple(found[:limit])

    def log(self, path: str | None, limit: int) -> str:
        return f"{self.head_sha[:12]} the change"

    def show(self, revision: str) -> str:
        raise ValueError(f"no commit {revision!r}")

    def blob(self, object_id: str) -> bytes | None:
        texts = [text for files in self._sides.values() for text in files.values()]
        return next((text.encode() for text in texts if _sha(text) == object_id), None)

    def merge(self, old_base: str, old_head: str, new_base: str) -> bytes | None:
        return None


class Repo:
    """A real git repository that a test commits to, with no configuration but its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        identity = {
            f"GIT_{who}_{what}": value
            for who in ("AUTHOR", "COMMITTER")
            for what, value in (
                ("NAME", "A Developer"),
                ("EMAIL", "dev@example.org"),
                ("DATE", "2026-01-01T00:00:00Z"),
            )
        }
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.folder,
            env={**environment, **identity},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode("utf-8", "replace").strip()

    def commit(self, files: dict[str, str | None], message: str = "change") -> str:
        """Writes files (None deletes) and commits everything; gives the commit's name."""
        for name, text in files.items():
            path = self.folder / name
            if text is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8", newline="")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")


def pull_of(checkout: MemoryCheckout) -> PullRequest:
    return PullRequest(
        repo="acme/cache",
        number=7,
        base_sha=checkout.base_sha,
        head_sha=checkout.head_sha,
        title="Batch the writes",
        body="Writes pages in one launch.",
        author="ada",
    )


def _sha(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()


def _patch(base: Files, head: Files) -> str:
    parts = []
    for path in sorted(base.keys() | head.keys()):
        before, after = base.get(path), head.get(path)
        if before == after:
            continue
        parts.append(f"diff --git a/{path} b/{path}\n")
        if before is None:
            parts.append("new file mode 100644\n")
        if after is None:
            parts.append("deleted file mode 100644\n")
        zero = "0" * 40
        old, new = (zero if text is None else _sha(text) for text in (before, after))
        parts.append(
            f"index {old}..{new}" + (" 100644\n" if before is not None and after is not None else "\n")
        )
        hunks = list(
            difflib.unified_diff(
                (before or "").splitlines(keepends=True),
                (after or "").splitlines(keepends=True),
                "/dev/null" if before is None else f"a/{path}",
                "/dev/null" if after is None else f"b/{path}",
            )
        )
        parts += [
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in hunks
        ]
    return "".join(parts)
