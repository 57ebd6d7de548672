"""A bare git repository behind each repository of the stand-in; everything git answers is git's own answer."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from tests.standin.github.patch import FileChange, parse_changes

Files = Mapping[str, str | bytes | None]
"""Path to content; None deletes."""


class GitFailed(AssertionError):
    """The test asked git for something that it refused."""


class GitStore:
    """One bare repository in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = {
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
        }
        self._changes: dict[tuple[str, str], tuple[FileChange, ...]] = {}

    @classmethod
    def create(cls, folder: Path) -> GitStore:
        folder.mkdir(parents=True)
        store = cls(folder)
        store.run("init", "--quiet", "--bare", "--initial-branch=main")
        for name in ("uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"):
            store.run("config", name, "true")
        return store

    def fork(self, folder: Path) -> GitStore:
        copy = GitStore.create(folder)
        copy.run("fetch", "--quiet", str(self.folder), "+refs/heads/*:refs/heads/*")
        return copy

    def run(self, *arguments: str, data: bytes | None = None, ok: Sequence[int] = (0,)) -> bytes:
        done = self.process(arguments, data)
        if done.returncode not in ok:
            raise GitFailed(f"git {' '.join(arguments)}: {done.stderr.decode('utf-8', 'replace')}")
        return done.stdout

    def process(
        self,
        arguments: Sequence[str],
        data: bytes | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["git", *arguments],
            cwd=self.folder,
            env={**self._environment, **(environment or {})},
            input=data if data is not None else b"",
            capture_output=True,
            check=False,
        )

    def text(self, *arguments: str) -> str:
        return self.run(*arguments).decode("utf-8", "replace").strip()

    # Writing

    def commit(
        self,
        branch: str,
        files: Files,
        message: str,
        author: str,
        when: datetime,
        *,
        parent: str | None,
    ) -> str:
        """Puts a commit with these changes on top of `parent` and points the branch at it, forced if need be."""
        who = f"{author} <{author}@users.noreply.example.org> {int(when.timestamp())} +0000"
        parts = [
            f"commit refs/heads/{branch}\nmark :1\nauthor {who}\ncommitter {who}\n".encode(),
            _data(message.encode()),
        ]
        if parent is not None:
            parts.append(f"from {parent}\n".encode())
        for path, content in files.items():
            quoted = '"' + path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
            if content is None:
                parts.append(f"D {quoted}\n".encode())
            else:
                parts.append(f"M 100644 inline {quoted}\n".encode())
                parts.append(_data(content.encode() if isinstance(content, str) else content))
        parts.append(b"get-mark :1\n")
        return self.run("fast-import", "--quiet", "--force", data=b"".join(parts)).decode().strip()

    def commit_tree(
        self, tree: str, parents: Sequence[str], message: str, author: str, when: datetime
    ) -> str:
        stamp = f"{int(when.timestamp())} +0000"
        identity = {
            f"GIT_{role}_{part}": value
            for role in ("AUTHOR", "COMMITTER")
            for part, value in (
                ("NAME", author),
                ("EMAIL", f"{author}@users.noreply.example.org"),
                ("DATE", stamp),
            )
        }
        options = [word for parent in parents for word in ("-p", parent)]
        done = self.process(["commit-tree", tree, *options, "-m", message], environment=identity)
        if done.returncode:
            raise GitFailed(done.stderr.decode())
        return done.stdout.decode().strip()

    def point(self, ref: str, sha: str) -> None:
        self.run("update-ref", ref, sha)

    def drop(self, ref: str) -> None:
        self.run("update-ref", "-d", ref)

    def take(self, other: GitStore, sha: str, ref: str) -> None:
        """Copies a commit of another repository here, under `ref`."""
        if other is self:
            self.point(ref, sha)
        else:
            self.run("fetch", "--quiet", "--no-tags", str(other.folder), f"+{sha}:{ref}")

    # Reading

    def resolve(self, revision: str) -> str | None:
        """The commit that a branch, tag or SHA names."""
        if revision.startswith("-"):
            return None
        whole = re.fullmatch("[0-9a-f]{40}", revision)
        for name in (revision,) if whole else (f"refs/heads/{revision}", f"refs/tags/{revision}", revision):
            done = self.process(
                ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"]
            )
            if done.returncode == 0:
                return done.stdout.decode().strip()
        return None

    def branches(self) -> dict[str, str]:
        lines = self.text(
            "for-each-ref", "--format=%(objectname) %(refname:lstrip=2)", "refs/heads"
        ).splitlines()
        return {name: sha for sha, _, name in (line.partition(" ") for line in lines)}

    def merge_base(self, one: str, other: str) -> str:
        done = self.process(["merge-base", one, other])
        # Unrelated histories: GitHub shows everything as new.
        return done.stdout.decode().strip() if done.returncode == 0 else self.empty_tree()

    def empty_tree(self) -> str:
        return self.run("hash-object", "-t", "tree", "-w", "--stdin", data=b"").decode().strip()

    def merge_tree(self, one: str, other: str) -> str | None:
        """The tree of a merge, or None where it conflicts."""
        done = self.process(["merge-tree", "--write-tree", one, other])
        return done.stdout.decode().split("\n")[0] if done.returncode == 0 else None

    def changes(self, base: str, head: str) -> tuple[FileChange, ...]:
        """The files that differ between two commits, with their patches as GitHub cuts them."""
        key = (base, head)
        if key not in self._changes:
            options = ("--raw", "-z", "--full-index", "--find-renames=50%", "--no-abbrev")
            raw = self.run("diff", *options, base, head)
            patch = self.diff(base, head)
            self._changes[key] = parse_changes(raw, patch)
        return self._changes[key]

    def diff(self, base: str, head: str) -> bytes:
        return self.run(
            "diff",
            "--full-index",
            "--find-renames=50%",
            "--no-color",
            "--src-prefix=a/",
            "--dst-prefix=b/",
            base,
            head,
        )

    def commits(self, base: str, head: str) -> list[str]:
        """Commits of head that base has not, oldest first."""
        return self.text("rev-list", "--reverse", "--topo-order", head, f"^{base}").split()

    def is_ancestor(self, one: str, other: str) -> bool:
        return self.process(["merge-base", "--is-ancestor", one, other]).returncode == 0

    def describe(self, sha: str) -> dict[str, str]:
        form = "%H%x00%T%x00%P%x00%an%x00%ae%x00%aI%x00%cn%x00%ce%x00%cI%x00%B"
        names = ["sha", "tree", "parents", "author", "author_email", "author_date"]
        names += ["committer", "committer_email", "committer_date", "message"]
        shown = self.run("show", "-s", f"--format={form}", sha).decode("utf-8", "replace").rstrip("\n")
        return dict(zip(names, shown.split("\0"), strict=True))

    def entry(self, revision: str, path: str) -> tuple[str, str] | None:
        """(type, object id) of what stands at a path of a commit: blob, tree or commit."""
        if not path:
            return "tree", self.text("rev-parse", f"{revision}^{{tree}}")
        listed = self.run("ls-tree", "-z", revision, "--", path.rstrip("/")).decode(
            "utf-8", "surrogateescape"
        )
        if not listed:
            return None
        _, kind, name = listed.split("\t")[0].split(" ")
        return kind, name

    def children(self, tree: str) -> list[tuple[str, str, str, int]]:
        """(type, object id, name, size) of the entries of a tree."""
        listed = self.run("ls-tree", "-z", "-l", tree).decode("utf-8", "surrogateescape")
        rows = []
        for record in listed.split("\0")[:-1]:
            head, _, name = record.partition("\t")
            _, kind, oid, size = head.split()
            rows.append((kind, oid, name, 0 if size == "-" else int(size)))
        return rows

    def blob(self, oid: str) -> bytes:
        return self.run("cat-file", "blob", oid)


def _data(content: bytes) -> bytes:
    return b"data %d\n%s\n" % (len(content), content)
