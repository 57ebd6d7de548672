"""Lays the base's harness, the files that measure, over the head's tree."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath


def harness_files(tree: Path, globs: Sequence[str]) -> list[PurePosixPath]:
    """Regular files of a tree that a glob names, in order.

    A glob is `pathlib`'s: `*` and `?` within a name, `**` over folders. One without a slash holds in every folder, and one that names
    a folder means all below it, as in the policy's other globs.
    """
    root = tree.resolve()
    found: set[PurePosixPath] = set()
    for glob in globs:
        pattern = glob.strip("/")
        if "/" not in glob.rstrip("/"):
            pattern = f"**/{pattern}"
        for path in tree.glob(pattern):
            for file in _files(path):
                # A link in the tree may lead anywhere on the host.
                if file.resolve() == root / file.relative_to(tree):
                    found.add(PurePosixPath(file.relative_to(tree)))
    return sorted(found)


def lay_over(base: Path, head: Path, files: Sequence[PurePosixPath], uid: int | None) -> None:
    """Copy files of the base into the head's tree. What stands in the way there, links above all, is replaced, never followed."""
    for file in files:
        with _folder(head, file.parent.parts, uid) as handle:
            _clear(handle, file.name)
            source = base / file
            mode = 0o755 if source.stat().st_mode & 0o100 else 0o644
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            written = os.open(file.name, flags, mode, dir_fd=handle.number)
            with source.open("rb") as origin, os.fdopen(written, "wb") as target:
                shutil.copyfileobj(origin, target)
                if uid is not None:
                    os.fchown(target.fileno(), uid, uid)


class _folder:
    """A folder below another, opened name by name and made where it is missing."""

    def __init__(self, root: Path, parts: Sequence[str], uid: int | None) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self.number = os.open(root, flags)
        for part in parts:
            try:
                if not stat.S_ISDIR(os.stat(part, dir_fd=self.number, follow_symlinks=False).st_mode):
                    os.unlink(part, dir_fd=self.number)
                    raise FileNotFoundError
            except FileNotFoundError:
                os.mkdir(part, 0o755, dir_fd=self.number)
                if uid is not None:
                    os.chown(part, uid, uid, dir_fd=self.number, follow_symlinks=False)
            inner = os.open(part, flags, dir_fd=self.number)
            os.close(self.number)
            self.number = inner

    def __enter__(self) -> _folder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.number)


def _clear(folder: _folder, name: str) -> None:
    """Moves what has the name out of the way: a folder may be deeper than it can be removed from here."""
    aside = f".{name[:100]}.{secrets.token_hex(6)}"
    with contextlib.suppress(FileNotFoundError):
        os.rename(name, aside, src_dir_fd=folder.number, dst_dir_fd=folder.number)


def _files(path: Path) -> Iterator[Path]:
    if path.is_symlink():
        return
    if path.is_dir():
        for child in path.iterdir():
            yield from _files(child)
    elif path.is_file():
        yield path
