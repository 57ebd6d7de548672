"""Collects what a step left in its output folder. Whoever opened the pull request decides what lies there."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from ci_dispatch.model import Artifact
from ci_dispatch.runner.base import KeepError
from ci_dispatch.untrusted import clean

MOST_FILES = 2_000
MOST_DEPTH = 16
MOST_ENTRIES = 20_000
_MOST_LEFT_OUT = 100
_LONGEST_PATH = 255
_Found = tuple[str, str, int]
"""A path below the folder, why it is left out (empty: it is not), and its bytes."""


class Collector:
    """Keeps regular files of all of a job's steps, up to a number of bytes together; names what it leaves out."""

    def __init__(self, keep: Callable[[str, Path], Artifact], bytes_left: int) -> None:
        self._keep = keep
        self._bytes_left = bytes_left
        self._more = 0
        self.artifacts: list[Artifact] = []
        self._left_out: list[str] = []

    @property
    def left_out(self) -> tuple[str, ...]:
        more = (f"and {self._more:,} more",) if self._more else ()
        return (*self._left_out, *more)

    def collect(self, folder: Path, prefix: str) -> None:
        """Keep what is below a folder, each file as `prefix/path`. No process of the job may be alive."""
        for path, reason, size in _walk(folder):
            name = f"{prefix}/{path}"
            reason = reason or self._refusal(name, size)
            if not reason:
                try:
                    self.artifacts.append(self._keep(name, folder / path))
                    self._bytes_left -= size
                except KeepError as error:
                    reason = str(error)
            if reason:
                self._leave(f"{clean(name, 300)}: {reason}")

    def _refusal(self, name: str, size: int) -> str:
        if len(name) > _LONGEST_PATH:
            return f"its path is longer than {_LONGEST_PATH} characters"
        if len(self.artifacts) >= MOST_FILES:
            return f"a job keeps at most {MOST_FILES:,} files"
        if size > self._bytes_left:
            return f"its {size:,} bytes are more than is left of the artifacts' limit"
        return ""

    def _leave(self, sentence: str) -> None:
        if len(self._left_out) < _MOST_LEFT_OUT:
            self._left_out.append(sentence)
        else:
            self._more += 1


def _walk(folder: Path) -> Iterator[_Found]:
    """Everything below a folder but folders themselves, in order of names. Folders are opened one by one, so no link is followed."""
    try:
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        yield ".", f"the output folder cannot be opened: {error.strerror}", 0
        return
    seen = 0
    stack: list[tuple[int, str, Iterator[str]]] = [(top, "", iter(_names(top)))]
    try:
        while stack:
            handle, below, names = stack[-1]
            name = next(names, None)
            if name is None:
                os.close(stack.pop()[0])
                continue
            seen += 1
            if seen > MOST_ENTRIES:
                yield below or ".", f"more than {MOST_ENTRIES:,} entries: the rest was not looked at", 0
                return
            path = f"{below}{name}"
            about = os.stat(name, dir_fd=handle, follow_symlinks=False)
            if not stat.S_ISDIR(about.st_mode):
                yield path, _why_not(path, about), about.st_size
            elif len(stack) >= MOST_DEPTH:
                yield path, f"folders are nested deeper than {MOST_DEPTH}", 0
            else:
                try:
                    inner = os.open(
                        name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle
                    )
                except OSError as error:
                    yield path, f"the folder cannot be opened: {error.strerror}", 0
                else:
                    stack.append((inner, f"{path}/", iter(_names(inner))))
    finally:
        for handle, _, _ in stack:
            os.close(handle)


def _names(handle: int) -> list[str]:
    with os.scandir(handle) as entries:
        return sorted(entry.name for entry in islice(entries, MOST_ENTRIES + 1))


def _why_not(path: str, about: os.stat_result) -> str:
    if stat.S_ISLNK(about.st_mode):
        return "a symbolic link"
    if not stat.S_ISREG(about.st_mode):
        return "not a regular file"
    if about.st_nlink > 1:
        return "a file with another name (hard link)"
    if not path.isprintable() or "\\" in path:
        return "its path has characters that cannot be printed, or a backslash"
    return ""
