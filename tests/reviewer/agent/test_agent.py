from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from reviewer.agent import converse
from reviewer.checkout.snapshot import GitCheckout
from reviewer.engines.base import Completion, CompletionFailed, Key, Message, Request, ToolCall
from reviewer.policy import ToolLimits
from reviewer.tools import Toolbox


class Script:
    """An engine that gives prepared answers and keeps the requests."""

    def __init__(self, *answers: Completion | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []

    async def complete(self, request: Request) -> Completion:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def warnings(self) -> tuple[str, ...]:
        return ()


REQUEST = Request(
    Key("discover", rep=2, subject="abc", attempt=1),
    (Message("system", "review"), Message("user", "this")),
    schema={"type": "object"},
    prompt_version="v1",
)
FINAL = Completion("{}", tokens_out=1)


def calls(*pairs: tuple[str, str], text: str = "") -> Completion:
    made = tuple(ToolCall(f"id{number}", name, arguments) for number, (name, arguments) in enumerate(pairs))
    return Completion(text, tool_calls=made, finish="tool_calls", tokens_out=10)


def hold(engine: Script, toolbox: Toolbox | None, **more: Any) -> Completion:
    return asyncio.run(converse(engine, REQUEST, toolbox, **more))


def test_without_tools_it_is_one_request_as_given() -> None:
    engine = Script(FINAL)
    assert hold(engine, None) is FINAL
    assert engine.requests == [REQUEST]


def test_tool_calls_from_a_model_that_was_offered_none_are_its_answer() -> None:
    stray = calls(("read_file", "{}"))
    assert hold(Script(stray), None) is stray


def test_the_conversation_goes_on_until_the_model_answers_in_words(checkout: GitCheckout) -> None:
    first, second = calls(("list_dir", "{}"), text="let me look"), calls(("read_file", '{"path": "app.py"}'))
    engine, toolbox = Script(first, second, FINAL), Toolbox(checkout, ToolLimits())
    assert hold(engine, toolbox) is FINAL
    assert [request.key.turn for request in engine.requests] == [0, 1, 2]
    assert {(request.key.step, request.key.rep, request.key.attempt) for request in engine.requests} == {
        ("discover", 2, 1)
    }
    assert all(request.tools == toolbox.tools for request in engine.requests)
    assert all(
        request.schema == REQUEST.schema and request.prompt_version == "v1" for request in engine.requests
    )
    messages = engine.requests[-1].messages
    assert messages[:2] == REQUEST.messages
    assert [message.role for message in messages[2:]] == ["assistant", "tool", "assistant", "tool"]
    assert (messages[2].content, messages[2].tool_calls) == ("let me look", first.tool_calls)
    assert messages[3].tool_call_id == "id0"
    assert "kernels/" in messages[3].content
    assert "class Cache" in messages[5].content
    assert [record.name for record in toolbox.records] == ["list_dir", "read_file"]


def test_parallel_calls_are_answered_in_their_order(checkout: GitCheckout) -> None:
    engine = Script(
        calls(("grep", '{"pattern": "TILE"}'), ("nothing", "{}"), ("list_dir", '{"path": "kernels"}')), FINAL
    )
    hold(engine, Toolbox(checkout, ToolLimits()))
    answers = engine.requests[1].messages[3:]
    assert [message.tool_call_id for message in answers] == ["id0", "id1", "id2"]
    assert "TILE 32" in answers[0].content
    assert answers[1].content.startswith("error: there is no tool 'nothing'")
    assert "copy.cu" in answers[2].content


def test_malformed_arguments_are_answered_so_that_the_model_can_mend_them(checkout: GitCheckout) -> None:
    engine = Script(calls(("read_file", "???")), calls(("read_file", '{"path": "app.py"}')), FINAL)
    toolbox = Toolbox(checkout, ToolLimits())
    assert hold(engine, toolbox) is FINAL
    assert engine.requests[1].messages[-1].content.startswith("error: ")
    assert [record.ok for record in toolbox.records] == [False, True]


def test_when_the_budget_is_spent_the_final_answer_is_asked_for_without_tools(checkout: GitCheckout) -> None:
    engine = Script(calls(("list_dir", "{}"), ("list_dir", "{}"), ("list_dir", "{}")), FINAL)
    toolbox = Toolbox(checkout, ToolLimits(steps=2))
    assert hold(engine, toolbox) is FINAL
    last = engine.requests[-1]
    assert last.tools == ()
    assert last.messages[-1].role == "user"
    assert "final answer now" in last.messages[-1].content
    assert [record.ok for record in toolbox.records] == [True, True, False]


def test_a_model_that_never_stops_calling_is_stopped(checkout: GitCheckout) -> None:
    stubborn = calls(("list_dir", "{}"))
    engine = Script(*[stubborn] * 10)
    assert hold(engine, Toolbox(checkout, ToolLimits(steps=4))) is stubborn
    assert len(engine.requests) == 5


def test_every_completion_is_heard_even_when_a_later_turn_fails(checkout: GitCheckout) -> None:
    heard: list[Completion] = []
    first = calls(("list_dir", "{}"))
    engine = Script(first, CompletionFailed("timeout", "no answer"))
    with pytest.raises(CompletionFailed):
        hold(engine, Toolbox(checkout, ToolLimits()), on_completion=heard.append)
    assert heard == [first]
    hold(Script(first, FINAL), Toolbox(checkout, ToolLimits()), on_completion=heard.append)
    assert heard == [first, first, FINAL]


def test_tools_run_off_the_event_loop(checkout: GitCheckout, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    listing = checkout.list_dir
    monkeypatch.setattr(
        checkout, "list_dir", lambda *given: threads.append(threading.current_thread()) or listing(*given)
    )
    hold(Script(calls(("list_dir", "{}")), FINAL), Toolbox(checkout, ToolLimits()))
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


def test_the_same_script_gives_the_same_requests(checkout: GitCheckout) -> None:
    engines = [Script(calls(("grep", '{"pattern": "a"}'), ("git_log", "{}")), FINAL) for _ in range(2)]
    for engine in engines:
        hold(engine, Toolbox(checkout, ToolLimits()))
    assert engines[0].requests == engines[1].requests
