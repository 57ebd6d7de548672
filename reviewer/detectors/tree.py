"""The head files of a review written to a temporary folder, under names that mean nothing to any tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

MAX_FILE_BYTES = 1_000_000
MAX_TREE_BYTES = 20_000_000

PYTHON = frozenset((".py", ".pyi"))
NATIVE = frozenset((".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hh", ".hpp"))


@dataclass(slots=True)
class Tree:
    """`names` maps a path to its name in the folder; `unread` says why a path is not there.

    Binary files that no analyser would read as source are in neither.
    """

    folder: Path
    names: dict[str, str] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)


def suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def write(folder: Path, files: Mapping[str, bytes]) -> Tree:
    """Names keep only a known suffix, so that no file passes for settings or for a module that a tool imports.

    `__init__` stays, in a folder of its own: a package's own file has names that others lack.
    """
    tree, room = Tree(folder), MAX_TREE_BYTES
    for number, path in enumerate(sorted(files)):
        content, kind = files[path], suffix(path)
        known = kind in PYTHON or kind in NATIVE
        if b"\0" in content and not known:
            continue
        reason = _unreadable(content, room)
        if reason:
            tree.unread[path] = reason
            continue
        room -= len(content)
        package = PurePosixPath(path).name in ("__init__.py", "__init__.pyi")
        name = f"f{number:06}{'/__init__' if package else ''}{kind if known else '.txt'}"
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
        tree.names[path] = name
    return tree


def _unreadable(content: bytes, room: int) -> str:
    if len(content) > MAX_FILE_BYTES:
        return f"{len(content)} bytes, more than the {MAX_FILE_BYTES} that detectors read"
    if len(content) > room:
        return f"the files before it hold the {MAX_TREE_BYTES} bytes that detectors read in one round"
    if b"\0" in content:
        return "holds NUL bytes"
    if b"\r" in content.replace(b"\r\n", b""):
        return "holds a carriage return within a line, so its lines cannot be numbered"
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return f"is not UTF-8 at byte {error.start}"
    return ""
