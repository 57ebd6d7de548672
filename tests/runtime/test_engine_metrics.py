"""The engine's metrics agree with what the engine did, and are read off it without a hand in its steps."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

from runtime.engine import Engine, EngineOptions
from runtime.engine_metrics import EngineMetrics
from runtime.metrics import MetricReporter
from runtime.request import Request, SamplingParameters
from tests.runtime.kit import CONFIG, CPU, PAGE_SIZE, make_model, weights_for

TEN = SamplingParameters(max_tokens=10, ignore_stop_ids=True)


@dataclass
class Watch:
    """A clock in seconds that the test moves."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Driven:
    """An engine driven as a server drives it, a second a step."""

    engine: Engine
    reporter: MetricReporter = field(default_factory=MetricReporter)
    watch: Watch = field(default_factory=Watch)

    def __post_init__(self) -> None:
        self.metrics = EngineMetrics(self.reporter, self.engine, now=self.watch)

    def submit(self, length: int, sampling: SamplingParameters = TEN) -> Request:
        request = self.engine.submit([1 + at % 250 for at in range(length)], sampling)
        self.metrics.submitted(request)
        return request

    def step(self) -> None:
        self.watch.now += 1
        self.metrics.delivered(self.engine.step())

    def finish(self) -> None:
        while self.engine.has_work():
            self.step()
        self.metrics.update()

    def values(self, name: str) -> dict[str, float]:
        """An exported metric's values by what is between its braces."""
        lines = [
            line for line in self.reporter.expose().split("\n") if line.startswith((f"{name} ", f"{name}{{"))
        ]
        pairs = (line.removeprefix(name).rsplit(" ", 1) for line in lines)
        return {labels.strip("{}"): float(value) for labels, value in pairs}


@pytest.fixture
def drive() -> Callable[..., Driven]:
    def make(pages: int = 100, buckets: Iterable[int] | None = (2, 4), overlap: bool = True) -> Driven:
        options = EngineOptions(
            pages=pages,
            page_size=PAGE_SIZE,
            max_batch=4,
            max_step_tokens=32,
            buckets=None if buckets is None else tuple(buckets),
            overlap=overlap,
        )
        return Driven(Engine(make_model(CONFIG, weights_for(CPU)), options))

    return make


@pytest.mark.parametrize("overlap", [True, False])
def test_tokens_and_ended_requests_are_counted_once(drive: Callable[..., Driven], overlap: bool) -> None:
    driven = drive(overlap=overlap)
    requests = [driven.submit(length) for length in (3, 5, 9)]
    driven.finish()
    assert driven.values("engine_tokens_total") == {"": sum(len(one.tokens) for one in requests)}
    assert driven.values("engine_prompt_tokens_total") == {"": 17}
    assert driven.values("engine_requests_total") == {'reason="length"': 3}


def test_an_aborted_request_is_counted_under_its_reason_and_once(drive: Callable[..., Driven]) -> None:
    driven = drive()
    request = driven.submit(5)
    driven.step()
    driven.engine.abort(request.id)
    driven.metrics.ended(request)
    driven.metrics.ended(request)
    driven.finish()
    assert driven.values("engine_requests_total") == {'reason="abort"': 1}


def test_steps_hits_and_padding_are_the_graphs(drive: Callable[..., Driven]) -> None:
    driven = drive()
    for length in (4, 4, 4):
        driven.submit(length)
    driven.finish()
    graphs = driven.engine.graphs
    assert graphs is not None
    hits = {key: value for key, value in driven.values("engine_graph_hits_total").items() if value}
    assert hits == {f'bucket="{bucket}"': count for bucket, count in graphs.hits.items()}
    assert 'bucket="4"' in hits
    steps = driven.values("engine_steps_total")
    assert steps['kind="replayed"'] == sum(hits.values())
    assert steps['kind="prefill"'] >= 1
    assert steps['kind="eager"'] == 0
    lanes = driven.values("engine_graph_lanes_total")
    # Three lanes in a bucket of four leave one for padding.
    assert lanes['kind="live"'] + lanes['kind="padding"'] == 4 * graphs.hits[4] + 2 * graphs.hits[2]
    assert lanes['kind="padding"'] >= 1
    assert driven.values("engine_graph_padding_ratio")[""] == pytest.approx(
        lanes['kind="padding"'] / sum(lanes.values())
    )


