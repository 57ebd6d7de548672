"""What jobs leave behind and runners fetch: files below the data folder, written by the web process alone.

    ci/logs/JOB.log                  grows while the job runs
    ci/artifacts/JOB/...             whole files, never half of one
    ci/sources/COMMIT.tar.gz         put there by the worker

Names come from outside. Every folder on the way is opened without following links, and relative to the one before.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pydantic import TypeAdapter, ValidationError

from ci_dispatch.model import Artifact, RelativePath

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_RELATIVE: TypeAdapter[str] = TypeAdapter(RelativePath)
_DEPTH, _FILES = 8, 1_000
_LINKS = os.O_NOFOLLOW | os.O_CLOEXEC


class FileRefused(Exception):
    """A name or size that is not taken; says why."""


class TooLarge(FileRefused):
    """More than is kept of a job's log or artifacts."""


class NotHere(Exception):
    """The file is not there, or not yet."""


class CiFiles:
    """The files of CI below a data folder. Safe to use from several threads and processes."""

    def __init__(self, data: Path) -> None:
        self.root = data / "ci"
        for name in ("logs", "artifacts", "sources"):
            (self.root / name).mkdir(mode=0o700, parents=True, exist_ok=True)

    # Logs

    def append_log(
        self, job_id: int, offset: int, data: bytes, limit: int, check: Callable[[], object] = lambda: None
    ) -> int:
        """Adds what is not kept yet of `data`, which begins at byte `offset`; returns how many bytes are kept.

        `check` is called under the file's lock and may raise. Raises `TooLarge` past `limit` (what fits is kept),
        `FileRefused` where bytes in between are missing.
        """
        with self._log(job_id) as file:
            check()
            size = os.fstat(file).st_size
            if offset > size:
                raise FileRefused(f"the log is kept to byte {size}, and this begins at {offset}")
            fresh = memoryview(data)[size - offset :]
            taken = fresh[: max(0, limit - size)]
            _write(file, taken)
            if len(taken) < len(fresh):
                raise TooLarge(f"no more than {limit} bytes are kept of a log")
            return size + len(taken)

    def read_log(self, job_id: int, offset: int = 0, limit: int = 1 << 20) -> bytes:
        """Up to `limit` bytes from `offset`; negative ones count from the end. b"" where there is no log."""
        try:
            with _opened(self.root / "logs" / f"{job_id}.log") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size + offset) if offset < 0 else offset)
                return file.read(limit)
        except NotHere:
            return b""

    def reset(self, job_id: int) -> None:
        """Forgets what an earlier lease of the job left."""
        if (self.root / "logs" / f"{job_id}.log").exists():
            with self._log(job_id) as file:
                os.ftruncate(file, 0)
        shutil.rmtree(self.root / "artifacts" / str(job_id), ignore_errors=True)

    @contextmanager
    def _log(self, job_id: int) -> Iterator[int]:
        path = self.root / "logs" / f"{job_id}.log"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _LINKS, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    # Artifacts

    def begin_artifact(self, job_id: int, path: str, limit: int) -> Upload:
        """A file that is kept once it is complete. Raises `FileRefused` for its name, `TooLarge` where nothing fits."""
        return Upload(self.root / "artifacts", job_id, _checked(path), limit)

    def open_artifact(self, job_id: int, path: str) -> BinaryIO:
        """Raises `NotHere`, `FileRefused`."""
        *folders, name = _checked(path)
        try:
            folder = _descend(self.root / "artifacts", [str(job_id), *folders], create=False)
        except OSError as error:
            raise NotHere(f"job {job_id} left no artifact {path}") from error
        try:
            return _open_at(name, folder)
        finally:
            os.close(folder)

    # Sources

    def source_path(self, commit: str) -> Path:
        """Where the worker puts the tree of a commit, by renaming a complete file. Raises `FileRefused`."""
        if not _COMMIT.fullmatch(commit):
            raise FileRefused(f"{commit[:80]!r} is no commit")
        return self.root / "sources" / f"{commit}.tar.gz"

    def open_source(self, commit: str) -> BinaryIO:
        """Raises `NotHere`, `FileRefused`."""
        return _opened(self.source_path(commit))

    # Retention

    def forget(self, job_ids: Iterable[int]) -> None:
        """Deletes logs and artifacts of these jobs."""
        for job_id in job_ids:
            with suppress(FileNotFoundError):
                (self.root / "logs" / f"{job_id}.log").unlink()
            shutil.rmtree(self.root / "artifacts" / str(job_id), ignore_errors=True)

    def kept_jobs(self) -> set[int]:
        """Ids of jobs that have a log or artifacts here."""
        logs = (path.stem for path in (self.root / "logs").iterdir())
        folders = (path.name for path in (self.root / "artifacts").iterdir())
        return {int(name) for name in (*logs, *folders) if name.isdecimal()}

    def drop_sources(self, before: float) -> int:
        """Deletes sources that nobody has read or written since `before`, seconds since the epoch; returns how many."""
        dropped = 0
        for path in (self.root / "sources").iterdir():
            with suppress(FileNotFoundError):
                seen = path.lstat()
                if max(seen.st_atime, seen.st_mtime) < before:
                    path.unlink()
                    dropped += 1
        return dropped


