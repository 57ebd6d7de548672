"""What a commit's tree holds, and the contents of blobs."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from subprocess import Popen

from reviewer.checkout.git import Git, kill
from reviewer.errors import GitError

_KINDS = {"040000": "directory", "120000": "symlink", "160000": "submodule"}


@dataclass(frozen=True, slots=True)
class Node:
    """One entry of a tree. `kind` is file, directory, symlink or submodule; `raw` is the path's exact bytes."""

    kind: str
    object_id: str
    raw: bytes
    size: int = 0


def decode_path(raw: bytes) -> str:
    """A path as the diff spells it: bytes that are not UTF-8 are written out."""
    return raw.decode("utf-8", "backslashreplace")


def list_tree(git: Git, tree: str, *options: str) -> Iterator[Node]:
    """The entries of a tree in git's order; `-l` among the options adds sizes, `-r -t` whole subtrees."""
    for record in git.out("ls-tree", "-z", *options, tree).split(b"\0")[:-1]:
        meta, raw = record.split(b"\t", 1)
        mode, _, object_id, *size = meta.decode().split()
        known = int(size[0]) if size and size[0].isdecimal() else 0
        yield Node(_KINDS.get(mode, "file"), object_id, raw, known)


class Blobs:
    """Reads blobs through one long-lived `git cat-file --batch`; safe to use from several threads."""

    def __init__(self, git: Git, limit: int) -> None:
        self._git = git
        self._limit = limit
        self._process: Popen[bytes] | None = None
        self._lock = threading.Lock()

    def read(self, object_id: str) -> bytes | None:
        """The blob of this full name; None where there is none or it is larger than the limit."""
        if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", object_id):
            return None
        with self._lock:
            if self._process is None:
                self._process = self._git.start_batch()
            try:
                return self._ask(self._process, object_id)
            except (BrokenPipeError, EOFError):
                self._stop()
                raise GitError(
                    f"git cannot read the object {object_id}", "look for damage with `git fsck`"
                ) from None

    def _ask(self, process: Popen[bytes], object_id: str) -> bytes | None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(object_id.encode() + b"\n")
        process.stdin.flush()
        answer = process.stdout.readline().split()
        if not answer:
            raise EOFError
        if len(answer) == 2:  # "<name> missing"
            return None
        size = int(answer[2])
        if size > self._limit:
            # Cheaper than reading gigabytes only to drop them.
            self._stop()
            return None
        content = process.stdout.read(size + 1)
        if len(content) <= size:
            raise EOFError
        return content[:-1] if answer[1] == b"blob" else None

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._process is not None:
            kill(self._process)
            self._process = None
