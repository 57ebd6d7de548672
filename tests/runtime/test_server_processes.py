"""`python -m runtime serve` as a process, or several: ready, drained, killed."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
import torch

from runtime.proto import engine_pb2 as pb
from runtime.proto.engine_pb2_grpc import EngineStub
from runtime.request import SamplingParameters
from runtime.server import frontends
from runtime.server.config import ServerConfig, why_no_shared_port
from runtime.server.messages import ALL, Failed, Leave
from runtime.server.process import ServerProcess, ServerProcessError
from runtime.server.served import build
from tests.runtime.server_kit import WAIT, ask, children, collect, is_alive, refusal, until

CODE = grpc.StatusCode
ENDLESS = {"max_tokens": 200, "ignore_stop_ids": True}


class Process(ServerProcess):
    """The command on a CPU, and connections to it."""

    def __init__(self, *arguments: str) -> None:
        super().__init__(["--random", "tiny", "--device", "cpu", *arguments], {"OMP_NUM_THREADS": "1"})

    def stub(self) -> EngineStub:
        """Over a connection of its own, which the system gives to any of the processes at the port."""
        options = (("grpc.use_local_subchannel_pool", 1),)
        return EngineStub(grpc.insecure_channel(self.address, options))


@contextmanager
def serving(*arguments: str) -> Iterator[Process]:
    with Process(*arguments) as process:
        process.wait_ready()
        yield process


def steps_slowly(stub: EngineStub, **fields: Any) -> Any:
    """A request that runs for a while: many answers, each with many alternatives."""
    call = stub.Generate(ask([1, 2], n=8, logprobs=20, temperature=1.0, **ENDLESS, **fields), timeout=WAIT)
    next(call)
    return call


def test_told_to_end_it_drains_and_exits_with_0() -> None:
    with serving("--drain", "20", "--max-batch", "8") as process:
        stub = process.stub()
        call = steps_slowly(stub)
        process.process.send_signal(signal.SIGTERM)
        until(
            lambda: stub.Health(pb.HealthRequest()).state == pb.HEALTH_STATE_DRAINING,
            "it drains",
        )
        answers = collect(call)
        assert {len(answer.ids) for answer in answers.values()} <= {199, 200}
        assert process.process.wait(WAIT) == 0
        until(lambda: len(process.lines) == 2, f"its words: {process.lines}")
        assert process.lines[1] == "ending within 20 s"


@pytest.fixture(scope="module")
def several() -> Iterator[Process]:
    if why_no_shared_port() is not None:
        pytest.skip(f"several processes at one port: {why_no_shared_port()}")
    with serving("--frontends", "3", "--drain", "0.3", "--max-batch", "8", "--max-waiting", "100") as process:
        yield process


def test_front_ends_share_a_port_give_what_the_engine_gives_lose_one_and_drain(several: Process) -> None:
    """In one test, since each start takes seconds."""
    assert "3 front ends" in several.lines[0]
    served = build(replace(ServerConfig(random="tiny", max_batch=8), device="cpu").normalised()[0])
    assert served.engine is not None
    fields = {"temperature": 1.0, "max_tokens": 10, "logprobs": 0}
    stubs = [several.stub() for _ in range(24)]
    calls = [stub.Generate(ask("white smoke", seed=seed, **fields)) for seed, stub in enumerate(stubs)]
    for seed, call in enumerate(calls):
        (answer,) = collect(call).values()
        reference = collect_own(served.engine, seed)
        assert answer.ids == reference
    given = stubs[0].Embed(pb.EmbedRequest(text="white smoke"), timeout=WAIT)
    assert len(given.rows.data) == 4 * 64 * len(given.ids)
    code, text = refusal(lambda: list(stubs[0].Generate(ask([400]), timeout=WAIT)))
    assert (code, "got 400 at 0" in text) == (CODE.INVALID_ARGUMENT, True)
    assert "engine_tokens_total" in stubs[1].Metrics(pb.MetricsRequest(), timeout=WAIT).text

    # A request that came to one front end is ended through another.
    call = steps_slowly(stubs[0], request_id="mine")
    for stub in stubs[1:8]:
        stub.Health(pb.HealthRequest(), timeout=WAIT)
    stubs[1].Abort(pb.AbortRequest(request_id="mine"), timeout=WAIT)
    assert collect(call)[0].finish is not None

    # One is killed: its calls end, the engine gives their pages back, the others go on.
    fronts = children(several.process.pid)
    assert len(fronts) == 3
    calls = [several.stub().Generate(ask([3, seed], logprobs=20, **ENDLESS)) for seed in range(24)]
    for call in calls:
        call.initial_metadata()
    os.kill(fronts[0], signal.SIGKILL)
    until(lambda: any("front end" in line and "-9" in line for line in several.lines), "it is missed")
    ends = [end_of(call) for call in calls]
    assert set(ends) == {CODE.OK, CODE.UNAVAILABLE}
    assert collect(several.stub().Generate(ask([1], max_tokens=2), wait_for_ready=True, timeout=WAIT))[0].ids
    open_now = several.stub().Metrics(pb.MetricsRequest(), wait_for_ready=True, timeout=WAIT).text
    assert "server_open_requests 0" in open_now

    call = several.stub().Generate(ask([1, 2], n=8, logprobs=20, temperature=1.0, **ENDLESS))
    next(call)
    several.end(WAIT)
    code, text = refusal(lambda: list(call))
    assert code is CODE.UNAVAILABLE
    assert text == "the server ends, and this request was not done within 0.3 s"
    until(lambda: any("1 requests were ended" in line for line in several.lines), str(several.lines))
    assert not any(is_alive(pid) for pid in fronts)


def end_of(call: Any) -> grpc.StatusCode:
    with contextlib.suppress(grpc.RpcError):
        collect(call)
    code: grpc.StatusCode = call.code()
    return code


def collect_own(engine: Any, seed: int) -> list[int]:
    sampling = SamplingParameters(temperature=1.0, seed=seed, max_tokens=10, logprobs=0)
    (request,) = engine.generate(["white smoke"], sampling)
    return [token.id for token in request.tokens]


def test_a_front_end_that_takes_nothing_counts_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[object] = []

    class Thread:
        def post(self, _sink: object, _key: int, command: object) -> None:
            posted.append(command)

    monkeypatch.setattr(frontends, "MAX_BEHIND", 4)

    async def run() -> None:
        front = frontends.Frontend(0, Thread())  # type: ignore[arg-type]
        os.kill(front.process.pid, signal.SIGSTOP)
        batch = [(ALL, Failed("x" * 100_000))]
        for _ in range(100):
            front.deliver(batch)
        await asyncio.wait_for(front.gone.wait(), WAIT)
        assert front.process.returncode == -signal.SIGKILL

    asyncio.run(run())
    assert posted == [Leave()]


def test_a_server_over_two_ranks_gives_what_one_gives_and_ends_with_its_ranks() -> None:
    fields = {"temperature": 1.0, "max_tokens": 10, "logprobs": 0}
    config = replace(ServerConfig(random="tiny-odd", max_batch=8), device="cpu").normalised()[0]
    alone = build(config)
    with serving(
        "--random", "tiny-odd", "--tensor-parallel", "2", "--max-batch", "8", "--drain", "0.2"
    ) as process:
        (rank,) = children(process.process.pid)
        stub = process.stub()
        for seed in range(3):
            (answer,) = collect(stub.Generate(ask("white smoke", seed=seed, **fields), timeout=WAIT)).values()
            assert answer.ids == collect_own(alone.engine, seed)
        given = stub.Embed(pb.EmbedRequest(ids=pb.TokenIds(ids=[300, 7])), timeout=WAIT)
        assert given.rows.data == alone.embed(torch.tensor([300, 7])).numpy().tobytes()
        call = steps_slowly(stub)
        process.end(WAIT)
        assert refusal(lambda: list(call))[0] is CODE.UNAVAILABLE
        assert not is_alive(rank)


def test_a_rank_killed_amid_a_request_fails_the_engine_and_the_server_says_why() -> None:
    with serving("--tensor-parallel", "2", "--max-batch", "8") as process:
        (rank,) = children(process.process.pid)
        stub = process.stub()
        call = steps_slowly(stub)
        os.kill(rank, signal.SIGKILL)
        said = "the engine has failed: RankError: rank 1: killed by SIGKILL"
        assert refusal(lambda: list(call)) == (CODE.INTERNAL, said)
        health = stub.Health(pb.HealthRequest(), timeout=WAIT)
        assert (health.state, health.error) == (pb.HEALTH_STATE_FAILED, said)
        with pytest.raises(
            ServerProcessError, match=r"ended with status 1; .*RankError: rank 1: killed by SIGKILL"
        ):
            process.end(WAIT)


def test_front_ends_and_ranks_end_with_the_engines_process() -> None:
    with serving("--tensor-parallel", "2", "--frontends", "2") as process:
        others = children(process.process.pid)
        assert len(others) == 3
        call = steps_slowly(process.stub())
        process.kill()
        code, _ = refusal(lambda: list(call))
        assert code in (CODE.INTERNAL, CODE.UNAVAILABLE)
        until(lambda: not any(is_alive(pid) for pid in others), "they have ended")
