"""A real git repository, into which tests put whole trees and out of which they take real patches."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from reviewer.diff import Diff, parse

# A tree: path -> (mode, content). The content of a submodule is the hexadecimal name of its commit.
Tree = Mapping[bytes, tuple[str, bytes]]


class Repository:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trees = 0
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str, stdin: bytes = b"") -> bytes:
        command = ["git", "-C", str(self.folder), *arguments]
        environment = {
            **os.environ,
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "LC_ALL": "C",
        }
        return subprocess.run(command, input=stdin, capture_output=True, check=True, env=environment).stdout

    def commit(self, *trees: Tree) -> list[str]:
        """One commit per tree, each the parent of the next; their branch names."""
        stream: list[bytes] = []
        branches: list[str] = []
        for tree in trees:
            self.trees += 1
            branches.append(f"tree-{self.trees}")
            stream.append(b"commit refs/heads/%s\n" % branches[-1].encode())
            stream.append(b"committer Tester <tester@example.org> 1700000000 +0000\ndata 8\nmessage\n\n")
            if len(branches) > 1:
                stream.append(b"from refs/heads/%s\ndeleteall\n" % branches[-2].encode())
            for path, (mode, content) in tree.items():
                quoted = "".join(f"\\{byte:03o}" for byte in path).encode()
                if mode == "160000":
                    stream.append(b'M 160000 %s "%s"\n' % (content, quoted))
                else:
                    stream.append(b'M %s inline "%s"\n' % (mode.encode(), quoted))
                    stream.append(b"data %d\n%s\n" % (len(content), content))
        self.git("fast-import", "--quiet", "--force", stdin=b"".join(stream))
        return branches

    def diff(self, base: Tree, head: Tree, *flags: str) -> bytes:
        before, after = self.commit(base, head)
        return self.git("diff", "--full-index", *flags, before, after, "--")


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture
def diff_of(repository: Repository) -> Callable[..., Diff]:
    """Parses what git says of two trees, given as path -> content or path -> (mode, content)."""

    def full(tree: Mapping[bytes, bytes | tuple[str, bytes]]) -> Tree:
        return {path: ("100644", file) if isinstance(file, bytes) else file for path, file in tree.items()}

    def build(base: Mapping[bytes, bytes], head: Mapping[bytes, bytes], *flags: str) -> Diff:
        return parse(repository.diff(full(base), full(head), *flags))

    return build


@pytest.fixture(scope="session")
def blob_id() -> Callable[[bytes], str]:
    return lambda content: hashlib.sha1(b"blob %d\0%s" % (len(content), content)).hexdigest()
