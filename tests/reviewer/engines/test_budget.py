from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reviewer.engines.base import Completion, CompletionFailed, Key, Request
from reviewer.engines.budget import Budgeted, time_left
from reviewer.policy import ModelLimits

REQUEST = Request(Key("discover", 0, "s"), ())
ANSWER = Completion("ok", tokens_in=60, tokens_out=40, cost_usd=0.25, model="m")


@dataclass
class Spender:
    """Answers with what it is told to have spent, after `delay` seconds, calling `on_answer` before it does."""

    completion: Completion = ANSWER
    delay: float = 0.0
    on_answer: Callable[[], None] = lambda: None
    requests: list[Request] = field(default_factory=list)
    time_left: float = 0.0

    async def complete(self, request: Request) -> Completion:
        self.requests.append(request)
        self.time_left = time_left()
        await asyncio.sleep(self.delay)
        self.on_answer()
        return self.completion

    def warnings(self) -> tuple[str, ...]:
        return ("from within",)


def ask(budgeted: Budgeted, times: int) -> list[Any]:
    """What each of `times` requests, asked at once, came to."""

    async def scene() -> list[Any]:
        return await asyncio.gather(
            *(budgeted.complete(REQUEST) for _ in range(times)), return_exceptions=True
        )

    return asyncio.run(scene())


def refusals(results: list[Any]) -> list[str]:
    for result in results:
        assert isinstance(result, Completion) or result.reason == "budget"
    return [str(result) for result in results if isinstance(result, CompletionFailed)]


def test_within_its_limits_a_round_is_answered_and_warns_of_nothing_itself() -> None:
    budgeted = Budgeted(Spender(), ModelLimits(round_cost_usd=100))
    assert refusals(ask(budgeted, 10)) == []
    assert budgeted.warnings() == ("from within",)


def test_tokens_spent_refuse_what_is_still_to_come_and_warn_once() -> None:
    budgeted = Budgeted(Spender(), ModelLimits(round_tokens=250), concurrency=1)
    results = ask(budgeted, 5)
    message = "the round's budget round_tokens is spent (300 of 250 tokens)"
    assert refusals(results) == [message, message]
    assert budgeted.warnings() == ("from within", f"{message}: 2 requests were refused")


def test_cost_spent_refuses_what_is_still_to_come() -> None:
    budgeted = Budgeted(Spender(), ModelLimits(round_cost_usd=0.5), concurrency=1)
    assert refusals(ask(budgeted, 3)) == ["the round's budget round_cost_usd is spent (0.5000 of 0.5000 USD)"]
    assert budgeted.warnings()[1:] == (
        "the round's budget round_cost_usd is spent (0.5000 of 0.5000 USD): 1 request was refused",
    )


def test_seconds_spent_refuse_what_is_still_to_come() -> None:
    now = [1000.0]

    def tick() -> None:
        now[0] += 30

    budgeted = Budgeted(
        Spender(on_answer=tick), ModelLimits(round_seconds=60), concurrency=1, clock=lambda: now[0]
    )
    assert refusals(ask(budgeted, 3)) == ["the round's budget round_seconds is spent (all 60 seconds)"]


def test_the_rounds_seconds_count_from_the_first_request() -> None:
    now = [0.0]
    budgeted = Budgeted(Spender(), ModelLimits(round_seconds=60), clock=lambda: now[0])
    for now[0], refused in ((500.0, 0), (559.0, 0), (560.0, 1)):
        assert len(refusals(ask(budgeted, 1))) == refused


def test_a_request_under_way_is_cut_off_when_the_rounds_seconds_end() -> None:
    budgeted = Budgeted(Spender(delay=30), ModelLimits(round_seconds=0.1))
    assert refusals(ask(budgeted, 1)) == ["the round's budget round_seconds is spent (all 0.1 seconds)"]


def test_a_request_that_takes_too_long_times_out_and_the_round_goes_on() -> None:
    spender = Spender(delay=30)
    budgeted = Budgeted(spender, ModelLimits(request_seconds=0.1))
    (failed,) = ask(budgeted, 1)
    assert failed.reason == "timeout"
    assert "request_seconds" in str(failed)
    assert budgeted.warnings() == ("from within",)


def test_waiting_for_a_turn_does_not_count_as_a_requests_seconds() -> None:
    budgeted = Budgeted(Spender(delay=0.1), ModelLimits(request_seconds=0.25), concurrency=1)
    assert [result.text for result in ask(budgeted, 4)] == ["ok"] * 4


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        (ModelLimits(request_seconds=50, round_seconds=100), 50),
        (ModelLimits(request_seconds=100, round_seconds=50), 50),
    ],
)
def test_the_engine_is_told_how_much_time_is_left(limits: ModelLimits, left: float) -> None:
    spender = Spender()
    ask(Budgeted(spender, limits), 1)
    assert spender.time_left == pytest.approx(left, abs=1)


def test_an_answers_tokens_are_capped() -> None:
    spender = Spender()
    ask(Budgeted(spender, ModelLimits(request_tokens=1000)), 1)
    assert [request.max_tokens for request in spender.requests] == [1000]


def test_a_limit_of_cost_says_where_it_cannot_hold() -> None:
    free = Spender(Completion("ok", tokens_in=1, tokens_out=1, model="m"))
    unlimited, limited = Budgeted(free, ModelLimits()), Budgeted(free, ModelLimits(round_cost_usd=1))
    ask(unlimited, 1)
    ask(limited, 1)
    assert unlimited.warnings() == ("from within",)
    assert limited.warnings() == ("from within", "round_cost_usd does not count what has no price: m")


@given(
    limit=st.integers(1, 2000),
    requests=st.integers(1, 30),
    concurrency=st.integers(1, 8),
    each=st.integers(1, 300),
)
def test_a_round_asked_all_at_once_exceeds_its_tokens_by_those_in_flight_at_most(
    limit: int, requests: int, concurrency: int, each: int
) -> None:
    spender = Spender(Completion("ok", tokens_in=each))
    results = ask(Budgeted(spender, ModelLimits(round_tokens=limit), concurrency=concurrency), requests)
    spent = each * len(spender.requests)
    assert spent < limit + concurrency * each
    # And it is used up before anything is refused.
    assert spent >= limit or not refusals(results)
