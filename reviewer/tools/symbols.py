"""Tells where a name is defined from where it is declared or used, one line of source at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from pathlib import PurePosixPath


class Role(IntEnum):
    """What a line does to a name; in the order in which a reader wants to see them."""

    DEFINITION = 0
    DECLARATION = 1
    USE = 2


_C_FAMILY = (
    ".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hh", ".hpp", ".hxx", ".inl", ".ipp", ".tpp", ".m", ".mm",
)  # fmt: skip
_PYTHON = (".py", ".pyi", ".pyx")

# Words that may stand before a call but never before the name of a function being defined.
_NOT_A_TYPE = re.compile(
    r"\b(return|else|case|throw|new|delete|goto|do|if|while|for|switch|and|or|not|co_return|co_await|co_yield)\b"
)

_QUALIFIER = re.compile(r"(?:\w+(?:<[^<>]*>)?\s*::\s*)+$")


def role_finder(name: str) -> Callable[[str, str], Role]:
    """For one identifier: a function from a path and a line that holds the name to the line's role."""
    word = re.escape(name)
    python = re.compile(rf"\s*(?:async\s+)?(?:def|class)\s+{word}\b|{word}\s*(?::[^=]+)?=(?!=)")
    macro = re.compile(rf"\s*#\s*define\s+{word}\b")
    kind = re.compile(
        rf".*\b(?:class|struct|union|enum|namespace|concept)\b[^;=(){{}}]*?(?:\([^()]*\)[^;=(){{}}]*?)*"
        rf"\b{word}\s*(?P<rest>$|//|/\*|\{{|:(?!:)|;|final\b|<)"
    )
    alias = re.compile(rf"\s*using\s+{word}\s*=|\s*typedef\b.*\b{word}\s*;|\s*\}}\s*{word}\s*;")
    function = re.compile(rf"(?P<before>[\w\s:<>,*&()\[\]]*?)\b{word}\s*(?:<[^<>]*>)?\s*\(")
    other = re.compile(
        rf".*\b(?:fn|func|function|def|class|struct|interface|trait|type|enum|module|const|let|var|val)\s+{word}\b"
    )

    def c_role(line: str) -> Role:
        if line.lstrip().startswith(("//", "/*", "*")):
            return Role.USE
        if macro.match(line) or alias.match(line):
            return Role.DEFINITION
        if found := kind.match(line):
            return Role.DECLARATION if found["rest"] == ";" else Role.DEFINITION
        found = function.match(line)
        if found is None or not _is_declarator(found["before"]):
            return Role.USE
        return Role.DECLARATION if line.rstrip().endswith(";") else Role.DEFINITION

    def role(path: str, line: str) -> Role:
        suffix = PurePosixPath(path).suffix.lower()
        if suffix in _C_FAMILY:
            return c_role(line)
        pattern = python if suffix in _PYTHON else other
        return Role.DEFINITION if pattern.match(line) else Role.USE

    return role


def _is_declarator(before: str) -> bool:
    """Whether the text before `name(` can be the return type of a function being declared.

    Nothing before it counts only at the start of the line, where some styles put the name on a line of its own.
    """
    type_part = _QUALIFIER.sub("", before)
    if not type_part:
        return True
    if not re.search(r"\w", type_part) or type_part.lstrip()[0] in "(*&:,<":
        return False
    if _NOT_A_TYPE.search(before) or "<<" in before or ">>" in before:
        return False
    return before.count("(") == before.count(")") and before.rstrip()[-1] not in ",("
