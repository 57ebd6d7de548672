"""Keeping what is posted within what a forge takes, by leaving whole things out and saying so."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

# GitHub's limit for comments and reviews. It is not documented whether characters beyond the basic plane count
# once or twice: `size` counts them twice, which holds either way.
COMMENT_LIMIT = 65_536
_FIRST_STEP = 32


def size(text: str) -> int:
    """Length in UTF-16 units."""
    return len(text) + sum(character > "\uffff" for character in text)


def fit(render: Callable[[int], str], count: int, limit: int) -> str:
    """`render(n)` for the largest n up to `count` whose text is at most `limit` long.

    `render(n)` writes the n most important things and says how many are missing; `render(0)` must fit. It is
    never asked for many more things than fit, as thousands may be to hand.
    """
    low, text, step = 0, render(0), _FIRST_STEP
    while low < count:
        attempt = render(min(low + step, count))
        if size(attempt) > limit:
            break
        low, text, step = min(low + step, count), attempt, step * 2
    else:
        return text
    high = min(low + step, count)
    while high - low > 1:
        middle = (low + high) // 2
        attempt = render(middle)
        if size(attempt) <= limit:
            low, text = middle, attempt
        else:
            high = middle
    return text


def shorten(render: Callable[[str], str], text: str, limit: int, note: str) -> str:
    """`render(text)`, of which as much is kept as fits into `limit`, cut where a paragraph, else a line, else a
    word ends, with `note` as a paragraph after it."""
    # Rendering a text far too long would take time for nothing.
    start = text if len(text) <= 2 * limit else _cut(text[: 2 * limit])
    tail = f"\n\n*({note})*"
    safe = render(start) + ("" if start is text else tail)
    kept = len(start)
    while size(safe) > limit and kept:
        # What is escaped grows; the second look sees by how much.
        kept = min(kept - 1, int(kept * max(0, limit - size(tail)) / size(safe)))
        start = _cut(start[:kept])
        kept = len(start)
        safe = render(start) + tail
    return safe


def clip(text: str, limit: int) -> str:
    """The first `limit` characters of one line, with … for the rest."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def _cut(text: str) -> str:
    for border in (r"\n[ \t]*\n", r"\n", r"\s"):
        last = max((match.start() for match in re.finditer(border, text)), default=0)
        if last > len(text) // 2:
            return text[:last]
    return text


class Section(NamedTuple):
    """Things to write about, the most important first; `view` makes one ready for a template."""

    items: Sequence[Any]
    view: Callable[[Any], Any]


class Kept(NamedTuple):
    """What there is room for in one section, ready for a template, and how many are not shown."""

    items: Sequence[Any]
    left_out: int


def compose(sections: Mapping[str, Section], render: Callable[[Mapping[str, Kept]], str], limit: int) -> str:
    """The document with as many whole items as fit into `limit`. The most important section comes first."""
    ready: dict[str, list[Any]] = {name: [] for name in sections}

    def write(count: int) -> str:
        kept = {}
        for name, (items, view) in sections.items():
            shown = min(count, len(items))
            ready[name] += map(view, items[len(ready[name]) : shown])
            kept[name] = Kept(ready[name][:shown], len(items) - shown)
            count -= shown
        return render(kept)

    return fit(write, sum(len(section.items) for section in sections.values()), limit)
