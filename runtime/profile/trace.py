"""What a torch.profiler trace says: replays and the gaps between them, and calls that a decode loop must not make.

Pure functions over Chrome trace events as torch 2.11's Kineto writes them: `ts` and `dur` in microseconds, CUDA calls in the
categories `cuda_runtime` and `cuda_driver`, the GPU's work in `kernel`, `gpu_memcpy` and `gpu_memset`. A call and what it
set going share `args.correlation`; all nodes of a graph share that of their `cudaGraphLaunch`.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

WINDOW = "decode steps"
GRAPH_LAUNCH = "cudaGraphLaunch"
_NONE = -1

_CALLS = {"cuda_runtime", "cuda_driver"}
_ACTIVITIES = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "set"}
_VERSION = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")
_LAUNCH = re.compile(r"cudaGraphLaunch|cu(da)?Launch.*Kernel.*|cu(da)?(Memcpy|Memset).*")
_FORBIDDEN = {
    # A free waits for the whole device and belongs with what it takes back.
    "device allocations": re.compile(r"cudaMalloc(?!Host).*|cuMem(Alloc(?!Host).*|Create|Map)|cudaFree(?!Host).*"),
    "pinned allocations": re.compile(r"cudaMallocHost|cudaHost(Alloc|Register)|cuMem(AllocHost|Host(Alloc|Register))"),
    "device-wide syncs": re.compile(r"cudaDeviceSynchronize|cuCtxSynchronize"),
    "stream syncs": re.compile(r"cu(da)?StreamSynchronize"),
    "blocking copies": re.compile(r"cu(da)?Memcpy(?!.*Async).*"),
}  # fmt: skip
_PAGEABLE = "pageable copies"


class TraceError(ValueError):
    """A trace that does not hold what is asked of it; says what is missing and what may be done."""


@dataclass(frozen=True)
class Call:
    """A CUDA call of the host; times in microseconds."""

    name: str
    start: float
    end: float
    correlation: int


@dataclass(frozen=True)
class Activity:
    """A kernel, copy or fill on the GPU; times in microseconds.

    Attributes:
        kind: "kernel", "copy" or "set".
    """

    name: str
    kind: str
    start: float
    end: float
    correlation: int


@dataclass(frozen=True)
class Replay:
    """One launch of a graph and all that it ran; `start` and `end` are the GPU's."""

    call: Call
    activities: tuple[Activity, ...]

    @cached_property
    def start(self) -> float:
        return min(activity.start for activity in self.activities)

    @cached_property
    def end(self) -> float:
        return max(activity.end for activity in self.activities)


@dataclass(frozen=True)
class Gap:
    """Between two replays, in microseconds from the end of the first.

    Attributes:
        idle: with nothing at all on the GPU, up to the next replay's first kernel.
        to_activity: until the GPU does anything; 0 where something was under way.
        to_replay: until the next replay's first kernel; 0 where it had begun before, as dependent launches may.
    """

    idle: float
    to_activity: float
    to_replay: float


@dataclass(frozen=True)
class Trace:
    """What happened in a window of host time, each in the order of its start.

    Attributes:
        start, end: of the window, in microseconds.
        activities: set going in the window, or running in it.
    """

    start: float
    end: float
    calls: tuple[Call, ...]
    activities: tuple[Activity, ...]


def read_events(path: Path) -> list[Mapping[str, Any]]:
    """The events of a Chrome trace file.

    Raises:
        TraceError: the file holds no trace.
    """
    content = json.loads(path.read_text())
    if not isinstance(content, dict) or "traceEvents" not in content:
        raise TraceError(f"{path}: no traceEvents; expected a Chrome trace of torch.profiler")
    events: list[Mapping[str, Any]] = content["traceEvents"]
    return events


