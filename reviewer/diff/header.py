"""Reads what stands between the first line about a file and its hunks."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from reviewer.diff import paths
from reviewer.diff.model import FileDiff, Status
from reviewer.diff.source import Source

_FIELD = re.compile(
    rb"(?:old mode (?P<old_mode>[0-7]{6})|new mode (?P<new_mode>[0-7]{6})"
    rb"|deleted file mode (?P<deleted>[0-7]{6})|new file mode (?P<added>[0-7]{6})"
    rb"|rename from (?P<renamed>.+)|copy from (?P<copied>.+)|(?:rename|copy) to (?P<target>.+)"
    rb"|similarity index (?P<similarity>\d{1,3})%|dissimilarity index \d{1,3}%"
    rb"|index (?P<old_blob>[0-9a-f]{4,64})\.\.(?P<new_blob>[0-9a-f]{4,64})(?: (?P<mode>[0-7]{6}))?)\n"
)
_NAMES = re.compile(rb"--- (.*)\n\+\+\+ (.*)\n")
_BINARY = re.compile(
    rb"Binary files .* differ\n"
    rb"|GIT binary patch\n(?:(?:literal|delta) \d{1,18}\n(?:[A-Za-z][!-~]{5,65}\n)*+\n){1,2}"
)
_STATED: tuple[Status, ...] = ("added", "deleted", "renamed", "copied")
# What begins like a line of a header, but was not read as one.
_DAMAGED = re.compile(
    rb"(?:old mode|new mode|deleted file mode|new file mode|rename|copy|similarity|dissimilarity|index"
    rb"|GIT binary patch|literal|delta|Binary files|---|\+\+\+|@@)[ \n]"
)


class Header(NamedTuple):
    """A file without its hunks. `end` is the offset after the header; `named` says that hunks must follow."""

    file: FileDiff
    end: int
    named: bool


def read_git_header(source: Source, start: int, pair: bytes) -> Header:
    """Reads on after a `diff --git` line that holds `pair` and ends at `start`.

    Raises `PatchError`, and `BadName` for names that contradict each other or leave the repository.
    """
    data, end = source.data, start
    fields: dict[str, bytes] = {}
    while field := _FIELD.match(data, end):
        fields.update((key, value) for key, value in field.groupdict().items() if value is not None)
        end = field.end()
    if ("old_mode" in fields) != ("new_mode" in fields):
        raise source.error(end, f"of {paths.cite(paths.show(pair))} only one mode is named")
    names = _NAMES.match(data, end)
    binary = None if names else _BINARY.match(data, end)
    if last := names or binary:
        end = last.end()
    if not names and _DAMAGED.match(data, end):
        raise source.error(
            end, f"this header line of {paths.cite(paths.show(pair))} is damaged or out of place"
        )

    sides = (paths.header_name(names[1]), paths.header_name(names[2])) if names else None
    mode = fields.get("mode", b"")
    file = replace(
        bare_file(*_resolve(fields, pair, sides), _status(fields, sides)),
        similarity=int(fields["similarity"]) if "similarity" in fields else None,
        old_mode=fields.get("old_mode", fields.get("deleted", mode)).decode(),
        new_mode=fields.get("new_mode", fields.get("added", mode)).decode(),
        old_blob=_blob(fields, "old_blob"),
        new_blob=_blob(fields, "new_blob"),
        binary=binary is not None,
    )
    return Header(file, end, names is not None)


def bare_file(old: bytes, new: bytes, status: Status) -> FileDiff:
    """A file of which no more is known than names and status. Raises `BadName`."""
    if status == "added":
        old = new
    elif status == "deleted":
        new = old
    elif status == "modified" and old != new:
        status = "renamed"
    for name in (old, new):
        paths.check(name)
    return FileDiff(
        path=paths.show(new),
        old_path=paths.show(old),
        raw_path=new,
        raw_old_path=old,
        status=status,
        similarity=None,
        old_mode="",
        new_mode="",
        old_blob="",
        new_blob="",
        binary=False,
        hunks=(),
    )


def status_by_names(old: bytes, new: bytes) -> Status:
    if old == paths.DEV_NULL:
        return "added"
    return "deleted" if new == paths.DEV_NULL else "modified"


def _status(fields: dict[str, bytes], sides: tuple[bytes, bytes] | None) -> Status:
    for status in _STATED:
        if status in fields:
            return status
    return status_by_names(*sides) if sides else "modified"


def _resolve(fields: dict[str, bytes], pair: bytes, sides: tuple[bytes, bytes] | None) -> tuple[bytes, bytes]:
    """Old and new name, from whichever line states them beyond doubt; the others must agree."""
    origin = fields.get("renamed", fields.get("copied"))
    target = fields.get("target")
    if (origin is None) != (target is None):
        raise paths.BadName(
            f"{paths.cite(paths.show(pair))} is a rename or copy of which one name is missing"
        )
    if origin is not None and target is not None:
        old, new = paths.unquote(origin), paths.unquote(target)
    elif stated := paths.split_pair(pair) or sides:
        old, new = paths.strip_prefixes(*stated)
    else:
        raise paths.BadName(f"the two file names in {paths.cite(paths.show(pair))} cannot be told apart")
    for side, name in zip(sides or (), (old, new), strict=False):
        if side not in (paths.DEV_NULL, name) and side.partition(b"/")[2] != name:
            called = paths.cite(paths.show(name)), paths.cite(paths.show(side))
            raise paths.BadName(f"the file is called both {called[0]} and {called[1]}")
    return old, new


def _blob(fields: dict[str, bytes], key: str) -> str:
    """An object name; git writes zeros on the side where the file is not."""
    name = fields.get(key, b"").decode()
    return name if name.strip("0") else ""
