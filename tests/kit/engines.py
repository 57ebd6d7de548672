"""An engine for tests that answers from a function, and notes what it was asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from reviewer.engines.base import Completion, CompletionFailed, Key, Request

Reply = str | Mapping[str, Any] | Completion | CompletionFailed


class ScriptedEngine:
    """`script` gets each request and gives its answer: text, an object to send as JSON, a whole completion, or a
    failure to raise."""

    def __init__(self, script: Callable[[Request], Reply], warnings: tuple[str, ...] = ()) -> None:
        self._script = script
        self._warnings = warnings
        self.requests: list[Request] = []

    async def complete(self, request: Request) -> Completion:
        self.requests.append(request)
        reply = self._script(request)
        if isinstance(reply, CompletionFailed):
            raise reply
        if isinstance(reply, Completion):
            return reply
        text = reply if isinstance(reply, str) else json.dumps(reply)
        return Completion(text=text, tokens_in=100, tokens_out=10, model="scripted", seconds=0.5)

    def warnings(self) -> tuple[str, ...]:
        return self._warnings

    def asked(self, step: str) -> list[Key]:
        """The keys of all requests of one step."""
        return [request.key for request in self.requests if request.key.step == step]
