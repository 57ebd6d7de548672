"""Runs a loop under torch.profiler and keeps its Chrome trace, the host's parts of each step among it."""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from runtime.profile.clock import Stretch
from runtime.profile.trace import WINDOW, Trace, cut, read_events, violations

_PARTS_ROW = 1  # a thread number that no real thread has


@dataclass(frozen=True)
class HostPart:
    """A part of a step on the host, in a trace's microseconds."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Recording:
    """A loop's events and the moment of its start, in `time.perf_counter_ns`."""

    events: list[Mapping[str, Any]]
    started: int

    def trace(self) -> Trace:
        """What CUDA saw of the loop."""
        return cut(self.events)

    def host_parts(self, steps: Sequence[Sequence[Stretch]]) -> list[HostPart]:
        """Parts that a `StepClock` timed in the loop, on the trace's clock."""
        zero = self.trace().start
        return [
            HostPart(one.part, zero + (one.start - self.started) / 1e3, zero + (one.end - self.started) / 1e3)
            for step in steps
            for one in step
        ]


@dataclass(frozen=True)
class Audit:
    """Counts by name, zeros included, and the trace they come from."""

    counts: Counter[str]
    trace: Trace


def record(loop: Callable[[], object], path: Path, warm_up: Callable[[], object] | None = None) -> Recording:
    """Profile `loop` (CPU and, where there is one, GPU) and keep the trace at `path`; the GPU has finished on return.

    Args:
        warm_up: runs under the profiler before the loop, since the profiler's own first steps take long; does not count.
    """
    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiler:
        with record_function(
            "warm-up"
        ):  # the first one takes longer, and the next one's start is taken for exact
            if warm_up is not None:
                warm_up()
        before = time.perf_counter_ns()
        with record_function(WINDOW):
            started = (before + time.perf_counter_ns()) // 2
            loop()
        if on_gpu:
            torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))
    return Recording(read_events(path), started)


def add_host_parts(path: Path, parts: Sequence[HostPart]) -> None:
    """Put a step's parts into a kept trace as a row of their own."""
    content = json.loads(path.read_text())
    row: dict[str, Any] = {"pid": "engine", "tid": _PARTS_ROW}
    content["traceEvents"].append(
        {"ph": "M", "name": "thread_name", "args": {"name": "parts of a step"}, **row}
    )
    content["traceEvents"] += [
        {
            "ph": "X",
            "cat": "host part",
            "name": part.name,
            "ts": part.start,
            "dur": part.end - part.start,
            **row,
        }
        for part in parts
    ]
    path.write_text(json.dumps(content))


def audit(loop: Callable[[], object], path: Path, warm_up: Callable[[], object] | None = None) -> Audit:
    """Count what a decode loop must not do, over its trace, which is kept at `path`.

    On a GPU the caching allocator's numbers join in: "tensors made" counts all that it was asked for, "segments taken" what
    it passed on to the device.
    """
    before, after = dict[str, int](), dict[str, int]()

    def counted() -> None:
        before.update(_allocator())
        loop()
        after.update(_allocator())

    recording = record(counted, path, warm_up)
    trace = recording.trace()
    counts = violations(trace)
    counts.update({name: after[name] - before[name] for name in after})
    return Audit(counts, trace)


def _allocator() -> dict[str, int]:
    if not torch.cuda.is_available():
        return {}
    stats = torch.cuda.memory_stats()
    return {
        "tensors made": stats.get("allocation.all.allocated", 0),
        "segments taken": stats.get("num_device_alloc", 0),
    }
