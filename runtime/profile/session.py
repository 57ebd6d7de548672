"""One engine held in steady decode steps, measured in several ways one after the other."""

import gc
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import torch

from runtime.clock import NO_CLOCK, Clock
from runtime.engine import Engine
from runtime.profile.clock import ReplayEvents, StepClock
from runtime.profile.record import HostPart, add_host_parts, record
from runtime.profile.trace import Replay, Trace, gaps, kernels, launches, replays, violations
from runtime.request import Request, SamplingParameters

WARM_STEPS = 20
TRACE_WARM_STEPS = 5
ROUNDS = 4  # of throughput
TRACED_STEPS = 100  # beyond that a trace is too large to open


class ProfileError(ValueError):
    """What was asked cannot be profiled; says what would do."""


@dataclass(frozen=True)
class Spread:
    """Of some values: the median, and the 99th percentile by nearest rank."""

    median: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarize at least one value."""
        ordered = sorted(values)
        return cls(statistics.median(ordered), ordered[-(-99 * len(ordered) // 100) - 1])


@dataclass
class Figures:
    """One engine's; times are microseconds. A spread that could not be measured (no GPU, no graph) is missing.

    Attributes:
        tokens, seconds: delivered, and in what time, while nothing but the host's clock was read.
        step: then, from the end of one to the end of the next.
        parts: the host's, without profiler; "preparation" is their sum up to the replay's launch.
        event_gaps: by events beside each replay, without profiler: "to copies", "to replay".
        traced_gaps: by the profiler: "idle", "to activity", "to replay".
        traced_step: from one replay's start to the next one's under the profiler: the more it exceeds the step
            without, the less its gaps say.
        launches, calls, kernels: a step's, under the profiler; calls are all CUDA calls.
        violations: see `trace.violations`, under the profiler.
    """

    overlap: bool
    batch: int
    tokens: int = 0
    seconds: float = 0.0
    step: Spread | None = None
    parts: dict[str, Spread] = field(default_factory=dict)
    event_gaps: dict[str, Spread] = field(default_factory=dict)
    traced_gaps: dict[str, Spread] = field(default_factory=dict)
    traced_step: Spread | None = None
    launches: float = 0.0
    calls: float = 0.0
    kernels: float = 0.0
    violations: dict[str, int] = field(default_factory=dict)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def step_us(self) -> float:
        """Mean time of a step."""
        return self.seconds / self.tokens * self.batch * 1e6


@dataclass(frozen=True)
class Timeline:
    """A traced loop, for pictures."""

    overlap: bool
    host: Sequence[HostPart]
    trace: Trace
    replays: Sequence[Replay]


class Session:
    """An engine whose every lane decodes: requests of `context` random prompt tokens that outlast all measurements.

    Args:
        engine: without other work, with room for `batch` sequences of `length_needed(...)` tokens.
        overlap: whether the engine overlaps, for the figures.
        sampling: of every request; `length_needed(...)` less the context are its tokens.

    Raises:
        ProfileError: the engine ended a request while it was brought there.
    """

    def __init__(
        self,
        engine: Engine,
        overlap: bool,
        batch: int,
        context: int,
        sampling: SamplingParameters,
        vocab_size: int,
    ) -> None:
        self.figures = Figures(overlap, batch)
        self._engine = engine
        self._steps_us: list[float] = []
        prompts = torch.randint(0, vocab_size, (batch, context), generator=torch.Generator().manual_seed(0))
        self._requests: list[Request] = [
            engine.submit(prompt, replace(sampling, seed=lane))
            for lane, prompt in enumerate(prompts.tolist())
        ]
        while not all(request.tokens for request in self._requests):
            self.advance(1)
        self.advance(WARM_STEPS)

    def advance(self, steps: int) -> int:
        """Make steps; returns how many tokens they gave.

        Raises:
            ProfileError: a request has ended, so that the steps are no longer of all lanes.
        """
        tokens = sum(len(self._engine.step()) for _ in range(steps))
        for request in self._requests:
            if request.finish_reason is not None:
                raise ProfileError(
                    f"a request ended after {len(request.tokens)} tokens ({request.finish_reason}{request.error});"
                    " profile fewer steps, or a shorter context"
                )
        return tokens

    def throughput(self, steps: int) -> None:
        """Add a round to the figures' tokens and seconds."""
        gc.collect()  # the pause of a full collection would count for whichever engine it comes to
        self.advance(1)  # what has been in flight since the last round would come for nothing
        moments = [time.perf_counter()]
        for _ in range(steps):
            self.figures.tokens += self.advance(1)
            moments.append(time.perf_counter())
        self.figures.seconds += moments[-1] - moments[0]
        self._steps_us += [(end - start) * 1e6 for start, end in pairwise(moments)]
        self.figures.step = Spread.of(self._steps_us)

    def host_parts(self, steps: int) -> None:
        """Time the host's parts of steps."""
        clock = StepClock()
        self._timed(clock, steps)
        parts = clock.parts_us()
        if parts:
            self.figures.parts = {"preparation": Spread.of(clock.preparation_us())}
            self.figures.parts |= {part: Spread.of(values) for part, values in parts.items()}

    def event_gaps(self, steps: int) -> None:
        """Time the GPU between replays by events; on a GPU only."""
        events = ReplayEvents(keep=steps)
        self._timed(events, steps)
        torch.cuda.synchronize()
        gaps = events.drain()
        if gaps:
            self.figures.event_gaps = {
                "to copies": Spread.of([gap.to_copies for gap in gaps]),
                "to replay": Spread.of([gap.to_replay for gap in gaps]),
            }

    def traced(self, steps: int, path: Path) -> Timeline:
        """Profile steps and keep their trace at `path`."""
        clock = StepClock()
        recording = record(lambda: self._timed(clock, steps), path, lambda: self.advance(TRACE_WARM_STEPS))
        host = recording.host_parts(clock.steps())
        add_host_parts(path, host)
        seen = recording.trace()
        found = replays(seen)
        figures = self.figures
        between = gaps(seen, found)
        if between:
            figures.traced_gaps = {
                "idle": Spread.of([gap.idle for gap in between]),
                "to activity": Spread.of([gap.to_activity for gap in between]),
                "to replay": Spread.of([gap.to_replay for gap in between]),
            }
            figures.traced_step = Spread.of(
                [later.start - earlier.start for earlier, later in pairwise(found)]
            )
        figures.launches = launches(seen) / steps
        figures.calls = len(seen.calls) / steps
        figures.kernels = kernels(seen) / steps
        figures.violations = dict(violations(seen))
        return Timeline(figures.overlap, host, seen, found)

    def _timed(self, clock: Clock, steps: int) -> None:
        gc.collect()
        self._engine.clock = clock
        try:
            self.advance(steps)
        finally:
            self._engine.clock = NO_CLOCK


def length_needed(batch: int, context: int, steps: int, max_step_tokens: int) -> int:
    """Tokens that each sequence of a `Session` reaches at most in a round of every measurement of `steps` steps.

    While prompts are taken in, prefill and decode take turns: the first request decodes as often as there are prefills.
    """
    prefills = 2 * -(-batch * context // max_step_tokens) + 2
    between = WARM_STEPS + TRACE_WARM_STEPS + 2 * ROUNDS
    return context + prefills + between + 3 * steps + min(steps, TRACED_STEPS)
