"""Two engines alike but for overlap, measured in turns in one process."""

from collections.abc import Callable
from pathlib import Path

import torch

from runtime.engine import Engine
from runtime.profile.session import ROUNDS, TRACED_STEPS, Figures, Session, Timeline
from runtime.request import SamplingParameters


class Pair:
    """`make_engine(overlap)` without and with overlap, both in steady decode steps.

    Raises:
        ProfileError: a request ended on the way.
    """

    def __init__(
        self,
        make_engine: Callable[[bool], Engine],
        batch: int,
        context: int,
        sampling: SamplingParameters,
        vocab_size: int,
    ) -> None:
        self._sessions = tuple(
            Session(make_engine(overlap), overlap, batch, context, sampling, vocab_size)
            for overlap in (False, True)
        )

    @property
    def figures(self) -> tuple[Figures, Figures]:
        """What was measured so far, without overlap and with it."""
        off, on = self._sessions
        return off.figures, on.figures

    def measure(self, steps: int) -> None:
        """All that needs no profiler: to come before `trace`, since CUPTI leaves a process a little slower.

        Raises:
            ProfileError: a request ended on the way.
        """
        for _ in range(ROUNDS):  # in turns, so that a GPU's clock that falls, falls on both
            for session in self._sessions:
                session.throughput(steps // ROUNDS)
        for session in self._sessions:
            session.host_parts(steps)
            if torch.cuda.is_available():
                session.event_gaps(steps)

    def trace(self, steps: int, out: Path) -> tuple[Timeline, Timeline]:
        """Profile up to `TRACED_STEPS` steps of each; the traces are kept in the folder `out`.

        Raises:
            ProfileError: a request ended on the way.
            TraceError: the profiler lost records.
        """
        out.mkdir(parents=True, exist_ok=True)
        off, on = (
            session.traced(
                min(steps, TRACED_STEPS), trace_path(out, session.figures.batch, session.figures.overlap)
            )
            for session in self._sessions
        )
        return off, on


def trace_path(out: Path, batch: int, overlap: bool) -> Path:
    """Where a Chrome trace is kept."""
    return out / f"batch-{batch}-overlap-{'on' if overlap else 'off'}.json"
