"""What the engine sends, how it reads what comes back, and what it keeps to itself."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from reviewer.answers import DiscoverAnswer, Unparsable, parse
from reviewer.engines.base import CompletionFailed, Key, Message, ToolCall
from reviewer.engines.openai import OpenAIEngine, OpenAISettings
from reviewer.errors import EngineError
from tests.reviewer.engines.asking import KEY, REQUEST, SCHEMA, TOOL, ask, ask_all, failure, settings_for

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
