"""Carries out commands between the engine's steps, and says what came of them; the engine's thread alone calls it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import grpc
import numpy as np

from runtime.batch import to_device
from runtime.engine import Engine, Output
from runtime.engine_metrics import EngineMetrics
from runtime.errors import RequestError
from runtime.metrics import MetricReporter
from runtime.request import Request, check_prompt
from runtime.server import counts
from runtime.server.messages import (
    Abort,
    Accepted,
    Batch,
    Cancel,
    Command,
    Done,
    Embed,
    Embedded,
    Event,
    Export,
    Exported,
    Finished,
    Leave,
    Part,
    Ping,
    Refused,
    Rows,
    Submit,
)
from runtime.server.served import Served


class Sink(Protocol):
    """Where a sender of commands gets its events."""

    def deliver(self, batch: Batch) -> None:
        """Take events; called by the engine's thread, so it never waits."""
        ...


@dataclass(eq=False)
class _Call:
    """One `Submit` that has not ended.

    Attributes:
        leader: that the engine's metrics count it by.
        left: places of the answers that have not ended, by request id.
    """

    sink: Sink
    key: int
    leader: Request
    left: dict[str, int]


class Desk:
    """See the module.

    Args:
        max_batch: most requests in a step.
        max_waiting: most requests that may wait for a place in one.
        gather: requests that have to be there before an idle engine begins.
    """

    def __init__(self, served: Served, max_batch: int, max_waiting: int, gather: int = 1) -> None:
        self._served = served
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._gather = gather
        self._has_begun = False
        self._reporter = MetricReporter(counts.METRICS)
        self._metrics = None if served.engine is None else EngineMetrics(self._reporter, served.engine)
        self._calls: dict[tuple[Sink, int], _Call] = {}
        self._by_id: dict[str, _Call] = {}
        self._told: dict[Sink, Batch] = defaultdict(list)
        self.sinks: set[Sink] = set()

    def has_work(self) -> bool:
        """Whether there is a step to be done now."""
        engine = self._served.engine
        if engine is None or not engine.has_work():
            self._has_begun = False
        elif not self._has_begun:
            self._has_begun = len(engine.scheduler.waiting) >= self._gather
        return self._has_begun

    def require_well(self) -> None:
        """Raise what has broken the engine while nobody asked it for a step."""
        failure = self._served.failure()
        if failure is not None:
            raise failure

    def step(self) -> None:
        """One step of the engine, and what it gave."""
        assert self._served.engine is not None
        outputs = self._served.engine.step()
        if not outputs:
            return
        if self._metrics is not None:
            self._metrics.delivered(outputs)
        for output in outputs:
            self._part(output)

    def flush(self) -> None:
        """Hand over everything that came of commands and steps since the last time."""
        told, self._told = self._told, defaultdict(list)
        for sink, batch in told.items():
            sink.deliver(batch)

    def handle(self, sink: Sink, key: int, command: Command) -> None:
        """Carry out a command; what concerns its sender alone is told to it, not raised."""
        self.sinks.add(sink)
        try:
            answer = self._answer(sink, key, command)
        except RequestError as error:
            answer = self._refused(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if answer is not None:
            self._tell(sink, key, answer)

    def _answer(self, sink: Sink, key: int, command: Command) -> Event | None:
        if isinstance(command, Submit):
            return self._submit(sink, key, command)
        if isinstance(command, Cancel):
            if (sink, key) in self._calls:
                self._abort(self._calls[sink, key], command.reason, told=False)
            return None
        if isinstance(command, Abort):
            if command.request_id not in self._by_id:
                text = f"request_id: {command.request_id} is not being served"
                return Refused(grpc.StatusCode.NOT_FOUND, text)
            self._abort(self._by_id[command.request_id], "asked", told=True)
            return Done()
        if isinstance(command, Embed):
            return self._embed(command.ids)
        if isinstance(command, Export):
            return self._export()
        if isinstance(command, Leave):
            for call in [call for call in self._calls.values() if call.sink is sink]:
                self._abort(call, "front end gone", told=False)
            self.sinks.discard(sink)
            self._told.pop(sink, None)
            return None
        assert isinstance(command, Ping)
        return Done()

    def _submit(self, sink: Sink, key: int, command: Submit) -> Event:
        engine = self._served.engine
        if engine is None:
            return self._refused(grpc.StatusCode.UNIMPLEMENTED, "this server only gives embeddings")
        if self._is_full(engine):
            text = f"{self._max_waiting} requests wait already; ask again later, or another server"
            return self._refused(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        request = engine.submit(
            command.prompt,
            command.sampling,
            command.request_id or None,
            n=command.n,
            beams=command.beams,
            embeddings=command.embeddings(),
        )
        answers = request.siblings
        call = _Call(sink, key, request, {answer.id: place for place, answer in enumerate(answers)})
        self._calls[sink, key] = call
        for answer in answers:
            self._by_id[answer.id] = call
        if self._metrics is not None:
            self._metrics.submitted(request)
        return Accepted(request.id, len(answers))

    def _is_full(self, engine: Engine) -> bool:
        """Requests that the next step takes in do not wait: there is room for as many as it has places."""
        places = max(0, self._max_batch - len(engine.scheduler.running))
        return len(engine.scheduler.waiting) >= self._max_waiting + places

    def _part(self, output: Output) -> None:
        request = output.request
        if request.id not in self._by_id:  # the engine's builder warmed it up with this one
            return
        call = self._by_id[request.id]
        tokens = () if output.token is None else (output.token,)
        if request.in_search:
            tokens = tuple(request.tokens)
        place = call.left[request.id]
        ended = _ended(request)
        self._tell(call.sink, call.key, Part(place, tokens, output.text, ended))
        if ended is not None:
            self._forget(call, request.id)

    def _abort(self, call: _Call, reason: str, *, told: bool) -> None:
        """End what is left of a call; `told`: its caller still listens."""
        engine, places = self._served.engine, dict(call.left)
        assert engine is not None
        siblings: Sequence[Request] = call.leader.siblings
        engine.abort(next(iter(places)))
        self._reporter.increase("server_aborts_total", labels={"reason": reason})
        if self._metrics is not None:
            self._metrics.ended(call.leader)
        for answer in siblings:
            if answer.id in places:
                if told:
                    self._tell(call.sink, call.key, Part(places[answer.id], (), "", _ended(answer)))
                self._forget(call, answer.id)

    def _forget(self, call: _Call, request_id: str) -> None:
        del self._by_id[request_id]
        del call.left[request_id]
        if not call.left:
            del self._calls[call.sink, call.key]

    def _embed(self, ids: tuple[int, ...]) -> Event:
        config = self._served.config
        checked = check_prompt(ids, config.vocab_size, config.max_length, 0)
        on_device = to_device(np.array(checked, np.int64), self._served.device)
        return Embedded(Rows.of(self._served.embed(on_device)))

    def _export(self) -> Event:
        if self._metrics is not None:
            self._metrics.update()
        self._reporter.set("server_open_requests", len(self._calls))
        return Exported(self._reporter.expose())

    def _refused(self, code: grpc.StatusCode, text: str) -> Refused:
        self._reporter.increase("server_refusals_total", labels={"status": code.name})
        return Refused(code, text)

    def _tell(self, sink: Sink, key: int, event: Event) -> None:
        self._told[sink].append((key, event))


def _ended(request: Request) -> Finished | None:
    if request.finish_reason is None:
        return None
    assert request.aux is not None
    return Finished(request.finish_reason, request.error, request.aux)
