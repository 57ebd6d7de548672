"""Endpoints that know less of the protocol: what they refuse is left out, and remembered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from reviewer.engines.base import CompletionFailed, Key, Request
from reviewer.engines.openai import OpenAIEngine
from tests.reviewer.engines.asking import REQUEST, SCHEMA, TOOL, ask, ask_all, failure, settings_for

# Endpoints that know less of the protocol


def picky(server: Any, refuses: Callable[[dict[str, Any]], str], status: int = 400) -> None:
    """The server answers 400 to whatever `refuses` names a complaint about."""

    def answer(body: dict[str, Any]) -> Any:
        complaint = refuses(body)
        return server.error(status, complaint) if complaint else server.text("{}")

    server.answer = answer


def asked_twice(server: Any, request: Request, **changes: Any) -> list[dict[str, Any]]:
    """The bodies sent for two requests, one after the other, by one engine."""

    async def scene() -> None:
        async with OpenAIEngine(settings_for(server, **changes)) as engine:
            await engine.complete(request)
            await engine.complete(request)

    asyncio.run(scene())
    return [received.body for received in server.requests]


def format_of(body: dict[str, Any]) -> str:
    return str(body.get("response_format", {"type": "none"})["type"])


@pytest.mark.parametrize("complaint", ["response_format is not supported", "Unknown field", "no"])
def test_an_endpoint_without_response_format_is_remembered(server: Any, complaint: str) -> None:
    picky(server, lambda body: complaint if "response_format" in body else "")
    bodies = asked_twice(server, replace(REQUEST, schema=SCHEMA))
    assert [format_of(body) for body in bodies] == ["json_schema", "json_object", "none", "none"]


def test_an_endpoint_with_plain_json_mode_gets_the_schema_in_words(server: Any) -> None:
    picky(server, lambda body: "json_schema is unknown" if format_of(body) == "json_schema" else "")
    bodies = asked_twice(server, replace(REQUEST, schema=SCHEMA))
    assert [format_of(body) for body in bodies] == ["json_schema", "json_object", "json_object"]
    assert [message["role"] for message in bodies[-1]["messages"]] == ["system", "user"]
    assert json.dumps(SCHEMA) in bodies[-1]["messages"][0]["content"]
    assert json.dumps(SCHEMA) not in bodies[0]["messages"][0]["content"]


def test_the_schema_in_words_makes_its_own_system_message_where_there_is_none(server: Any) -> None:
    picky(server, lambda body: "no" if "response_format" in body else "")
    ask(server, replace(REQUEST, schema=SCHEMA, messages=REQUEST.messages[1:]))
    assert [message["role"] for message in server.requests[-1].body["messages"]] == ["system", "user"]


@pytest.mark.parametrize("status", [400, 422])
def test_the_newer_name_of_the_token_limit_is_used_where_the_older_is_refused(
    server: Any, status: int
) -> None:
    complaint = "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    picky(server, lambda body: complaint if "max_tokens" in body else "", status)
    bodies = asked_twice(server, replace(REQUEST, max_tokens=99, schema=SCHEMA))
    assert [body.get("max_completion_tokens") for body in bodies] == [None, 99, 99]
    assert [format_of(body) for body in bodies] == ["json_schema"] * 3


@pytest.mark.parametrize(
    ("parameter", "complaint"),
    [
        ("seed", "seed: extra fields not permitted"),
        ("temperature", "Unsupported value: 'temperature' does not support 0.2"),
        ("tools", '"auto" tool choice requires --enable-auto-tool-choice'),
    ],
)
def test_a_refused_parameter_is_left_out_and_nothing_else(
    server: Any, parameter: str, complaint: str
) -> None:
    picky(server, lambda body: complaint if parameter in body else "")
    request = replace(REQUEST, schema=SCHEMA, tools=(TOOL,))
    first, *later = asked_twice(server, request, seed=1, temperature=0.2)
    assert len(later) == 2
    assert all(set(first) - set(body) == {parameter} for body in later)


def test_the_field_that_an_error_names_is_heeded(server: Any) -> None:
    server.play(server.error(400, "unsupported", param="seed"), server.text("{}"))
    ask(server, replace(REQUEST, schema=SCHEMA), seed=1)
    assert "seed" not in server.requests[1].body
    assert "response_format" in server.requests[1].body


def test_an_endpoint_that_complains_of_what_is_not_sent_costs_one_completion(server: Any) -> None:
    every = "response_format, max_tokens, temperature, seed and tools are not supported"
    picky(server, lambda body: every)
    request = replace(REQUEST, schema=SCHEMA, tools=(TOOL,))
    assert failure(server, request, seed=1, temperature=0.2).reason == "bad_request"
    assert server.requests[-1].body.keys() == {"model", "messages", "max_completion_tokens"}


def test_tools_that_were_refused_are_a_warning(server: Any) -> None:
    picky(server, lambda body: "tools are unknown" if "tools" in body else "")

    async def scene() -> tuple[str, ...]:
        async with OpenAIEngine(settings_for(server)) as engine:
            await engine.complete(replace(REQUEST, tools=(TOOL,)))
            await engine.complete(REQUEST)
            return engine.warnings()

    assert asyncio.run(scene()) == ("m takes no tools: its agentic reps saw the diff alone",)


def test_what_was_learnt_outlives_a_request_that_began_before(server: Any) -> None:
    def answer(body: dict[str, Any]) -> Any:
        if "response_format" in body:
            return server.error(400)
        return server.text("{}", delay=0.3 if body["max_tokens"] == 1 else 0.0)

    server.answer = answer
    asks, slow = replace(REQUEST, schema=SCHEMA), replace(REQUEST, max_tokens=1)

    async def scene() -> None:
        async with OpenAIEngine(settings_for(server)) as engine:
            await asyncio.gather(engine.complete(slow), engine.complete(asks))
            await engine.complete(asks)

    asyncio.run(scene())
    assert [format_of(received.body) for received in server.requests].count("json_schema") == 1


def test_one_models_refusals_do_not_bind_another(server: Any) -> None:
    picky(server, lambda body: "no" if body["model"] == "a" and "response_format" in body else "")
    requests = [replace(REQUEST, schema=SCHEMA, key=Key("discover", rep, "s")) for rep in (0, 1)]
    asyncio.run(ask_all(settings_for(server, models=("a", "b")), *requests))
    assert [format_of(r.body) for r in server.requests if r.body["model"] == "b"] == ["json_schema"]


def test_a_request_refused_in_every_form_fails_with_the_first_complaint_and_binds_nothing(
    server: Any,
) -> None:
    server.play(*[server.error(400, f"context too long {number}") for number in range(3)])

    async def scene() -> str:
        async with OpenAIEngine(settings_for(server)) as engine:
            with pytest.raises(CompletionFailed) as caught:
                await engine.complete(replace(REQUEST, schema=SCHEMA))
            assert caught.value.reason == "bad_request"
            await engine.complete(replace(REQUEST, schema=SCHEMA))
            return str(caught.value)

    assert "context too long 0" in asyncio.run(scene())
    assert format_of(server.requests[-1].body) == "json_schema"
