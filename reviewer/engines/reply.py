"""Reading an endpoint's reply. It may be anything: a proxy's login page, an error sent as success, half a body."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from reviewer.engines.base import Completion, CompletionFailed, Request, ToolCall
from reviewer.tokens import estimate

Finish = Literal["stop", "length", "tool_calls", "refusal"]

_FINISH: dict[str | None, Finish] = {"length": "length", "content_filter": "refusal"}


class _Function(BaseModel):
    name: str
    arguments: str = ""


class _Call(BaseModel):
    id: str | None = None
    function: _Function


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Usage(BaseModel):
    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)


class _Reply(BaseModel):
    choices: Annotated[list[_Choice], Field(min_length=1)]
    usage: _Usage | None = None


def read_reply(
    body: bytes, request: Request, model: str, price: tuple[float, float], seconds: float
) -> Completion:
    """The completion in the body of a successful reply. `price` is USD for a million tokens in, and out.

    Tokens that the endpoint does not count are estimated, so that budgets hold. Raises `CompletionFailed`
    (server_error) for anything that is no chat completion; the message quotes it whole, for `one_line`.
    """
    reply = _parse(body, model)
    choice = reply.choices[0]
    message = choice.message
    calls = tuple(
        ToolCall(call.id or f"call_{index}", _clean(call.function.name), _clean(call.function.arguments))
        for index, call in enumerate(message.tool_calls or ())
    )
    finish = _FINISH.get(choice.finish_reason, "tool_calls" if calls else "stop")
    if message.refusal:
        finish = "refusal"
    usage = reply.usage or _Usage(
        prompt_tokens=sum(estimate(sent.content.encode()) for sent in request.messages),
        completion_tokens=estimate(body),
    )
    return Completion(
        text=_clean(message.refusal or message.content or ""),
        tool_calls=calls,
        tokens_in=usage.prompt_tokens,
        tokens_out=usage.completion_tokens,
        cost_usd=(usage.prompt_tokens * price[0] + usage.completion_tokens * price[1]) / 1e6,
        model=model,
        seconds=seconds,
        finish=finish,
    )


def one_line(text: str) -> str:
    """What somebody else wrote, fit for a message: 200 printable characters at most."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= 200 else f"{line[:199]}…"


def _parse(body: bytes, model: str) -> _Reply:
    try:
        data: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        text = body.decode(errors="replace")
        raise CompletionFailed("server_error", f"{model} answered no JSON but: {text}") from error
    try:
        return _Reply.model_validate(data)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"])) or "reply"
        said = f": {json.dumps(data['error'])}" if isinstance(data, dict) and "error" in data else ""
        raise CompletionFailed(
            "server_error", f"{model} answered no chat completion ({place}: {fault['msg']}){said}"
        ) from error


def _clean(text: str) -> str:
    """JSON can spell half a surrogate pair, which no UTF-8 file can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
