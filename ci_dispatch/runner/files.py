"""Small files that must survive a crash whole, and that nobody else may read."""

from __future__ import annotations

import os
from pathlib import Path


def write_private(path: Path, content: bytes) -> None:
    """Replaces a file's content at once, readable by its owner alone. Parents must be there. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def private_folder(path: Path) -> Path:
    """The folder, made where it is not there, closed to others. Raises OSError."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path
