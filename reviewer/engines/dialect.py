"""What a chat completions endpoint is sent, and what is left out once it refuses a parameter.

Endpoints that call themselves OpenAI-compatible differ in what they accept, and answer 400 to the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from reviewer.engines.base import Message, Request
from reviewer.engines.schema import strict_schema

_FORMAT = re.compile(r"response.?format|json.?schema|json.?object|\bschema\b", re.IGNORECASE)
_TOOLS = re.compile(r"\btools?\b|tool_choice", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Dialect:
    """What an endpoint is known to accept; at first everything, with the older name of the token limit, which
    more endpoints know."""

    answer_format: Literal["json_schema", "json_object", "text"] = "json_schema"
    token_limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    temperature: bool = True
    seed: bool = True
    tools: bool = True

    def body(
        self, request: Request, model: str, temperature: float | None, seed: int | None
    ) -> dict[str, Any]:
        """The JSON body of a chat completions request."""
        body: dict[str, Any] = {
            "model": model,
            "messages": [_message(message) for message in request.messages],
            self.token_limit: request.max_tokens,
        }
        if self.temperature and temperature is not None:
            body["temperature"] = temperature
        if self.seed and seed is not None:
            body["seed"] = seed
        if self.tools and request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.parameters,
                    },
                }
                for tool in request.tools
            ]
        if request.schema is not None:
            self._ask_for_json(body, request.schema, request.key.step)
        return body

    def without(self, complaint: str, body: dict[str, Any]) -> Dialect | None:
        """The dialect to try after `body` was refused with `complaint`; None where nothing is left to give up.

        A complaint that names no parameter is put down to the answer's format, the parameter that most
        endpoints lack.
        """
        for simpler, named in self._simpler(complaint, body):
            if named:
                return simpler
        return self._looser() if "response_format" in body else None

    def _simpler(self, complaint: str, body: dict[str, Any]) -> Iterator[tuple[Dialect, bool]]:
        if "response_format" in body:
            yield self._looser(), bool(_FORMAT.search(complaint))
        if "max_tokens" in body:
            yield replace(self, token_limit="max_completion_tokens"), "max_tokens" in complaint
        if "temperature" in body:
            yield replace(self, temperature=False), "temperature" in complaint
        if "seed" in body:
            yield replace(self, seed=False), "seed" in complaint
        if "tools" in body:
            yield replace(self, tools=False), bool(_TOOLS.search(complaint))

    def _looser(self) -> Dialect:
        return replace(self, answer_format="json_object" if self.answer_format == "json_schema" else "text")

    def _ask_for_json(self, body: dict[str, Any], schema: dict[str, Any], name: str) -> None:
        if self.answer_format == "json_schema":
            strict = strict_schema(schema)
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {
                    "name": re.sub(r"[^A-Za-z0-9_-]", "_", name),
                    "schema": schema if strict is None else strict,
                    "strict": strict is not None,
                },
            }
            return
        if self.answer_format == "json_object":
            body["response_format"] = {"type": "json_object"}
        wish = f"Answer with one JSON object that satisfies this JSON schema: {json.dumps(schema)}"
        messages = body["messages"]
        # Not a message of its own: many chat templates allow a system message only once, in front.
        if messages and messages[0]["role"] == "system":
            messages[0]["content"] += f"\n\n{wish}"
        else:
            messages.insert(0, {"role": "system", "content": wish})


def _message(message: Message) -> dict[str, Any]:
    sent: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        sent["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _well_formed(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.role == "tool":
        sent["tool_call_id"] = message.tool_call_id
    return sent


def _well_formed(arguments: str) -> str:
    """Arguments that are no JSON object are sent back empty: endpoints that parse them would refuse the whole
    conversation, and the tool's answer says what was wrong with them."""
    try:
        return arguments if isinstance(json.loads(arguments), dict) else "{}"
    except ValueError:
        return "{}"
