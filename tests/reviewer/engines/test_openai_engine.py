from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from reviewer.answers import DiscoverAnswer, Unparsable, parse
from reviewer.engines.base import Completion, CompletionFailed, Key, Message, Request, Tool, ToolCall
from reviewer.engines.budget import Budgeted
from reviewer.engines.openai import OpenAIEngine, OpenAISettings
from reviewer.errors import EngineError
from reviewer.policy import ModelLimits
from tests.standin.openai_server import OpenAIServer

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


# What is sent


def test_the_request_carries_model_messages_limit_and_key(server: Any) -> None:
    ask(server, replace(REQUEST, max_tokens=99), temperature=0.5)
    (received,) = server.requests
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert received.body == {
        "model": "m",
        "messages": [{"role": "system", "content": "be terse"}, {"role": "user", "content": "review this"}],
        "max_tokens": 99,
        "temperature": 0.5,
    }


def test_reps_take_models_in_turn_and_the_judge_takes_the_other_steps(server: Any) -> None:
    keys = [
        *(Key("discover", rep, "s") for rep in range(3)),
        Key("confirm", 3, "s"),
        Key("fact_check", 0, "s"),
    ]
    for key in keys:
        completion = ask(server, replace(REQUEST, key=key), models=("a", "b"), judge_model="j")
        assert completion.model == server.requests[-1].body["model"]
    assert [received.body["model"] for received in server.requests] == ["a", "b", "a", "b", "j"]


def test_without_a_judge_the_first_model_answers_the_other_steps(server: Any) -> None:
    assert ask(server, replace(REQUEST, key=Key("dedup", 1, "s")), models=("a", "b")).model == "a"


def test_seeds_differ_between_reps_and_between_attempts(server: Any) -> None:
    for rep, attempt in ((0, 0), (1, 0), (0, 1)):
        ask(server, replace(REQUEST, key=Key("discover", rep, "s", attempt=attempt)), seed=7)
    assert len({received.body["seed"] for received in server.requests}) == 3
    assert server.requests[0].body["seed"] == 7


def test_a_schema_is_sent_as_a_strict_response_format(server: Any) -> None:
    ask(server, replace(REQUEST, schema=SCHEMA))
    sent = server.requests[0].body["response_format"]
    assert sent["type"] == "json_schema"
    assert sent["json_schema"]["name"] == "discover"
    assert sent["json_schema"]["strict"] is True
    assert sent["json_schema"]["schema"]["additionalProperties"] is False


def test_tools_go_out_and_their_calls_come_back(server: Any) -> None:
    server.play(server.tools(("read_file", '{"path": "a.py"}'), ("read_file", "{not json")))
    completion = ask(server, replace(REQUEST, tools=(TOOL,)))
    assert completion.finish == "tool_calls"
    assert completion.tool_calls == (
        ToolCall("call_0", "read_file", '{"path": "a.py"}'),
        ToolCall("call_1", "read_file", "{not json"),
    )
    (tool,) = server.requests[0].body["tools"]
    assert tool["function"] == {
        "name": TOOL.name,
        "description": TOOL.description,
        "parameters": TOOL.parameters,
    }


def test_a_conversation_with_tools_is_sent_back_in_the_protocols_form(server: Any) -> None:
    calls = (ToolCall("x", "read_file", '{"path": "a.py"}'), ToolCall("y", "read_file", "{not json"))
    turns = (Message("assistant", "", tool_calls=calls), Message("tool", "text of a.py", tool_call_id="x"))
    ask(server, replace(REQUEST, messages=REQUEST.messages + turns))
    assistant, tool = server.requests[0].body["messages"][2:]
    assert [call["id"] for call in assistant["tool_calls"]] == ["x", "y"]
    # An endpoint that parses arguments would refuse the malformed ones.
    assert [call["function"]["arguments"] for call in assistant["tool_calls"]] == ['{"path": "a.py"}', "{}"]
    assert tool == {"role": "tool", "content": "text of a.py", "tool_call_id": "x"}


# What comes back


def test_tokens_cost_and_seconds_are_counted(server: Any) -> None:
    server.play(server.text("ok", delay=0.05))
    completion = ask(server, prices={"m": (1000.0, 2000.0)})
    assert (completion.tokens_in, completion.tokens_out) == (7, 5)
    assert completion.cost_usd == pytest.approx(7 * 0.001 + 5 * 0.002)
    assert 0.05 <= completion.seconds < 5


