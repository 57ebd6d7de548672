"""Limits of a server, and what ends a request, an engine or a server before its time: each says why, and nothing hangs."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import grpc
import pytest

from runtime.proto import engine_pb2 as pb
from runtime.server.service import REQUEST_ID
from tests.runtime.server_kit import (
    WAIT,
    WEIGHTS,
    Running,
    ask,
    collect,
    free_pages,
    make_engine,
    metric,
    refusal,
    until,
)

CODE = grpc.StatusCode
LONG = {"max_tokens": 1000, "ignore_stop_ids": True}


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    """For tests that leave a server as they found it."""
    with Running() as running:
        yield running


def test_a_message_over_the_limit_is_refused(shared: Running) -> None:
    with Running(limits={"max_message": 1024}) as running:
        code, text = refusal(lambda: list(running.stub.Generate(ask([200] * 1000), timeout=WAIT)))
        assert code is CODE.RESOURCE_EXHAUSTED
        assert "1024" in text
        assert collect(running.stub.Generate(ask([200] * 100, max_tokens=1), timeout=WAIT))[0].ids


def test_an_abort_ends_the_request_of_another_call_with_what_there_is(shared: Running) -> None:
    for fields in ({"n": 2, "temperature": 1.0}, {"beams": pb.Beams(beams=2, return_sequences=2)}):
        call = shared.stub.Generate(
            ask([1, 2], request_id="long", max_tokens=500, ignore_stop_ids=True, **fields), timeout=WAIT
        )
        call.initial_metadata()
        if "n" in fields:
            next(call)
        code, text = refusal(
            lambda: list(shared.stub.Generate(ask([1], request_id="long", max_tokens=1), timeout=WAIT))
        )
        assert (code, text) == (CODE.INVALID_ARGUMENT, "request_id: long is being served already")
        shared.stub.Abort(pb.AbortRequest(request_id="long.1"), timeout=WAIT)
        answers = collect(call)
        assert [answers[place].finish.reason for place in (0, 1)] == [pb.FINISH_REASON_ABORT] * 2  # type: ignore[union-attr]
        until(lambda: free_pages(shared), "pages back")


@pytest.mark.parametrize("leave", ["cancelled", "overdue", "disconnected"])
def test_a_client_that_is_gone_frees_its_pages(shared: Running, leave: str) -> None:
    before = metric(shared, 'server_aborts_total{reason="cancelled"}')
    channel = grpc.insecure_channel(f"127.0.0.1:{shared.port}")
    call = type(shared.stub)(channel).Generate(
        ask([1, 2, 3], n=2, **LONG), timeout=0.3 if leave == "overdue" else WAIT
    )
    next(call)
    assert not free_pages(shared)
    if leave == "cancelled":
        call.cancel()
    elif leave == "disconnected":
        channel.close()
    else:
        assert refusal(lambda: list(call))[0] is CODE.DEADLINE_EXCEEDED
    until(lambda: free_pages(shared), "pages back")
    until(lambda: metric(shared, 'server_aborts_total{reason="cancelled"}') == before + 1, "it is counted")
    channel.close()


def test_a_client_that_does_not_read_is_ended_and_nobody_waits_for_it() -> None:
    small_window = (("grpc.http2.lookahead_bytes", 1 << 14), ("grpc.http2.bdp_probe", 0))
    with (
        Running(limits={"max_queued": 8}) as running,
        grpc.insecure_channel(f"127.0.0.1:{running.port}", small_window) as channel,
    ):
        request = ask([1], n=8, logprobs=20, max_tokens=140, ignore_stop_ids=True)
        slow = type(running.stub)(channel).Generate(request)
        slow.initial_metadata()
        other = collect(running.stub.Generate(ask([2], max_tokens=50, ignore_stop_ids=True), timeout=WAIT))
        assert len(other[0].ids) == 50
        until(lambda: free_pages(running), "pages back")
        assert metric(running, 'server_aborts_total{reason="slow reader"}') == 1
        code, text = refusal(lambda: list(slow))
        assert (code, text) == (
            CODE.RESOURCE_EXHAUSTED,
            "8 parts wait to be read; read faster, or ask for less",
        )


def test_requests_over_the_limit_of_waiting_ones_are_refused_and_places_do_not_count() -> None:
    engine = make_engine(max_batch=2)
    gate = threading.Event()
    step = engine.step

    def held() -> Any:
        assert gate.wait(WAIT)
        return step()

    engine.step = held  # type: ignore[method-assign]
    with Running(engine, limits={"max_batch": 2, "max_waiting": 1}) as running:
        calls = [
            running.stub.Generate(ask([number], max_tokens=30, ignore_stop_ids=True)) for number in range(3)
        ]
        until(lambda: running.thread._inbox.qsize() + len(engine.scheduler.waiting) == 3, "all are there")
        refused = running.stub.Generate(ask([7], max_tokens=2))
        until(lambda: running.thread._inbox.qsize() + len(engine.scheduler.waiting) == 4, "it is there")
        gate.set()
        code, text = refusal(lambda: list(refused))
        assert code is CODE.RESOURCE_EXHAUSTED
        assert text == "1 requests wait already; ask again later, or another server"
        assert [len(collect(call)[0].ids) for call in calls] == [30] * 3
        assert metric(running, 'server_refusals_total{status="RESOURCE_EXHAUSTED"}') == 1


def test_an_idle_engine_waits_for_as_many_requests_as_it_was_told_to_gather() -> None:
    """Asked one after the other, they meet in the first step; once it has begun, nobody is waited for."""
    engine = make_engine()
    sizes: list[int] = []
    step = engine.step

    def counting() -> Any:
        sizes.append(len(engine.scheduler.waiting))
        return step()

    engine.step = counting  # type: ignore[method-assign]
    with Running(engine, limits={"gather": 3}) as running:
        for _ in range(2):
            calls = [running.stub.Generate(ask([number], max_tokens=30, ignore_stop_ids=True), timeout=WAIT) for number in range(3)]  # fmt: skip
            assert sum(len(collect(call)[0].ids) for call in calls) == 90
            assert sizes[0] == 3
            until(lambda: not engine.has_work(), "it is idle")
            sizes.clear()
        one = running.stub.Generate(ask([1], max_tokens=2), timeout=WAIT)
        one.initial_metadata()
        assert sizes == []
        running.stub.Abort(pb.AbortRequest(request_id=dict(one.initial_metadata())[REQUEST_ID]), timeout=WAIT)
        assert collect(one)[0].finish is not None


def test_a_failed_engine_ends_every_call_says_why_and_is_unhealthy() -> None:
    engine = make_engine()
    step, steps = engine.step, iter(range(6))

    def failing() -> Any:
        if next(steps, None) is None:
            raise RuntimeError("the GPU fell off")
        return step()

    engine.step = failing  # type: ignore[method-assign]
    with Running(engine) as running:
        assert running.stub.Health(pb.HealthRequest(), timeout=WAIT) == pb.HealthResponse(
            state=pb.HEALTH_STATE_SERVING, model="small"
        )
        said = "the engine has failed: RuntimeError: the GPU fell off"
        with ThreadPoolExecutor(8) as pool:
            calls = [
                pool.submit(refusal, lambda: list(running.stub.Generate(ask([1], **LONG), timeout=WAIT)))
                for _ in range(8)
            ]
            assert {call.result() for call in calls} == {(CODE.INTERNAL, said)}
        health = running.stub.Health(pb.HealthRequest(), timeout=WAIT)
        assert (health.state, health.error) == (pb.HEALTH_STATE_FAILED, said)
        for call in (
            lambda: list(running.stub.Generate(ask([1]), timeout=WAIT)),
            lambda: running.stub.Embed(pb.EmbedRequest(text="a"), timeout=WAIT),
            lambda: running.stub.Abort(pb.AbortRequest(request_id="a"), timeout=WAIT),
            lambda: running.stub.Metrics(pb.MetricsRequest(), timeout=WAIT),
        ):
            assert refusal(call) == (CODE.INTERNAL, said)


def test_an_engine_that_breaks_while_idle_is_noticed() -> None:
    class Breaking(Running):
        def _served(self) -> Any:
            return replace(super()._served(), failure=lambda: OSError("rank 1 is gone"))

    with Breaking() as running:
        until(
            lambda: running.stub.Health(pb.HealthRequest(), timeout=WAIT).state == pb.HEALTH_STATE_FAILED,
            "it is unhealthy",
        )


def test_a_step_that_does_not_end_makes_the_server_look_stalled_and_its_end_well_again() -> None:
    engine = make_engine()
    gate = threading.Event()
    step = engine.step

    def stuck() -> Any:
        assert gate.wait(WAIT)
        return step()

    engine.step = stuck  # type: ignore[method-assign]
    with Running(engine, stall_seconds=0.2) as running:
        call = running.stub.Generate(ask([1], max_tokens=3), timeout=WAIT)
        until(lambda: engine.has_work() or running.thread._inbox.qsize() > 0, "it is there")
        until(
            lambda: running.stub.Health(pb.HealthRequest(), timeout=WAIT).state == pb.HEALTH_STATE_STALLED,
            "stalled",
        )
        gate.set()
        assert len(collect(call)[0].ids) == 3
        assert running.stub.Health(pb.HealthRequest(), timeout=WAIT).state == pb.HEALTH_STATE_SERVING


def test_a_request_whose_logits_are_nan_ends_with_its_error_and_the_others_go_on() -> None:
    embedding = WEIGHTS.embedding.clone()
    embedding[50] = float("nan")
    engine = make_engine()
    engine._model._weights = replace(WEIGHTS, embedding=embedding)
    with Running(engine) as running:
        bad = running.stub.Generate(ask([50]), timeout=WAIT)
        good = collect(running.stub.Generate(ask([1], max_tokens=3), timeout=WAIT))
        assert len(good[0].ids) == 3
        finish = collect(bad)[0].finish
        assert finish is not None
        assert finish.reason == pb.FINISH_REASON_ERROR
        assert "NaN" in finish.error


def test_a_draining_server_ends_what_runs_takes_no_more_and_ends_what_takes_too_long() -> None:
    engine = make_engine()
    step = engine.step

    def slower_alone() -> Any:
        if len(engine.scheduler.running) == 1:
            time.sleep(0.05)  # on any machine the short one is done in time and the long one is not
        return step()

    engine.step = slower_alone  # type: ignore[method-assign]
    with Running(engine) as running:
        short = running.stub.Generate(ask([1], max_tokens=40, ignore_stop_ids=True), timeout=WAIT)
        long = running.stub.Generate(ask([1], **LONG), timeout=WAIT)
        next(short), next(long)
        draining = threading.Thread(target=lambda: running.on_loop(running.client.drain(2)))
        draining.start()
        until(lambda: running.client.draining, "it drains")
        code, text = refusal(lambda: list(running.stub.Generate(ask([1]), timeout=WAIT)))
        assert (code, text) == (CODE.UNAVAILABLE, "the server ends; ask another one")
        assert running.stub.Health(pb.HealthRequest(), timeout=WAIT).state == pb.HEALTH_STATE_DRAINING
        assert len(collect(short)[0].ids) >= 30
        code, text = refusal(lambda: list(long))
        assert (code, text) == (
            CODE.UNAVAILABLE,
            "the server ends, and this request was not done within 2 s",
        )
        draining.join()
        until(lambda: free_pages(running), "pages back")
