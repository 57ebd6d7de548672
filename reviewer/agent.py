"""Leads one conversation with a model that may use tools before it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from reviewer.engines.base import Completion, Engine, Message, Request
from reviewer.tools import Toolbox

_LAST = Message("user", "The tool budget is spent. Give your final answer now, from what you have seen.")


async def converse(
    engine: Engine,
    request: Request,
    toolbox: Toolbox | None = None,
    on_completion: Callable[[Completion], None] = lambda _: None,
) -> Completion:
    """Asks until the model answers in words, and returns that answer.

    Each answer that calls tools is followed by their results, in the order of the calls, and by the next turn
    of the same key. Once the toolbox's budget is spent the model is asked a last time, without tools.
    `on_completion` hears every completion, the last one included, as soon as it is there: what was spent is
    known even if a later turn fails. `toolbox.records` tells what the tools did.
    """
    if toolbox is not None:
        request = replace(request, tools=toolbox.tools)
    while True:
        completion = await engine.complete(request)
        on_completion(completion)
        if toolbox is None or not request.tools or not completion.tool_calls:
            return completion
        said = Message("assistant", completion.text, tool_calls=completion.tool_calls)
        heard = [
            Message("tool", await asyncio.to_thread(toolbox.call, call), tool_call_id=call.id)
            for call in completion.tool_calls
        ]
        request = replace(
            request,
            key=replace(request.key, turn=request.key.turn + 1),
            messages=(*request.messages, said, *heard, *([_LAST] if toolbox.spent else [])),
            tools=() if toolbox.spent else request.tools,
        )