def test_tokens_that_the_endpoint_does_not_count_are_estimated(server: Any) -> None:
    server.play(server.raw(json.dumps({"choices": [{"message": {"content": "x" * 300}}]}).encode()))
    completion = ask(server)
    assert completion.text == "x" * 300
    assert completion.tokens_in > 0
    assert completion.tokens_out >= 300 // 5


def test_malformed_json_text_is_handed_on_for_the_step_to_judge(server: Any) -> None:
    server.play(server.text('{"findings": ['))
    assert ask(server).text == '{"findings": ['


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "refusal"),
        (None, "stop"),
        ("eos", "stop"),
        ("tool_calls", "stop"),
    ],
)
def test_finish_reasons_are_mapped(server: Any, reason: str | None, finish: str) -> None:
    server.play(server.chat({"content": "{}"}, reason))
    assert ask(server).finish == finish


def test_tool_calls_count_as_such_whatever_the_finish_reason_says(server: Any) -> None:
    call = {"id": None, "type": "function", "function": {"name": "grep", "arguments": "{}"}}
    server.play(server.chat({"content": None, "tool_calls": [call]}, "stop"))
    completion = ask(server)
    assert completion.finish == "tool_calls"
    assert completion.tool_calls == (ToolCall("call_0", "grep", "{}"),)


def test_a_truncated_answer_says_so_and_is_not_parsed(server: Any) -> None:
    server.play(server.text('{"findings": [], "checklist": [', finish="length"))
    completion = ask(server)
    assert completion.finish == "length"
    with pytest.raises(Unparsable, match="length"):
        parse(completion, DiscoverAnswer)


def test_a_refusal_is_an_answer_that_was_paid_for_and_is_not_parsed(server: Any) -> None:
    server.play(server.refusal("I cannot help with that"))
    completion = ask(server)
    assert (completion.finish, completion.text, completion.tokens_out) == (
        "refusal",
        "I cannot help with that",
        5,
    )
    with pytest.raises(Unparsable, match="refusal"):
        parse(completion, DiscoverAnswer)


def test_no_content_is_an_empty_answer(server: Any) -> None:
    server.play(server.chat({"content": None}))
    assert ask(server).text == ""


def test_half_a_surrogate_pair_becomes_a_replacement_character(server: Any) -> None:
    server.play(server.chat({"content": "a\ud83d!\ud83d\ude00"}))
    assert ask(server).text == "a\ufffd!\U0001f600"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"<!doctype html><title>Sign in</title>", "<!doctype html>"),
        (b"", "no JSON"),
        (b"\xff\xfe\x00", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"null", "reply"),
        (b"[1]", "reply"),
        (b"{}", "choices"),
        (b'{"choices": []}', "choices"),
        (b'{"choices": null}', "choices"),
        (b'{"choices": [{}]}', "choices.0.message"),
        (b'{"choices": [{"message": "hi"}]}', "choices.0.message"),
        (b'{"choices": [{"message": {"content": 5}}]}', "choices.0.message.content"),
        (b'{"choices": [{"message": {"tool_calls": [{"function": {}}]}}]}', "tool_calls.0.function.name"),
        (
            b'{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": -5, "completion_tokens": 0}}',
            "usage.prompt_tokens",
        ),
        (b'{"error": {"message": "upstream overloaded"}}', "upstream overloaded"),
    ],
)
def test_a_lying_endpoint_costs_one_completion_and_is_quoted(server: Any, body: bytes, named: str) -> None:
    server.play(server.raw(body, "text/html" if body[:1] == b"<" else "application/json"))
    failed = failure(server)
    assert failed.reason == "server_error"
    assert named in str(failed)
    assert "\n" not in str(failed)


def test_a_reply_without_end_is_cut_off(server: Any) -> None:
    server.play(server.endless())
    failed = failure(server)
    assert failed.reason == "server_error"
    assert "more than" in str(failed)


