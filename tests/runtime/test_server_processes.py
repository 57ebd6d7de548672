"""`python -m runtime serve` as a process, or several: ready, drained, killed."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from runtime.proto import engine_pb2 as pb
from runtime.proto.engine_pb2_grpc import EngineStub
from runtime.request import SamplingParameters
from runtime.server import frontends
from runtime.server.config import ServerConfig, why_no_shared_port
from runtime.server.messages import ALL, Failed, Leave
from runtime.server.served import build
from tests.runtime.server_kit import WAIT, ask, collect, refusal, until

ROOT = Path(__file__).parents[2]
CODE = grpc.StatusCode
START = 60.0
ENDLESS = {"max_tokens": 200, "ignore_stop_ids": True}


class Process:
    """The command, its output as it comes, and channels to it."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "runtime", "serve", "--random", "tiny", "--device", "cpu", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        self.address = ""

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def wait_ready(self) -> None:
        for _ in range(int(START / WAIT)):
            try:
                until(lambda: any("serving at" in line for line in self.lines), f"ready: {self.lines}")
                break
            except AssertionError:
                assert self.process.poll() is None, self.lines
        (line,) = [line for line in self.lines if "serving at" in line]
        found = re.search(r"serving at ([\d.]+:\d+)", line)
        assert found is not None
        self.address = found[1]

    def stub(self) -> EngineStub:
        """Over a connection of its own, which the system gives to any of the processes at the port."""
        options = (("grpc.use_local_subchannel_pool", 1),)
        return EngineStub(grpc.insecure_channel(self.address, options))

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT)


@contextmanager
def serving(*arguments: str) -> Iterator[Process]:
    process = Process(*arguments)
    try:
        process.wait_ready()
        yield process
    finally:
        process.process.kill()
        process.process.wait()


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def is_alive(pid: int) -> bool:
    """A process whose parent is gone may stay a zombie where nobody reaps."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


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
        assert process.lines[1] == "ending within 20 s\n"


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
    assert several.end() == 0
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


def test_front_ends_end_with_the_engines_process() -> None:
    with serving("--frontends", "2") as process:
        fronts = children(process.process.pid)
        stub = process.stub()
        call = steps_slowly(stub)
        process.process.kill()
        code, _ = refusal(lambda: list(call))
        assert code in (CODE.INTERNAL, CODE.UNAVAILABLE)
        until(lambda: not any(is_alive(pid) for pid in fronts), "they have ended")


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
