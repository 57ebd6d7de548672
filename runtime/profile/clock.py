"""Stopwatches for the engine's steps. Each is an engine's `clock`: `begin()` at a step's start, `mark(part)` after each part."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch

# Parts of a step that make the next replay ready; what comes after waits for results and hands them out.
PREPARATION = ("schedule", "lay out", "copy", "check", "replay")
BEFORE_COPIES, BEFORE_REPLAY, REPLAYED = "lay out", "check", "replay"


@dataclass(frozen=True)
class Stretch:
    """A part of a step on the host, in nanoseconds of the stopwatch's clock."""

    part: str
    start: int
    end: int


class StepClock:
    """Times each part of each step on the host; keeps them all, so it is for a measurement and not for a server.

    Args:
        now: nanoseconds of a monotonic clock.
    """

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now = now
        self._steps: list[list[tuple[str, int]]] = []

    def begin(self) -> None:
        """A step starts."""
        self._steps.append([("", self._now())])

    def mark(self, part: str) -> None:
        """A part ended, and the next one starts."""
        self._steps[-1].append((part, self._now()))

    def steps(self) -> list[list[Stretch]]:
        """Every step's parts in the order in which they ended; a part may come more than once."""
        return [
            [Stretch(part, start, end) for (_, start), (part, end) in pairwise(marks)]
            for marks in self._steps
        ]

    def parts_us(self) -> dict[str, list[float]]:
        """Microseconds of each part, one number a step in which it came, parts as they first appear."""
        parts: dict[str, list[float]] = {}
        for step in self.steps():
            spent: dict[str, int] = {}
            for stretch in step:
                spent[stretch.part] = spent.get(stretch.part, 0) + stretch.end - stretch.start
            for part, nanoseconds in spent.items():
                parts.setdefault(part, []).append(nanoseconds / 1e3)
        return parts

    def preparation_us(self) -> list[float]:
        """Microseconds of each step's `PREPARATION`."""
        return [
            sum(stretch.end - stretch.start for stretch in step if stretch.part in PREPARATION) / 1e3
            for step in self.steps()
        ]


class Event(Protocol):
    """A point in a stream's work: `torch.cuda.Event` with timing."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to the later one."""
        ...


@dataclass(frozen=True)
class EventGap:
    """From the end of a replay, in microseconds on the GPU's clock.

    Attributes:
        to_copies: until the next step's first copy could start.
        to_replay: until the next replay could start, its copies done.
    """

    to_copies: float
    to_replay: float


@dataclass(frozen=True)
class _Between:
    """Events from a replay's end to the next one's start."""

    end: Event
    copies: Event
    start: Event


def timed_event() -> Event:
    """A CUDA event that knows when it was reached."""
    event: Event = torch.cuda.Event(enable_timing=True)
    return event


class ReplayEvents:
    """Times the GPU between replays by three events a step, with no profiler and no wait.

    Only replays in consecutive steps count: what lies between others is a prefill or an eager step, not idleness.

    Args:
        keep: most gaps kept unread; the oldest go first.
        make_event: what gives a new event.
    """

    def __init__(self, keep: int = 4096, make_event: Callable[[], Event] = timed_event) -> None:
        self._make_event = make_event
        self._pending: deque[_Between] = deque(maxlen=keep)
        self._end: Event | None = None
        self._copies: Event | None = None
        self._start: Event | None = None
        self._replayed = False
        self._idle_us = 0.0

    def begin(self) -> None:
        """A step starts; if the last one replayed nothing, what comes is no gap between replays."""
        if not self._replayed:
            self._end = None
        self._copies = self._start = None
        self._replayed = False

    def mark(self, part: str) -> None:
        """Record what the part's end stands for, on the current stream."""
        if part == BEFORE_COPIES:
            self._copies = self._recorded()
        elif part == BEFORE_REPLAY:
            self._start = self._recorded()
        elif part == REPLAYED:
            end = self._recorded()
            if self._end is not None and self._copies is not None and self._start is not None:
                self._pending.append(_Between(self._end, self._copies, self._start))
            self._end = end
            self._replayed = True

    def drain(self) -> list[EventGap]:
        """Gaps that the GPU has passed since the last call, oldest first; none is waited for."""
        gaps = []
        while self._pending and self._pending[0].start.query():
            between = self._pending.popleft()
            gaps.append(
                EventGap(
                    between.end.elapsed_time(between.copies) * 1e3,
                    between.end.elapsed_time(between.start) * 1e3,
                )
            )
        self._idle_us += sum(gap.to_replay for gap in gaps)
        return gaps

    def idle_seconds(self) -> float:
        """Seconds between replays since the start, as far as the GPU has come; copies that a replay waits for count."""
        self.drain()
        return self._idle_us / 1e6

    def _recorded(self) -> Event:
        event = self._make_event()
        event.record()
        return event
