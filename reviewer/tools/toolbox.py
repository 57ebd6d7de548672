"""Answers a model's tool calls within a budget, and keeps a record of every one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import json_repair
from pydantic import ValidationError

from reviewer.checkout.base import Checkout
from reviewer.engines.base import Tool, ToolCall
from reviewer.errors import ReviewError
from reviewer.policy import ToolLimits
from reviewer.tools.catalogue import OFFERS, ToolError
from reviewer.tools.fence import fence

_RESULT_LIMIT = 32_000


@dataclass(frozen=True, slots=True)
class ToolRecord:
    """One call as it happened. `arguments` is the model's JSON text, `bytes` the size of the answer."""

    name: str
    arguments: str
    ok: bool
    bytes: int
    seconds: float


class Toolbox:
    """The tools of one conversation, which makes one call at a time."""

    def __init__(
        self, checkout: Checkout, budget: ToolLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._checkout = checkout
        self._budget = budget
        self._clock = clock
        self._records: list[ToolRecord] = []

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(offer.tool for offer in OFFERS.values())

    @property
    def records(self) -> tuple[ToolRecord, ...]:
        return tuple(self._records)

    @property
    def spent(self) -> bool:
        """Whether any part of the budget is used up."""
        return (
            len(self._records) >= self._budget.steps
            or self._bytes_left <= 0
            or sum(record.seconds for record in self._records) >= self._budget.seconds
        )

    @property
    def _bytes_left(self) -> int:
        return self._budget.bytes - sum(record.bytes for record in self._records)

    def call(self, call: ToolCall) -> str:
        """The answer for the model. What goes wrong is an answer too, never an exception."""
        started = self._clock()
        try:
            if self.spent:
                raise ToolError("the tool budget is spent; give your final answer")
            answer = fence(call.name, self._cut(self._run(call)))
            ok = True
        except (ToolError, ReviewError, ValueError) as error:
            answer, ok = f"error: {_explain(error)}", False
        size = len(answer.encode(errors="replace"))
        self._records.append(ToolRecord(call.name, call.arguments, ok, size, self._clock() - started))
        return answer

    def _run(self, call: ToolCall) -> str:
        offer = OFFERS.get(call.name)
        if offer is None:
            raise ToolError(f"there is no tool {call.name!r}; there are {', '.join(OFFERS)}")
        return offer.run(self._checkout, _read_arguments(call.arguments))

    def _cut(self, text: str) -> str:
        """At most the limit of one result and of what the budget has left, whole lines where possible."""
        limit = min(_RESULT_LIMIT, self._bytes_left)
        raw = text.encode()
        if len(raw) <= limit:
            return text
        kept = raw[:limit].decode(errors="ignore")
        kept = kept[: kept.rfind("\n")] if "\n" in kept else kept
        return f"{kept}\n(cut: {len(raw)} bytes in all, {limit} allowed; ask for less)"


def _read_arguments(text: str) -> dict[str, Any]:
    try:
        read = json.loads(text or "{}")
    except RecursionError:
        raise ToolError("the arguments are nested too deeply") from None
    except ValueError:
        read = json_repair.loads(text)
    if not isinstance(read, dict):
        raise ToolError("the arguments are not a JSON object")
    return read


def _explain(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}" for fault in error.errors()
        )
    return str(error)
