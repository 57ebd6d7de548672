"""The decode engine's metrics: read off its counters when someone asks, so that a step pays nothing for them."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from runtime.metrics import Metric, MetricKind, MetricReporter
from runtime.request import Request

# A prompt of a few tokens takes some milliseconds, a queue of long ones minutes; a decode step takes 1 to 20 ms.
TTFT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
INTER_TOKEN_BUCKETS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)

_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
METRICS = (
    Metric("engine_steps_total", _COUNTER, "Steps computed: prefill, replayed or eager decode.", ("kind",)),
    Metric("engine_tokens_total", _COUNTER, "Tokens given to requests."),
    Metric("engine_prompt_tokens_total", _COUNTER, "Tokens of the prompts taken in."),
    Metric("engine_requests_total", _COUNTER, "Requests that ended, by why.", ("reason",)),
    Metric("engine_requests_running", _GAUGE, "Requests that hold pages and take part in steps."),
    Metric("engine_requests_waiting", _GAUGE, "Requests that wait for pages or a place."),
    Metric("engine_preemptions_total", _COUNTER, "Times a request gave its pages back to start again."),
    Metric("engine_pages_in_use", _GAUGE, "Cache pages held by running requests, each counted once."),
    Metric("engine_graph_hits_total", _COUNTER, "Steps replayed, by the bucket's lanes.", ("bucket",)),
    Metric("engine_graph_lanes_total", _COUNTER, "Lanes replayed: live or padding.", ("kind",)),
    Metric("engine_graph_padding_ratio", _GAUGE, "Padding lanes over all lanes replayed so far."),
    Metric("engine_graph_fallbacks_total", _COUNTER, "Steps not replayed, by why.", ("reason",)),
    Metric("engine_gpu_idle_seconds_total", _COUNTER, "Time between consecutive replays, where measured."),
    Metric("engine_time_to_first_token_seconds", _HISTOGRAM, "From submission to the first token.",
           buckets=TTFT_BUCKETS),
    Metric("engine_inter_token_seconds", _HISTOGRAM, "From one token of a request to its next.",
           buckets=INTER_TOKEN_BUCKETS),
)  # fmt: skip


class SchedulerCounters(Protocol):
    """Of `runtime.scheduler.Scheduler`, what the metrics read."""

    preemptions: int

    @property
    def running(self) -> Sequence[Request]: ...

    @property
    def waiting(self) -> Sequence[Request]: ...


class GraphCounters(Protocol):
    """Of `runtime.graph.DecodeGraphs`, what the metrics read.

    Attributes:
        hits: replays by bucket.
        eager: steps that were not replayed, by reason.
    """

    hits: Counter[int]
    eager: Counter[str]
    live_lanes: int
    padding_lanes: int


class EngineCounters(Protocol):
    """Of `runtime.engine.Engine`, what the metrics read; without graphs no step is counted."""

    @property
    def scheduler(self) -> SchedulerCounters: ...

    @property
    def graphs(self) -> GraphCounters | None: ...


class Delivered(Protocol):
    """`runtime.engine.Output`: what a step gave a request, a token or an end without one."""

    @property
    def request(self) -> Request: ...

    @property
    def token(self) -> object | None: ...


class IdleSource(Protocol):
    """Who measures the GPU's idle time, `runtime.profile.clock.ReplayEvents` for one."""

    def idle_seconds(self) -> float:
        """Seconds between replays since the start, as far as they are known; never falls."""
        ...


@dataclass
class _Times:
    """When a request was submitted and last given a token, in seconds; None before its first."""

    submitted: float
    last: float | None = None


class EngineMetrics:
    """Registers and updates the engine's metrics.

    Whoever drives the engine calls `submitted` and `delivered` beside `submit` and `step`, and `update` before an export.

    Args:
        idle: if someone measures the GPU's idle time, who.
        now: seconds of a monotonic clock.
    """

    def __init__(
        self,
        reporter: MetricReporter,
        engine: EngineCounters,
        idle: IdleSource | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        reporter.register_additional_metrics(METRICS)
        self._reporter = reporter
        self._engine = engine
        self._idle = idle
        self._now = now
        self._times: dict[str, _Times] = {}

    def submitted(self, request: Request) -> None:
        """A request was queued."""
        self._times[request.id] = _Times(self._now())
        self._reporter.increase("engine_prompt_tokens_total", len(request.prompt))

    def delivered(self, outputs: Sequence[Delivered]) -> None:
        """A step gave these; they count as given now."""
        now = self._now()
        for output in outputs:
            if output.token is not None:
                self._count_token(output.request, now)
            if output.request.finish_reason is not None:
                self.ended(output.request)

    def ended(self, request: Request) -> None:
        """A request ended without an output, by an abort for one; calling it again changes nothing."""
        if self._times.pop(request.id, None) is not None and request.finish_reason is not None:
            self._reporter.increase("engine_requests_total", labels={"reason": request.finish_reason.value})

    def update(self) -> None:
        """Bring what the engine counts to the reporter; to be called between steps, by the engine's thread."""
        report = self._reporter
        scheduler = self._engine.scheduler
        report.set("engine_requests_running", len(scheduler.running))
        report.set("engine_requests_waiting", len(scheduler.waiting))
        report.set(
            "engine_pages_in_use", len({page for request in scheduler.running for page in request.pages})
        )
        report.advance("engine_preemptions_total", scheduler.preemptions)
        if self._engine.graphs is not None:
            self._update_graphs(self._engine.graphs)
        if self._idle is not None:
            report.advance("engine_gpu_idle_seconds_total", self._idle.idle_seconds())

    def _count_token(self, request: Request, now: float) -> None:
        self._reporter.increase("engine_tokens_total")
        times = self._times.get(request.id)
        if times is None:  # submitted before these metrics were there
            return
        if times.last is None:
            self._reporter.observe("engine_time_to_first_token_seconds", now - times.submitted)
        else:
            self._reporter.observe("engine_inter_token_seconds", now - times.last)
        times.last = now

    def _update_graphs(self, graphs: GraphCounters) -> None:
        report = self._reporter
        prefills = graphs.eager["prefill"]
        report.advance("engine_steps_total", prefills, {"kind": "prefill"})
        report.advance("engine_steps_total", graphs.hits.total(), {"kind": "replayed"})
        report.advance("engine_steps_total", graphs.eager.total() - prefills, {"kind": "eager"})
        for bucket, hits in graphs.hits.items():
            report.advance("engine_graph_hits_total", hits, {"bucket": str(bucket)})
        for reason, count in graphs.eager.items():
            report.advance("engine_graph_fallbacks_total", count, {"reason": reason})
        report.advance("engine_graph_lanes_total", graphs.live_lanes, {"kind": "live"})
        report.advance("engine_graph_lanes_total", graphs.padding_lanes, {"kind": "padding"})
        lanes = graphs.live_lanes + graphs.padding_lanes
        report.set("engine_graph_padding_ratio", graphs.padding_lanes / lanes if lanes else 0.0)
