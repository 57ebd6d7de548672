"""File names as git writes them in a patch: quoted like C strings, with a prefix for each side."""

from __future__ import annotations

import re

DEV_NULL = b"/dev/null"

_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*+)"')
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2}|.)")
_ESCAPED = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}
_ESCAPED |= {b'"': b'"', b"\\": b"\\"}


class BadName(ValueError):
    """A file name that is malformed, or that git would refuse."""


def show(raw: bytes) -> str:
    """A name as valid Unicode: other bytes become `\\xNN`."""
    return raw.decode(errors="backslashreplace")


def cite(name: str) -> str:
    """A name for an error message: short, and without control characters that a terminal would obey."""
    return repr(name if len(name) <= 200 else f"{name[:200]}...")


def unquote(name: bytes) -> bytes:
    """The exact bytes of a name that may be quoted. Raises `BadName`."""
    if not name.startswith(b'"'):
        return name
    quoted = _QUOTED.fullmatch(name)
    if quoted is None:
        raise BadName("a quoted file name is not closed")
    return _ESCAPE.sub(_unescape, quoted[1])


def _unescape(match: re.Match[bytes]) -> bytes:
    escaped = match[1]
    if len(escaped) == 3:
        return bytes((int(escaped, 8),))
    if escaped not in _ESCAPED:
        raise BadName(f"a file name holds the unknown escape {cite(show(match[0]))}")
    return _ESCAPED[escaped]


def split_pair(pair: bytes) -> tuple[bytes, bytes] | None:
    """The two names of a `diff --git` line, prefixes kept, or None where the line alone does not tell.

    Unquoted names may hold blanks, even ` b/`, so only two names that are equal but for prefixes of the same
    length are certain. Where they differ, git names both elsewhere. Raises `BadName`.
    """
    if pair.startswith(b'"'):
        first = _QUOTED.match(pair)
        if first is None:
            raise BadName("a quoted file name is not closed")
        old, gap, new = first[0], pair[first.end() : first.end() + 1], pair[first.end() + 1 :]
        return (unquote(old), unquote(new)) if gap == b" " and new else None
    if pair.endswith(b'"'):
        old, _, new = pair.partition(b' "')  # a name that holds a quotation mark is itself quoted
        return old, unquote(b'"' + new)
    middle = len(pair) // 2
    old, gap, new = pair[:middle], pair[middle : middle + 1], pair[middle + 1 :]
    if gap != b" ":
        return None
    stripped = strip_prefixes(old, new)
    return (old, new) if stripped[0] == stripped[1] else None


def strip_prefixes(old: bytes, new: bytes) -> tuple[bytes, bytes]:
    """Two names of one file without `a/` and `b/` or whatever their first folders are.

    Equal names carry no prefix (`--no-prefix`). `/dev/null` stays, and tells nothing about the other's prefix,
    which then goes only if it is git's own.
    """
    if old == new:
        return old, new
    if DEV_NULL in (old, new):
        return old.removeprefix(b"a/"), new.removeprefix(b"b/")
    if b"/" in old and b"/" in new:
        return old.partition(b"/")[2], new.partition(b"/")[2]
    return old, new


def header_name(field: bytes) -> bytes:
    """The name in a `---` or `+++` line, without the tab and time that may follow. Raises `BadName`."""
    quoted = _QUOTED.match(field)
    return unquote(quoted[0]) if quoted else unquote(field.partition(b"\t")[0])


def split_binary(pair: bytes) -> tuple[bytes, bytes]:
    """The two names of a `Binary files A and B differ` line, prefixes kept. Raises `BadName`."""
    middle = (len(pair) - len(b" and ")) // 2
    old, gap, new = pair[:middle], pair[middle : middle + 5], pair[middle + 5 :]
    if gap != b" and ":
        old, _, new = pair.partition(b" and ")
    return unquote(old), unquote(new)


def check(raw: bytes) -> None:
    """Refuses names that git would refuse, so that no reader of the diff can be led out of the repository.

    Raises `BadName`.
    """
    if b"\0" in raw:
        raise BadName(f"the file name {cite(show(raw))} holds a NUL")
    if any(part in (b"", b".", b"..") for part in raw.split(b"/")):
        raise BadName(f"the file name {cite(show(raw))} does not stay within the repository")
