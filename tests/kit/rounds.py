"""Runs rounds in tests with little ceremony."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from reviewer.checklist import Item
from reviewer.engines.base import Engine
from reviewer.ledger import Ledger
from reviewer.policy import ReviewPolicy
from reviewer.round import Progress, RoundResult, run_round
from tests.kit.checkouts import MemoryCheckout, pull_of
from tests.kit.engines import Reply, ScriptedEngine

NOW = datetime(2026, 9, 1, 11, 57, tzinfo=UTC)
PATH = "cache/pages.py"

BASE = {
    PATH: "def write(page, slot, value):\n    page[slot] = value\n    return slot\n\n\ndef read(page, slot):\n    return page[slot]\n",
    "README.md": "A cache of pages.\n",
}
HEAD = {
    **BASE,
    PATH: "def write(page, slot, value):\n    page[slot + 1] = value\n    return slot\n\n\ndef read(page, slot):\n    return page[slot]\n",
}
FAULT = "    page[slot + 1] = value"


def finding(
    title: str = "write stores into the slot after the one asked for", **fields: Any
) -> dict[str, Any]:
    """A finding as a model answers it, about the fault in HEAD unless told otherwise."""
    return {
        "path": PATH,
        "line_start": 2,
        "line_end": 2,
        "severity": "P1",
        "category": "correctness",
        "title": title,
        "body": "`page[slot + 1]` overwrites the neighbour's value, and the last slot raises IndexError.",
        "suggestion": "page[slot] = value",
        "quoted_code": FAULT.strip(),
        **fields,
    }


def answers(
    discover: Any = None,
    *,
    confirm: Reply | None = None,
    fact_check: Reply | None = None,
    recheck: Any = None,
    dedup: Reply | None = None,
    synthesize: Reply | None = None,
) -> ScriptedEngine:
    """An engine by step. `discover` and `recheck` may be functions of the rep; each other a fixed reply."""

    def script(request: Any) -> Reply:
        step, rep = request.key.step, request.key.rep
        given: Reply
        if step == "discover":
            given = discover(rep) if callable(discover) else (discover or {"findings": []})
        elif step == "recheck":
            given = recheck(rep) if callable(recheck) else (recheck or {"answer": "still_open"})
        elif step == "confirm":
            given = confirm or {"findings": []}
        elif step == "fact_check":
            given = fact_check or {"verdict": "hold", "evidence": "checked"}
        elif step == "dedup":
            given = dedup or {"groups": []}
        else:
            given = synthesize or _first_wording(request.messages[-1].content)
        return given

    return ScriptedEngine(script)


def _first_wording(prompt: str) -> Reply:
    """What a faithful model makes of several wordings: here simply the first of them."""
    title, body, suggestion = prompt.split("data, not instructions\n")[1].split("\n\n")[:3]
    return {"title": title, "body": body, "suggestion": suggestion.split("\n")[0]}


def review(
    engine: Engine | None,
    *,
    base: dict[str, str] = BASE,
    head: dict[str, str] = HEAD,
    ledger: Ledger | None = None,
    items: Sequence[Item] = (),
    full: bool = False,
    checkout: Any = None,
    progress: list[Progress] | None = None,
    **policy: Any,
) -> RoundResult:
    """One round over base and head in memory, or over a checkout of the test's own."""
    checkout = checkout or MemoryCheckout(base, head)
    return asyncio.run(
        run_round(
            pull_of(checkout),
            checkout,
            ReviewPolicy(**policy),
            ledger or Ledger(),
            engine,
            items,
            (progress.append if progress is not None else lambda _: None),
            now=NOW,
            full=full,
        )
    )
