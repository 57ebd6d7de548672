"""An engine over several ranks: the same as over one, but that each step also goes to the others."""

import atexit
import gc
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import torch

from runtime.beam import BeamParameters
from runtime.checkpoint import require_divisible
from runtime.embeddings import InputEmbeddings
from runtime.engine import Engine, EngineOptions
from runtime.model import Model
from runtime.parallel.connect import meeting, require_devices
from runtime.parallel.group import Group
from runtime.parallel.messages import PlanWriter
from runtime.parallel.processes import START_SECONDS, Processes, RankError
from runtime.parallel.source import EngineSource
from runtime.request import Request, SamplingParameters, Token
from runtime.runner import Flight, Runner
from runtime.scheduler import StepPlan
from runtime.tokenizer import Tokenizer


class ClosedError(RuntimeError):
    """The engine was closed, or its ranks were; make another."""


class LeadRunner:
    """`Runner` of rank 0: what it runs, the others run as well."""

    def __init__(self, runner: Runner, processes: Processes) -> None:
        self.writer = PlanWriter()
        self._runner: Runner | None = runner
        self._processes = processes

    def launch(self, plan: StepPlan) -> Flight:
        """As `Runner.launch`; a step that cannot be launched ends all ranks, since the others may have begun it.

        Raises:
            RankError: a rank is gone, or the step could not be launched here.
        """
        runner = self._open()
        self._processes.send("step", self.writer.message(plan))
        try:
            return runner.launch(plan)
        except Exception as error:
            raise self._processes.failed(0, error) from error

    def read(self, flight: Flight) -> list[Token | str]:
        """As `Runner.read`.

        Raises:
            RankError: a rank is gone: what the step has given is no answer.
        """
        try:
            tokens = self._open().read(flight)
        except RuntimeError as error:
            raise self._processes.failed(0, error) from error
        self._processes.require_well()
        return tokens

    def close(self) -> None:
        """Let go of the runner, and so of its graphs."""
        self._runner = None

    def _open(self) -> Runner:
        if self._runner is None:
            raise ClosedError("engine: expected an open one, it was closed")
        return self._runner


class ParallelEngine(Engine):
    """See `Engine`; made by `Ranks.build`, to be closed before the next one is made.

    An error of a step on any rank ends the ranks: every `step` after it raises `RankError`.

    Attributes:
        is_closed: the ranks may serve another engine.
    """

    def __init__(
        self, model: Model, options: EngineOptions, tokenizer: Tokenizer | None, processes: Processes
    ) -> None:
        super().__init__(model, options, tokenizer)
        self._processes = processes
        self._lead = LeadRunner(self._runner, processes)
        self._runner = self._lead  # type: ignore[assignment]  # has the same two methods
        self.is_closed = False

    @property
    def failure(self) -> RankError | None:
        """What ended the ranks; None while they are well, step or no step."""
        return self._processes.failure

    def submit(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParameters,
        request_id: str | None = None,
        *,
        n: int = 1,
        beams: BeamParameters | None = None,
        embeddings: InputEmbeddings | None = None,
    ) -> Request:
        """See `Engine.submit`."""
        request = super().submit(prompt, sampling, request_id, n=n, beams=beams, embeddings=embeddings)
        if embeddings is not None:
            rows = embeddings.rows.detach().to("cpu", copy=True)
            given = InputEmbeddings(rows.contiguous(), embeddings.positions)
            for one in [request] if request.group is None else request.group.members:
                self._lead.writer.embeddings[one] = given
        return request

    def capture(self) -> None:
        """Capture every bucket's step, on every rank; what is not captured now is when first needed.

        Raises:
            RankError: a rank is gone.
        """
        if self.graphs is not None:
            self._processes.send("capture")
            try:
                self.graphs.capture()
            except Exception as error:
                raise self._processes.failed(0, error) from error
            self._processes.answers("captured")

    def close(self) -> None:
        """Give up requests, graphs and caches, here and on the other ranks, which then can serve another engine.

        Raises:
            RankError: a rank dies meanwhile; what is here is given up nevertheless.
        """
        if self.is_closed:
            return
        self.is_closed = True
        try:
            if self.failure is None:
                self._processes.send("close")
                if self._model.device.type == "cuda":
                    torch.cuda.synchronize(self._model.device)
        finally:
            self._flights.clear()
            self._lead.close()
            self.graphs = None
            gc.collect()  # graphs may hang in cycles, and their collectives in the group
        if self.failure is None:
            self._processes.answers("closed")