class Upload:
    """An artifact as it comes in: `write` chunks, then `finish` or `abandon`."""

    def __init__(self, root: Path, job_id: int, parts: list[str], limit: int) -> None:
        self._path = "/".join(parts)
        self._limit = limit
        self._digest = hashlib.sha256()
        self._size = 0
        self._name = parts[-1]
        self._job = _descend(root, [str(job_id)], create=True)
        self._temporary = f".{secrets.token_hex(8)}"
        try:
            self._room = limit - self._used(root / str(job_id), new=1)
            self._folder = _descend(self._job, parts[:-1], create=True)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _LINKS
                self._file = os.open(self._temporary, flags, 0o600, dir_fd=self._folder)
            except OSError:
                os.close(self._folder)
                raise
        except OSError as error:
            os.close(self._job)
            raise FileRefused(f"{self._path}: {error.strerror}") from error
        except FileRefused:
            os.close(self._job)
            raise
        self._place = root / str(job_id)

    def write(self, chunk: bytes) -> None:
        """Raises `TooLarge`."""
        self._size += len(chunk)
        if self._size > self._room:
            raise self._too_large()
        self._digest.update(chunk)
        _write(self._file, chunk)

    def finish(self) -> Artifact:
        """The file is there, complete. Raises `TooLarge` where others took the room meanwhile, `FileRefused`."""
        try:
            os.fsync(self._file)
            fcntl.flock(self._job, fcntl.LOCK_EX)
            if self._used(self._place, new=0) > self._limit:
                raise self._too_large()
            try:
                os.rename(self._temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            except OSError as error:
                raise FileRefused(f"{self._path}: {error.strerror}") from error
            self._temporary = ""
        finally:
            self.abandon()
        return Artifact(path=self._path, bytes=self._size, sha256=self._digest.hexdigest())

    def abandon(self) -> None:
        """Leaves nothing of it; after `finish` it has no effect."""
        if self._file < 0:
            return
        if self._temporary:
            with suppress(FileNotFoundError):
                os.unlink(self._temporary, dir_fd=self._folder)
        for each in (self._file, self._folder, self._job):
            os.close(each)
        self._file = -1

    def _used(self, place: Path, *, new: int) -> int:
        """Bytes of the job's other artifacts, and of what comes in now; the one that this replaces does not count."""
        own = place / self._path
        total = count = 0
        for folder, _, names in os.walk(place):
            for name in names:
                path = Path(folder) / name
                if path != own:
                    with suppress(FileNotFoundError):
                        total += path.lstat().st_size
                        count += 1
        if count + new > _FILES:
            raise FileRefused(f"no more than {_FILES} artifacts are kept of a job")
        return total

    def _too_large(self) -> TooLarge:
        return TooLarge(f"{self._path}: no more than {self._limit} bytes are kept of a job's artifacts")


def _checked(path: str) -> list[str]:
    try:
        parts = _RELATIVE.validate_python(path).split("/")
    except ValidationError as error:
        raise FileRefused(error.errors()[0]["msg"]) from error
    if len(parts) > _DEPTH or not all(part and part.isprintable() and part[0] != "." for part in parts):
        raise FileRefused(
            f"{path[:80]!r}: expected at most {_DEPTH} printable names that do not begin with a dot"
        )
    return parts


def _descend(start: Path | int, names: list[str], *, create: bool) -> int:
    """Opens a folder below `start`, link by no link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | _LINKS
    folder = os.dup(start) if isinstance(start, int) else os.open(start, flags)
    for name in names:
        try:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=folder)
            below = os.open(name, flags, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
    return folder


def _opened(path: Path) -> BinaryIO:
    try:
        return _open_at(str(path), None)
    except NotHere:
        raise NotHere(f"{path.name} is not here") from None


def _open_at(name: str, folder: int | None) -> BinaryIO:
    try:
        file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _LINKS, dir_fd=folder)
    except OSError as error:
        raise NotHere(f"{name} is not here") from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise NotHere(f"{name} is no file")
    return os.fdopen(file, "rb")


def _write(file: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