# Failures that pass


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_a_passing_failure_is_retried(server: Any, status: int) -> None:
    server.play(server.error(status), server.error(status), server.text("ok"))
    assert ask(server).text == "ok"
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("status", "reason"), [(429, "rate_limited"), (500, "server_error"), (503, "server_error")]
)
def test_retries_end_and_the_last_failure_is_told(server: Any, status: int, reason: str) -> None:
    server.play(*[server.error(status, f"failure {number}") for number in range(4)])
    failed = failure(server)
    assert failed.reason == reason
    assert str(failed) == f"m: {status}: failure 2"
    assert len(server.requests) == 3


def test_a_hanging_endpoint_times_out_and_is_retried(server: Any) -> None:
    server.play(server.hang(), server.text("ok"))
    assert ask(server, request_timeout=0.2).text == "ok"


def test_an_endpoint_that_only_hangs_fails_with_timeout(server: Any) -> None:
    server.play(*[server.hang() for _ in range(2)])
    failed = failure(server, request_timeout=0.1, retries=1)
    assert failed.reason == "timeout"
    assert "0.1 s" in str(failed)


def test_a_trickling_endpoint_times_out_too(server: Any) -> None:
    server.play(server.endless(b" ", delay=0.03))
    assert failure(server, request_timeout=0.2, retries=0).reason == "timeout"


def test_a_connection_cut_within_the_body_is_retried(server: Any) -> None:
    server.play(server.cut(), server.text("ok"))
    assert ask(server).text == "ok"


def test_a_connection_cut_every_time_costs_one_completion(server: Any) -> None:
    server.play(*[server.cut() for _ in range(3)])
    assert failure(server).reason == "connection"


def waits_for(server: Any, retry_after: str) -> float:
    server.play(server.error(429, headers={"Retry-After": retry_after}), server.text("ok"))
    start = time.monotonic()
    assert ask(server).text == "ok"
    return time.monotonic() - start


def test_retry_after_in_seconds_is_honoured(server: Any) -> None:
    assert 0.4 <= waits_for(server, "0.4") < 5


def test_retry_after_as_a_date_is_honoured(server: Any) -> None:
    # HTTP dates have whole seconds: 2 s from now is at least 1 s away.
    at = datetime.now(UTC) + timedelta(seconds=2)
    assert 0.9 <= waits_for(server, format_datetime(at, usegmt=True)) < 5


@pytest.mark.parametrize(
    "header",
    [
        "soon",
        "-5",
        "nan",
        "",
        "Thu, 01 Jan 1970 00:00:00 GMT",
        "Thu, 99 Foo",
        "Thu, 01 Jan 99999999999 00:00:00 GMT",
    ],
)
def test_a_retry_after_that_means_nothing_is_passed_over(server: Any, header: str) -> None:
    assert waits_for(server, header) < 2


@pytest.mark.parametrize(
    ("header", "limits"),
    [
        ("3600", ModelLimits(request_seconds=60)),
        ("3600", ModelLimits(round_seconds=60)),
        ("1e400", ModelLimits()),
    ],
)
def test_a_retry_after_beyond_the_budget_fails_at_once_and_says_why(
    server: Any, header: str, limits: ModelLimits
) -> None:
    server.answer = lambda body: server.error(429, "slow down", headers={"Retry-After": header})
    start = time.monotonic()
    failed = failure(server, limits=limits)
    assert time.monotonic() - start < 5
    assert failed.reason == "rate_limited"
    assert "slow down" in str(failed)
    assert "to wait" in str(failed)
    assert len(server.requests) == 1


def test_pauses_double_up_to_a_bound_and_are_spread(server: Any) -> None:
    engine = OpenAIEngine(settings_for(server, backoff=1.0, backoff_max=5.0))
    pauses = [[engine._pause(attempt, 0.0) for _ in range(200)] for attempt in range(5)]
    for drawn, longest in zip(pauses, (1, 2, 4, 5, 5), strict=True):
        assert longest / 2 <= min(drawn) < longest * 0.6
        assert longest * 0.9 < max(drawn) <= longest


