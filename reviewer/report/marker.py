"""Hidden comments by which the product finds its own comments again.

Anyone can paste one: a marker counts only in a comment whose author is the product itself.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from reviewer.report.escape import PRODUCT

Kind = Literal["round", "review", "finding", "reply", "ci"]

_MARKER = re.compile(rf"<!-- {PRODUCT}:(?P<kind>[a-z]+) (?P<facts>\{{[^\n]*\}}) -->$", re.MULTILINE)


def marker(kind: Kind, **facts: str | int) -> str:
    """One line. Nothing in `facts` can end the comment: of two hyphens in a row, one is a JSON escape."""
    text = json.dumps(facts).replace("--", "-\\u002d")
    return f"<!-- {PRODUCT}:{kind} {text} -->"


def read_marker(body: str) -> tuple[str, dict[str, Any]] | None:
    """Kind and facts of the marker that a comment begins with, or None."""
    match = _MARKER.match(body.replace("\r\n", "\n"))
    if match is None:
        return None
    try:
        facts: dict[str, Any] = json.loads(match["facts"])
    except ValueError:
        return None
    return match["kind"], facts
