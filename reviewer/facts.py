"""What a machine can check of a finding: that its place and its code exist, and that its names do."""

from __future__ import annotations

import builtins
import keyword
import re
import sys
from dataclasses import dataclass

from reviewer.checkout.base import Checkout
from reviewer.diff import Diff, FileDiff
from reviewer.model import Finding, Side
from reviewer.place import read_lines, relocate
from reviewer.text import Text

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_IN_BACKTICKS = re.compile(r"`([^`\n]+)`")
_NAME = re.compile(r"[A-Za-z_][\w.:]*(?:\(\))?")
_KNOWN_EVERYWHERE = frozenset(dir(builtins)) | frozenset(keyword.kwlist) | sys.stdlib_module_names


@dataclass(frozen=True, slots=True)
class Facts:
    """The finding at the lines where its code really stands; `refuted` says in words what is false, or ""."""

    finding: Finding
    refuted: str = ""


def check_facts(finding: Finding, checkout: Checkout, text: Text) -> Facts:
    """Looks the finding's file, lines, quoted code and names up on the side that it names."""
    side = text("side_base" if finding.side is Side.LEFT else "side_head")
    lines = read_lines(checkout, finding.path, finding.side)
    if lines is None:
        return Facts(finding, text("no_such_file", path=finding.path, side=side))
    if finding.quoted_code.strip():
        moved = relocate(finding, lines)
        if moved is None:
            return Facts(finding, text("no_such_code", path=finding.path, side=side))
        finding = moved
    elif finding.line_end > len(lines):
        return Facts(
            finding,
            text("no_such_line", path=finding.path, line=finding.line_end, lines=len(lines), side=side),
        )
    for symbol in named_symbols(finding):
        if not _exists(symbol, checkout):
            return Facts(finding, text("no_such_name", name=symbol))
    if checkout.diff.file(finding.path) is None and not _caused_by(finding, checkout.diff):
        return Facts(finding, text("not_of_this_change", path=finding.path))
    return Facts(finding)


def named_symbols(finding: Finding) -> tuple[str, ...]:
    """The names that the claim rests on: those it declares, and those its title sets in backticks.

    Of a dotted name the last part counts: the parts before it may be local variables or modules.
    """
    declared = [symbol for symbol in finding.symbols if _NAME.fullmatch(symbol.strip())]
    in_title = [name for name in _IN_BACKTICKS.findall(finding.title) if _NAME.fullmatch(name.strip())]
    names = (re.split(r"[.:]+", name.strip().removesuffix("()"))[-1] for name in (*declared, *in_title))
    return tuple(dict.fromkeys(name for name in names if name and name not in _KNOWN_EVERYWHERE))


def _exists(symbol: str, checkout: Checkout) -> bool:
    return any(
        checkout.grep(symbol, side, fixed=True, word=True, limit=1) for side in (Side.RIGHT, Side.LEFT)
    )


def _caused_by(finding: Finding, diff: Diff) -> bool:
    """Whether a finding outside the change names something that a changed line names too."""
    names = {name for text in (*finding.symbols, finding.quoted_code) for name in _IDENTIFIER.findall(text)}
    names -= _KNOWN_EVERYWHERE
    return bool(names) and any(names & _changed_names(file) for file in diff.files)


def _changed_names(file: FileDiff) -> set[str]:
    return {
        name
        for hunk in file.hunks
        for line in hunk.lines()
        if line.kind != " "
        for name in _IDENTIFIER.findall(line.text.decode("utf-8", "replace"))
    }
