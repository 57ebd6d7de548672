from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from reviewer.model import Finding, Severity


@pytest.fixture
def finding() -> Callable[..., Finding]:
    """A finding at shop/orders.py:41 by rep 0; `line` sets both ends, everything else by keyword."""

    def make(title: str, body: str = "", line: int = 41, **changes: Any) -> Finding:
        fields: dict[str, Any] = {
            "path": "shop/orders.py",
            "line_start": line,
            "line_end": line,
            "severity": Severity.P1,
            "rep": 0,
        }
        return Finding(title=title, body=body, **(fields | changes))

    return make
