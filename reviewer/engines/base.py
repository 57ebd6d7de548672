"""The one protocol by which a review asks a model, whoever answers it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol


@dataclass(frozen=True, slots=True)
class Key:
    """Names a completion within a round, so that a recording can be found again.

    `step` is the round's step (discover, confirm, ...); `subject` is a digest of what is asked about (a
    shard's content, a cluster's); `turn` counts the answers of one conversation with tools, `attempt` the
    retries after an answer that did not parse.
    """

    step: str
    rep: int
    subject: str
    turn: int = 0
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model asks for a tool. `arguments` is the JSON text as it came, possibly malformed."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool on offer; `parameters` is its JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One question. `schema`, where given, is the JSON schema that the answer's text must satisfy.

    `prompt_version` is a digest of the prompt's template: a recording made with another is reported.
    """

    key: Key
    messages: tuple[Message, ...]
    schema: dict[str, Any] | None = None
    tools: tuple[Tool, ...] = ()
    max_tokens: int = 8192
    prompt_version: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer. `seconds` is the time until it was whole; `cost_usd` is 0 where no price is known.

    `finish` is the endpoint's reason to stop: `length` means that the text is cut.
    """

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0
    model: str = ""
    seconds: float = 0.0
    finish: Literal["stop", "length", "tool_calls", "refusal"] = "stop"


class CompletionFailed(Exception):
    """This one completion was not had; the round loses one answer and says so.

    `reason` is one of: timeout, connection, rate_limited, server_error, refused, budget, replay_miss,
    bad_request. The message names what happened, without secrets.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Engine(Protocol):
    """Answers requests, many at a time. Raises `CompletionFailed` for one lost answer and
    `reviewer.errors.EngineError` where no answer can ever come."""

    async def complete(self, request: Request) -> Completion: ...

    def warnings(self) -> tuple[str, ...]:
        """What the reader of the report must know (a changed prompt in a replay, a spent budget)."""
        ...


@dataclass(slots=True)
class Usage:
    """What a round has spent so far."""

    completions: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0
    seconds: float = 0.0
    models: dict[str, int] = field(default_factory=dict)

    def add(self, completion: Completion) -> None:
        self.completions += 1
        self.tokens_in += completion.tokens_in
        self.tokens_out += completion.tokens_out
        self.cost_usd += completion.cost_usd
        self.seconds += completion.seconds
        if completion.model:
            self.models[completion.model] = self.models.get(completion.model, 0) + 1
