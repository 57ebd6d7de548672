"""Reading what a job wrote: JSON of bounded size and depth, from a regular file below a folder that it may not leave.

A runner imports this module: it stands on the standard library alone.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAX_BYTES = 8 << 20
MAX_DEPTH = 32


class UntrustedError(ValueError):
    """A file is not read; says why, in words without its path."""


def read_json(folder: Path, path: str, *, max_bytes: int = MAX_BYTES) -> Any:
    """The JSON value in `folder/path`, no deeper than `MAX_DEPTH`. No symbolic link below `folder` is followed.

    Numbers beyond the range of a float are infinite; NaN and Infinity are taken, as Python writes them.

    Raises:
        UntrustedError: no such file, not a regular one, too large, too deep, or not JSON.
    """
    data = _read(folder, Path(path).parts, max_bytes)
    try:
        value = json.loads(data)
    except RecursionError:
        raise UntrustedError(f"nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:  # what is no UTF-8, and whole numbers of thousands of digits, too
        raise UntrustedError(f"not JSON: {clean(str(error), 200)}") from None
    if _deeper(value, MAX_DEPTH):
        raise UntrustedError(f"nested deeper than {MAX_DEPTH}")
    return value


def clean(text: str, limit: int) -> str:
    """`text` that JSON, UTF-8 and a database take: no lone surrogate, no NUL, at most `limit` characters."""
    text = text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\\0")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def show(value: object, limit: int) -> str:
    """A JSON value as a reader would write it, cut to `limit` characters."""
    if isinstance(value, str) and len(value) > limit:
        value = value[:limit]  # written out only as far as it is shown
    return clean(json.dumps(value, ensure_ascii=False), limit)


def _read(folder: Path, parts: Sequence[str], max_bytes: int) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    opened: list[int] = []
    try:
        opened.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for part in parts[:-1]:
            opened.append(os.open(part, flags | os.O_DIRECTORY, dir_fd=opened[-1]))
        # Non-blocking: a pipe without a writer would hold the runner for ever.
        opened.append(os.open(parts[-1], flags | os.O_NONBLOCK, dir_fd=opened[-1]))
        about = os.fstat(opened[-1])
        if not stat.S_ISREG(about.st_mode):
            raise UntrustedError("not a regular file")
        with os.fdopen(opened.pop(), "rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise UntrustedError("no such file") from None
    except OSError as error:
        raise UntrustedError(f"cannot be opened as a regular file: {error.strerror}") from None
    finally:
        for descriptor in opened:
            os.close(descriptor)
    if len(data) > max_bytes:
        raise UntrustedError(f"larger than {max_bytes:,} bytes")
    return data


def _deeper(value: object, limit: int) -> bool:
    level: list[object] = [value]
    for _ in range(limit + 1):
        inner: list[object] = []
        for one in level:
            if isinstance(one, dict):
                inner += one.values()
            elif isinstance(one, list):
                inner += one
        if not inner:
            return False
        level = inner
    return True
