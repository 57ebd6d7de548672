"""Checks on C++ that need more than a pattern over the syntax tree."""

from __future__ import annotations

import re
from collections.abc import Iterator

from reviewer.detectors.source import Source, Span

_NEW = re.compile(r"\b(?P<name>\w+)\s*=\s*new\s+[\w:]+(?:\s*<[^;\[\]]*>)?\s*(?P<array>\[)?")
_DELETE = re.compile(r"\bdelete\s+(?:this\s*->\s*)?(?P<name>\w+)\s*;")
_CLASS = re.compile(r"\b(?:class|struct)\s+(?:[A-Z][A-Z0-9_]*\s+)?(?P<name>\w+)\s*\{")
_SHELL = re.compile(
    r"(?<![\w.>:])(?:std::|::)?(?:system|popen)\s*\((?!\s*(?:\"[^\"\n]*\"\s*[,)]|const\b|nullptr|NULL|\)))"
)
_GUARD = re.compile(r"^\s*#\s*(?:pragma\s+once\b|if\s+!\s*defined\b|ifndef\b)", re.MULTILINE)


def array_delete_mismatch(source: Source) -> Iterator[Span]:
    """`delete p` where every `p = new ...` of the file makes an array."""
    arrays: dict[str, bool] = {}
    for match in _NEW.finditer(source.code):
        arrays[match["name"]] = arrays.get(match["name"], True) and bool(match["array"])
    for match in _DELETE.finditer(source.code):
        if arrays.get(match["name"]):
            line = source.line_at(match.start())
            yield line, line


def virtual_destructor(source: Source) -> Iterator[Span]:
    """A class without bases that declares virtual functions and no destructor."""
    for match in _CLASS.finditer(source.code):
        body = _own_members(source.code, match.end())
        if re.search(r"\bvirtual\b", body) and f"~{match['name']}" not in body.replace("~ ", "~"):
            line = source.line_at(match.start())
            yield line, line


def _own_members(code: str, start: int) -> str:
    """The text of the braces that open before `start`, without what stands in braces inside."""
    depth, kept = 1, []
    for character in code[start:]:
        depth += (character == "{") - (character == "}")
        if depth == 0:
            break
        if depth == 1:
            kept.append(character)
    return "".join(kept)


def native_shell_call(source: Source) -> Iterator[Span]:
    """system and popen with anything but a literal."""
    for match in _SHELL.finditer(source.code):
        line = source.line_at(match.start())
        yield line, line


def header_guard(source: Source) -> Iterator[Span]:
    if source.code.strip() and not _GUARD.search(source.code):
        yield 1, 1
