"""Finding a place in a file again: by its quoted code first, by its line numbers otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, Self, TypeVar

from reviewer.checkout.base import Checkout
from reviewer.model import Side

_AROUND = 40
_WHOLE_FILE_LINES = 120


class Placed(Protocol):
    """What this module reads of a finding."""

    @property
    def path(self) -> str: ...
    @property
    def line_start(self) -> int: ...
    @property
    def line_end(self) -> int: ...
    @property
    def side(self) -> Side: ...
    @property
    def quoted_code(self) -> str: ...
    def model_copy(self, *, update: dict[str, Any]) -> Self: ...


PlacedT = TypeVar("PlacedT", bound=Placed)


def read_lines(checkout: Checkout, path: str, side: Side) -> list[str] | None:
    """The file's lines, split on newline alone, or None where that side has no such file."""
    content = checkout.read(path, side)
    if content is None:
        return None
    lines = content.decode("utf-8", "replace").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def locate(quoted: str, near: int, lines: list[str]) -> int | None:
    """The 1-based line at which the quoted lines stand, the occurrence nearest to `near`; None if nowhere.

    White space at the ends of lines does not count: models re-indent what they quote.
    """
    wanted = _normalised(quoted.split("\n"))
    if not wanted:
        return None
    have = [line.strip() for line in lines]
    return min(_occurrences(wanted, have), key=lambda line: (abs(line - near), line), default=None)


def relocate(finding: PlacedT, lines: list[str]) -> PlacedT | None:
    """The finding at the lines where its quoted code stands, or None where the code is not there."""
    start = locate(finding.quoted_code, finding.line_start, lines)
    if start is None:
        return None
    length = max(finding.line_end - finding.line_start, len(_normalised(finding.quoted_code.split("\n"))) - 1)
    end = min(start + length, len(lines))
    return finding.model_copy(update={"line_start": start, "line_end": end})


def excerpt(checkout: Checkout, path: str, side: Side, line: int) -> str:
    """The numbered lines around a place, or a word on why there are none."""
    lines = read_lines(checkout, path, side)
    if lines is None:
        return f"({path} does not exist on this side)"
    first, last = 1, len(lines)
    if len(lines) > _WHOLE_FILE_LINES:
        first, last = max(1, line - _AROUND), min(len(lines), max(line, 1) + _AROUND)
    return "\n".join(f"{number:>5} {lines[number - 1]}" for number in range(first, last + 1))


def _normalised(lines: list[str]) -> list[str]:
    return [line.strip() for line in lines if line.strip()]


def _occurrences(wanted: list[str], have: list[str]) -> Iterator[int]:
    """Where the wanted lines follow each other, blank lines between them aside."""
    for start, text in enumerate(have):
        if text != wanted[0]:
            continue
        found, at = 1, start + 1
        while found < len(wanted) and at < len(have):
            if have[at] == wanted[found]:
                found += 1
            elif have[at]:
                break
            at += 1
        if found == len(wanted):
            yield start + 1
