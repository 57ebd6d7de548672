"""A server of a small model in this process, on a loop of its own, and requests to it over loopback."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc

from runtime.engine import Engine, EngineOptions
from runtime.proto import engine_pb2 as pb
from runtime.proto.engine_pb2_grpc import EngineStub
from runtime.server.client import EngineClient
from runtime.server.config import Role, ServerConfig
from runtime.server.engine_thread import EngineThread
from runtime.server.listen import LoopSink, drain, listen
from runtime.server.served import TINY_TOKENIZER, ModelInfo, Served
from runtime.server.service import EngineService
from runtime.weights import random_weights
from tests.runtime.kit import CONFIG as SMALL
from tests.runtime.kit import CPU, make_model

CONFIG = replace(SMALL, vocab_size=304, max_length=4096)
WEIGHTS = random_weights(CONFIG, 5, CPU)
INFO = ModelInfo("small", Role.GENERATE, TINY_TOKENIZER)
OPTIONS = EngineOptions(pages=300, page_size=4, max_batch=24, max_step_tokens=64)
WAIT = 20.0
"""Seconds after which a test that would hang fails."""


def make_engine(**options: Any) -> Engine:
    return Engine(make_model(CONFIG, WEIGHTS), replace(OPTIONS, **options), INFO.read_tokenizer())


@dataclass
class Running:
    """A server and a channel to it; a context manager.

    Args:
        engine: to be served; None takes one of `OPTIONS`.
        role: EMBED serves embeddings alone.
        limits: fields of `ServerConfig`.
    """

    engine: Engine | None = None
    role: Role = Role.GENERATE
    stall_seconds: float = 5.0
    limits: dict[str, Any] = field(default_factory=dict)

    def __enter__(self) -> "Running":
        self.config = replace(ServerConfig(random="tiny", max_batch=OPTIONS.max_batch), **self.limits)
        self.engine = self.engine or make_engine()
        self._loop = asyncio.new_event_loop()
        self._runner = threading.Thread(target=self._loop.run_forever)
        self._runner.start()
        self.thread = EngineThread(
            self._served, self.config.max_batch, self.config.max_waiting, self.config.gather
        )
        info = self.thread.ready.result(WAIT)
        self.port = self.on_loop(self._start(info))
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")
        self.stub = EngineStub(self.channel)
        return self

    def __exit__(self, *_error: object) -> None:
        self.channel.close()
        self.on_loop(drain(self.server, self.client, 0))
        assert self.thread.stop(WAIT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._runner.join()
        self._loop.close()

    def on_loop(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT)

    async def _start(self, info: ModelInfo) -> int:
        sink: LoopSink
        self.client = EngineClient(
            lambda key, command: self.thread.post(sink, key, command), self.config.max_queued
        )
        sink = LoopSink(self._loop, self.client)
        handlers = EngineService(self.client, info, self.stall_seconds).handlers()
        self.server, port = listen(handlers, self.config, 0, shared=False)
        await self.server.start()
        return port

    def _served(self) -> Served:
        assert self.engine is not None
        engine = self.engine if self.role is Role.GENERATE else None
        return Served(replace(INFO, role=self.role), CONFIG, CPU, engine, self.engine._model.embed)


@dataclass
class Answer:
    """What a stream gave one answer, its parts put together."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    text: str = ""
    finish: pb.Finish | None = None
    parts: int = 0


def collect(stream: Any) -> dict[int, Answer]:
    """Read a stream to its end."""
    answers: dict[int, Answer] = {}
    for response in stream:
        for part in response.parts:
            answer = answers.setdefault(part.answer, Answer())
            assert answer.finish is None
            answer.ids += [token.id for token in part.tokens]
            answer.logprobs += [token.logprob if token.HasField("logprob") else None for token in part.tokens]
            answer.text += part.text
            answer.parts += 1
            if part.HasField("finish"):
                answer.finish = part.finish
    return answers


def ask(prompt: str | list[int], **fields: Any) -> pb.GenerateRequest:
    """A request; names of sampling fields go there."""
    sampling = {
        name: fields.pop(name) for name in list(fields) if name in pb.Sampling.DESCRIPTOR.fields_by_name
    }
    request = pb.GenerateRequest(sampling=pb.Sampling(**sampling), **fields)
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.ids.ids.extend(prompt)
    return request


def refusal(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    """The status that a call ends with; fails if it ends well."""
    try:
        call()
    except grpc.RpcError as error:
        return error.code(), error.details()
    raise AssertionError("the call ended well")


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for what other threads do."""
    pause = threading.Event()
    for _ in range(int(WAIT / 0.01)):
        if holds():
            return
        pause.wait(0.01)
    raise AssertionError(f"{what}: not after {WAIT:g} s")


def children(pid: int) -> list[int]:
    """The processes that a process has started and that have not ended."""
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def is_alive(pid: int) -> bool:
    """A process whose parent is gone may stay a zombie where nobody reaps."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def free_pages(running: Running) -> bool:
    """Whether no request holds a page."""
    assert running.engine is not None
    pool = running.engine._pool
    return pool.available == pool.capacity


def metric(running: Running, line: str) -> float:
    """The value of a line of the exported metrics; 0 where there is none."""
    text = running.stub.Metrics(pb.MetricsRequest(), timeout=WAIT).text
    return next((float(one.rsplit(" ", 1)[1]) for one in text.splitlines() if one.startswith(f"{line} ")), 0)
