"""Endpoints that fail: what passes is retried, what does not stops the round."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from reviewer.engines.base import CompletionFailed
from reviewer.engines.openai import OpenAIEngine
from reviewer.errors import EngineError
from reviewer.policy import ModelLimits
from tests.reviewer.engines.asking import KEY, REQUEST, ask, failure, settings_for
from tests.standin.openai_server import OpenAIServer

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