def test_fallbacks_say_why(drive: Callable[..., Driven]) -> None:
    driven = drive()
    driven.submit(4)
    driven.finish()
    graphs = driven.engine.graphs
    assert graphs is not None
    graphs.eager["block table wider than 8"] += 2
    driven.metrics.update()
    assert driven.values("engine_graph_fallbacks_total") == {
        'reason="prefill"': 1,
        'reason="block table wider than 8"': 2,
    }
    assert driven.values("engine_steps_total")['kind="eager"'] == 2


def test_an_engine_without_graphs_has_no_graph_metrics(drive: Callable[..., Driven]) -> None:
    driven = drive(buckets=None)
    driven.submit(4)
    driven.finish()
    assert driven.values("engine_steps_total") == {}
    assert driven.values("engine_graph_padding_ratio") == {"": 0}
    assert driven.values("engine_tokens_total") == {"": 10}


def test_running_waiting_pages_and_preemptions_are_the_schedulers(drive: Callable[..., Driven]) -> None:
    driven = drive(pages=13)
    requests = [driven.submit(12, SamplingParameters(max_tokens=20, ignore_stop_ids=True)) for _ in range(6)]
    seen = Counter[str]()
    while driven.engine.has_work():
        driven.step()
        driven.metrics.update()
        running = driven.engine.scheduler.running
        held = {page for request in running for page in request.pages}
        assert driven.values("engine_requests_running") == {"": len(running)}
        assert driven.values("engine_requests_waiting") == {"": len(driven.engine.scheduler.waiting)}
        assert driven.values("engine_pages_in_use") == {"": len(held)}
        assert len(held) <= 12
        seen["shared"] += len(held) < sum(len(request.pages) for request in running)
        seen["waited"] += bool(driven.engine.scheduler.waiting)
    assert seen["waited"]
    assert seen["shared"], "equal prompts share no page: the test does not tell pages from holds"
    assert driven.values("engine_preemptions_total") == {"": sum(one.preemptions for one in requests)}
    assert driven.engine.scheduler.preemptions > 0
    assert driven.values("engine_pages_in_use") == {"": 0}


def test_first_tokens_and_the_time_between_tokens_are_told_apart(drive: Callable[..., Driven]) -> None:
    driven = drive(overlap=False)
    driven.submit(4)
    driven.watch.now += 6
    driven.finish()
    # Submitted 6 s before the first step, which takes one; then a token a second.
    assert driven.values("engine_time_to_first_token_seconds_sum") == {"": 7}
    assert driven.values("engine_time_to_first_token_seconds_count") == {"": 1}
    assert driven.values("engine_inter_token_seconds_count") == {"": 9}
    assert driven.values("engine_inter_token_seconds_sum") == {"": 9}


def test_a_request_from_before_the_metrics_counts_its_tokens_alone(drive: Callable[..., Driven]) -> None:
    driven = drive()
    driven.engine.submit([1, 2, 3], TEN)
    driven.finish()
    assert driven.values("engine_tokens_total") == {"": 10}
    assert driven.values("engine_time_to_first_token_seconds_count") == {"": 0}
    assert driven.values("engine_requests_total") == {}


def test_nothing_is_kept_of_requests_that_ended(drive: Callable[..., Driven]) -> None:
    driven = drive()
    for _ in range(5):
        driven.submit(4)
    driven.finish()
    assert not driven.metrics._times


def test_idle_time_comes_from_whoever_measures_it(drive: Callable[..., Driven]) -> None:
    class Idle:
        seconds = 0.25

        def idle_seconds(self) -> float:
            return self.seconds

    driven, idle = drive(), Idle()
    metrics = EngineMetrics(driven.reporter, driven.engine, idle)
    metrics.update()
    idle.seconds = 0.5
    metrics.update()
    assert driven.values("engine_gpu_idle_seconds_total") == {"": 0.5}


def test_updating_again_counts_nothing_twice(drive: Callable[..., Driven]) -> None:
    driven = drive()
    driven.submit(4)
    driven.finish()
    before = driven.reporter.expose()
    driven.metrics.update()
    EngineMetrics(driven.reporter, driven.engine).update()
    assert driven.reporter.expose() == before
