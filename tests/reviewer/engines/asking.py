"""Asks the engine about a stand-in endpoint, with pauses short enough for tests."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from reviewer.answers import DiscoverAnswer
from reviewer.engines.base import Completion, CompletionFailed, Key, Message, Request, Tool
from reviewer.engines.budget import Budgeted
from reviewer.engines.openai import OpenAIEngine, OpenAISettings
from reviewer.policy import ModelLimits

KEY = "sk-test-0123456789abcdefghij"
SCHEMA = DiscoverAnswer.model_json_schema()
TOOL = Tool("read_file", "reads a file", {"type": "object", "properties": {"path": {"type": "string"}}})
REQUEST = Request(Key("discover", 0, "s"), (Message("system", "be terse"), Message("user", "review this")))


def settings_for(server: Any, **changes: Any) -> OpenAISettings:
    quick = OpenAISettings(
        server.url, KEY, ("m",), request_timeout=5, retries=2, backoff=0.001, backoff_max=0.01
    )
    return replace(quick, **changes)


async def ask_all(
    settings: OpenAISettings, *requests: Request, limits: ModelLimits | None = None
) -> list[Any]:
    """What each request came to, failures included, from one engine asked all at once."""
    async with OpenAIEngine(settings) as engine:
        asked = Budgeted(engine, limits, concurrency=len(requests)) if limits else engine
        return await asyncio.gather(
            *(asked.complete(request) for request in requests), return_exceptions=True
        )


def ask(server: Any, request: Request = REQUEST, **changes: Any) -> Completion:
    limits = changes.pop("limits", None)
    (result,) = asyncio.run(ask_all(settings_for(server, **changes), request, limits=limits))
    if isinstance(result, BaseException):
        raise result
    return result


def failure(server: Any, request: Request = REQUEST, **changes: Any) -> CompletionFailed:
    with pytest.raises(CompletionFailed) as caught:
        ask(server, request, **changes)
    return caught.value