# Failures that do not pass


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        (401, "invalid_api_key", "refuses the API key"),
        (403, None, "refuses the API key"),
        (404, "model_not_found", "does not know m"),
        (402, None, "spent"),
        (429, "insufficient_quota", "spent"),
    ],
)
def test_an_endpoint_that_can_never_answer_stops_the_round(
    server: Any, status: int, code: str | None, told: str
) -> None:
    server.answer = lambda body: server.error(status, f"bad\nkey {KEY}", code=code)
    with pytest.raises(EngineError) as caught:
        ask(server)
    assert told in caught.value.problem
    assert server.url in caught.value.problem
    assert str(status) in caught.value.problem
    assert caught.value.remedy
    assert "\n" not in str(caught.value)
    assert len(server.requests) == 1


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/v1", "http://no-such-host.invalid/v1"])
def test_an_unreachable_endpoint_stops_the_round(server: Any, url: str) -> None:
    with pytest.raises(EngineError, match="cannot be reached") as caught:
        ask(server, base_url=url)
    assert url in caught.value.problem


def test_an_endpoint_that_went_away_after_an_answer_costs_one_completion() -> None:
    async def scene() -> str:
        with OpenAIServer() as server:
            engine = OpenAIEngine(settings_for(server, retries=0))
            await engine.complete(REQUEST)
        with pytest.raises(CompletionFailed) as caught:
            await engine.complete(REQUEST)
        return caught.value.reason

    assert asyncio.run(scene()) == "connection"


def test_a_content_filter_refuses_one_completion(server: Any) -> None:
    server.play(server.error(400, "filtered", code="content_filter"))
    assert failure(server).reason == "refused"


def test_settings_that_cannot_work_are_refused(server: Any) -> None:
    for changes, told in (
        ({"models": ()}, "no model"),
        ({"base_url": "localhost:8000/v1"}, "no URL"),
        ({"api_key": f"{KEY}\n"}, "line break"),
    ):
        with pytest.raises(EngineError, match=told) as caught:
            settings_for(server, **changes)
        assert KEY not in str(caught.value)


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


# Concurrency and cancellation


def test_requests_in_flight_stay_within_the_bound_and_reach_it(server: Any) -> None:
    server.answer = lambda body: server.text("ok", delay=0.05)
    results = asyncio.run(ask_all(settings_for(server, concurrency=3), *[REQUEST] * 12))
    assert [result.text for result in results] == ["ok"] * 12
    assert server.max_in_flight == 3


def test_cancelling_the_task_aborts_the_http_request(server: Any) -> None:
    server.play(server.hang())

    async def scene() -> None:
        async with OpenAIEngine(settings_for(server)) as engine:
            task = asyncio.create_task(engine.complete(REQUEST))
            while not server.requests:
                await asyncio.sleep(0.01)
            assert not server.disconnected.is_set()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            # Seen while the engine is still open: closing it would hang up as well.
            assert await asyncio.to_thread(server.disconnected.wait, 5)

    asyncio.run(scene())


# The key


def test_the_key_is_in_no_repr() -> None:
    settings = OpenAISettings("https://user:hunter2@host/v1?key=hunter2", KEY, ("m",))
    assert KEY not in repr(settings)
    assert KEY not in repr(OpenAIEngine(settings))
    assert settings.endpoint == "https://host/v1"


def test_the_key_is_in_no_message_and_no_log(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    echo = f"key {KEY} is not welcome"
    replies = [
        server.error(401, echo),
        server.error(404, echo),
        server.error(418, echo),
        server.error(400, echo),
        server.error(429, echo),
        server.error(500, f"{'x' * 180} {KEY}"),
        server.raw(echo.encode()),
        server.raw(f"{'x' * 160} {KEY}".encode()),
        server.raw(json.dumps({"error": echo}).encode()),
    ]
    for reply in replies:
        server.play(reply)
        with pytest.raises((CompletionFailed, EngineError)) as caught:
            ask(server, retries=0)
        logging.getLogger("test").error("failed", exc_info=caught.value)
        assert KEY[:12] not in str(caught.value)
    assert "openai" in {record.name.partition(".")[0] for record in caplog.records}
    assert KEY not in caplog.text


# Start-up


def test_the_sdk_is_imported_only_by_an_engine() -> None:
    program = (
        "import sys, reviewer.engines, reviewer.engines.openai as o; assert 'openai' not in sys.modules\n"
        "o.OpenAIEngine(o.OpenAISettings('http://h/v1', 'k', ('m',))); assert 'openai' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
