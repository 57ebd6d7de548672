"""Unpacks the archive of a commit's tree. What it holds was written by whoever opened the pull request."""

from __future__ import annotations

import os
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from ci_dispatch.runner.base import SourceError

MOST_FILES = 500_000
MOST_BYTES = 16 << 30
_CHUNK = 1 << 20


def unpack(archive: Path, into: Path, *, most_bytes: int = MOST_BYTES, most_files: int = MOST_FILES) -> None:
    """A gzip-compressed tar of files, folders and symbolic links, into an empty folder.

    Links are made last, as they are, so that no member is written through one. Raises SourceError for anything else in the archive, a
    path that leaves the folder, or more than the limits.
    """
    links: list[tuple[PurePosixPath, str]] = []
    files = size = 0
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                path = _inside(member.name)
                files, size = files + 1, size + member.size
                if files > most_files or size > most_bytes:
                    raise SourceError(
                        f"the tree has more than {most_files} files or {most_bytes} bytes, unpacked"
                    )
                if member.isdir():
                    (into / path).mkdir(parents=True, exist_ok=True)
                elif member.issym():
                    links.append((path, member.linkname))
                elif member.isreg():
                    _write(tar, member, into / path)
                else:
                    raise SourceError(f"{member.name!r} in the tree is no file, folder or symbolic link")
        for path, target in links:
            _link(into, path, target)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise SourceError(f"the tree's archive is damaged: {error}") from None
    except OSError as error:
        raise SourceError(f"the tree cannot be unpacked: {error}") from None


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise SourceError(f"{name!r} in the tree leaves the folder")
    return path


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = 0o755 if member.mode & 0o100 else 0o644
    source = tar.extractfile(member)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(handle, "wb") as file:
        while source is not None and (chunk := source.read(_CHUNK)):
            file.write(chunk)


def _link(into: Path, path: PurePosixPath, target: str) -> None:
    folder = into / path.parent
    if folder.resolve() != into.resolve() / path.parent:
        raise SourceError(f"{path} in the tree lies below a symbolic link")
    folder.mkdir(parents=True, exist_ok=True)
    (into / path).symlink_to(target)
