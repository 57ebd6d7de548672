"""The ledger on disk: one file a pull request, replaced as a whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from reviewer.errors import LedgerError
from reviewer.ledger import Ledger


def data_folder(given: Path | None = None) -> Path:
    """Where whitesmoke keeps what it remembers: `given`, else $WHITESMOKE_DATA, else the user's data folder."""
    if given is not None:
        return given
    if named := os.environ.get("WHITESMOKE_DATA"):
        return Path(named)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "whitesmoke"


def ledger_path(folder: Path, *identity: str) -> Path:
    """The file of the pull request that `identity` names (repository, base, head), readable and unique."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join((Path(identity[0]).name, *identity[1:])))[:80]
    name = hashlib.sha256("\0".join(identity).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return folder / "ledgers" / f"{slug.strip('-.')}-{name}.json"


def load(path: Path) -> Ledger:
    """The ledger in the file; an empty one where there is no file yet."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Ledger()
    except OSError as error:
        raise LedgerError(f"cannot read {path}: {error.strerror}", "check the file's permissions") from error
    return Ledger.from_json(content, str(path))


def save(path: Path, ledger: Ledger) -> None:
    """Writes to a temporary file, flushes it to the disk and renames it over the old one.

    Raises `LedgerError` where that fails; the old file is then as it was.
    """
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(ledger.to_json())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)
        raise LedgerError(
            f"cannot write the ledger {path}: {error.strerror}",
            "free space or name another folder with --data; the rounds kept so far are intact",
        ) from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the pull request's ledger for one process. Raises `LedgerError` where another has it."""
    lock = path.with_suffix(".lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LedgerError(
            f"cannot create {lock}: {error.strerror}", "name another data folder with --data"
        ) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LedgerError(
                f"another review of this pull request is running ({lock} is held)", "wait for it to end"
            ) from error
        yield
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