class Ranks:
    """Processes that share models, one model at a time; this process is rank 0.

    A context manager: at its end the engine is closed, the processes have ended. The end of the program closes what is open.
    """

    def __init__(self, size: int, device: str) -> None:
        """Start the other ranks and meet them.

        Args:
            size: ranks, this process among them.
            device: "cuda", a GPU each, or "cpu".

        Raises:
            DevicesError: there are fewer GPUs than ranks.
            RankError: a rank died, or cannot reach the others.
        """
        require_devices(device, size)
        self.size = size
        self._group: Group | None = None
        self._engine: ParallelEngine | None = None
        self._processes = Processes(size, self._abort)
        try:
            self._processes.answers("started", START_SECONDS)
            with meeting(device, size) as place:
                self._processes.send("join", place)
                self._group, self._device = self._processes.beside(lambda: place.join(0))
                self._processes.answers("joined")
        except BaseException:
            self._processes.kill()
            raise
        # While threads still run: the end of an interpreter stops them wherever they are, inside a library too.
        atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def failure(self) -> RankError | None:
        """What ended the ranks; None while they are well."""
        return self._processes.failure

    def build(self, source: EngineSource, tokenizer: Tokenizer | None = None) -> ParallelEngine:
        """An engine over all ranks.

        Raises:
            ShardError: so many ranks cannot share the model; nothing was built.
            WeightsError: a checkpoint is not what its configuration says.
            RankError: a rank is gone, could not build its part, or has other weights than rank 0.
            ClosedError: the ranks were closed, or serve an engine that was not.
        """
        if self._group is None:
            raise ClosedError("ranks: expected open ones, they were closed")
        self._processes.require_well()
        if self._engine is not None and not self._engine.is_closed:
            raise ClosedError("ranks: they serve an engine already; close it first")
        require_divisible(source.config, self.size)
        self._processes.send("build", source)
        engine = refused = None
        try:
            model, digests = source.model(self._device, self._group)
            engine = ParallelEngine(model, source.options, tokenizer, self._processes)
        except Exception as error:  # noqa: BLE001 - the others answer first, then it is raised
            refused = error
        try:
            theirs = self._processes.answers("built")
        except RankError as error:
            refused = refused or error
        if refused is not None or engine is None:
            if self.failure is None:
                self._processes.send("close")
                self._processes.answers("closed")
            assert refused is not None
            raise refused
        self._engine = engine
        for rank, answer in theirs.items():
            other = next((name for name, digest in digests.items() if answer.get(name) != digest), None)
            if other is not None:
                engine.close()
                raise RankError(rank, f"{other}: its weights are not those of rank 0")
        return engine

    def close(self) -> None:
        """Close the engine, leave the group, wait for the processes to end.

        Raises:
            RankError: one did not end in seconds; all are gone nevertheless.
            GroupError: a graph is alive that holds the group.
        """
        if self._group is None:
            return
        atexit.unregister(self.close)
        group, self._group = self._group, None
        engine, self._engine = self._engine, None
        try:
            if engine is not None:
                engine.close()
            if self.failure is None:
                self._processes.send("leave")
                group.close()
        finally:
            self._processes.end() if self.failure is None else self._processes.kill()

    def _abort(self) -> None:
        if self._group is not None:
            self._group.abort()