def cut(events: Iterable[Mapping[str, Any]], window: str = WINDOW) -> Trace:
    """What happened under the `record_function` of that name.

    Raises:
        TraceError: there is no such window, or more than one.
    """
    complete = [event for event in events if event.get("ph") == "X"]
    spans = [e for e in complete if e.get("cat") == "user_annotation" and e["name"] == window]
    if len(spans) != 1:
        raise TraceError(f"{window!r}: expected one annotation of that name in the trace, got {len(spans)}")
    start, end = _times(spans[0])
    calls = [
        Call(_VERSION.sub("", event["name"]), *_times(event), _correlation(event))
        for event in complete
        if event.get("cat") in _CALLS and start <= float(event["ts"]) <= end
    ]
    ours = {call.correlation for call in calls} - {_NONE}
    activities = [
        Activity(event["name"], _ACTIVITIES[event["cat"]], *_times(event), _correlation(event))
        for event in complete
        if event.get("cat") in _ACTIVITIES
        and (_correlation(event) in ours or (_times(event)[1] >= start and float(event["ts"]) <= end))
    ]
    return Trace(
        start,
        end,
        tuple(sorted(calls, key=lambda call: call.start)),
        tuple(sorted(activities, key=lambda activity: activity.start)),
    )


def replays(trace: Trace) -> list[Replay]:
    """The graph launches of a window and what they ran, in the order in which they ran.

    Raises:
        TraceError: the GPU's records of some launch are not there.
    """
    launches = {call.correlation: call for call in trace.calls if call.name == GRAPH_LAUNCH}
    ran: dict[int, list[Activity]] = {correlation: [] for correlation in launches}
    for activity in trace.activities:
        if activity.correlation in ran:
            ran[activity.correlation].append(activity)
    lost = sum(not activities for activities in ran.values())
    if lost:
        raise TraceError(
            f"{lost} of {len(launches)} graph launches have no GPU activity in the trace; profile fewer steps"
        )
    found = [Replay(launches[correlation], tuple(activities)) for correlation, activities in ran.items()]
    return sorted(found, key=lambda replay: replay.start)


def gaps(trace: Trace, found: Sequence[Replay]) -> list[Gap]:
    """The gap after each replay but the last."""
    between = []
    busy = _Cursor(trace.activities)
    for earlier, later in pairwise(found):
        between.append(busy.gap(earlier.end, later.start))
    return between


def violations(trace: Trace) -> Counter[str]:
    """What a decode loop must not do, counted under each name, zeros included."""
    counts = Counter(dict.fromkeys([*_FORBIDDEN, _PAGEABLE], 0))
    for call in trace.calls:
        counts.update(name for name, pattern in _FORBIDDEN.items() if pattern.fullmatch(call.name))
    counts[_PAGEABLE] += sum(a.kind == "copy" and "Pageable" in a.name for a in trace.activities)
    return counts


def calls_by_name(trace: Trace) -> Counter[str]:
    """How often each CUDA call was made."""
    return Counter(call.name for call in trace.calls)


def launches(trace: Trace) -> int:
    """CUDA calls that give the GPU work: graphs, kernels, copies, fills."""
    return sum(_LAUNCH.fullmatch(call.name) is not None for call in trace.calls)


def kernels(trace: Trace) -> int:
    """Kernels that the window's calls set going, those of graphs included."""
    ours = {call.correlation for call in trace.calls} - {_NONE}
    return sum(one.kind == "kernel" and one.correlation in ours for one in trace.activities)


class _Cursor:
    """Walks once over activities by start, for gaps that come in order."""

    def __init__(self, activities: Sequence[Activity]) -> None:
        self._activities = activities
        self._next = 0
        self._covered = 0.0

    def gap(self, end: float, start: float) -> Gap:
        """What lies between a replay's end and the next one's start."""
        while self._next < len(self._activities) and self._activities[self._next].start <= end:
            self._covered = max(self._covered, self._activities[self._next].end)
            self._next += 1
        busy_until = max(end, self._covered)
        first = None if busy_until == end else end
        idle, place = 0.0, self._next
        while place < len(self._activities) and self._activities[place].start <= start:
            activity = self._activities[place]
            first = activity.start if first is None else first
            idle += max(0.0, activity.start - busy_until)
            busy_until = max(busy_until, activity.end)
            place += 1
        to_activity = 0.0 if first is None else first - end
        return Gap(idle, to_activity, max(0.0, start - end))


def _times(event: Mapping[str, Any]) -> tuple[float, float]:
    start = float(event["ts"])
    return start, start + float(event.get("dur", 0.0))


def _correlation(event: Mapping[str, Any]) -> int:
    return int(event.get("args", {}).get("correlation", _NONE))
