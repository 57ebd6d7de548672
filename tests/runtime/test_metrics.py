"""Metrics: declared once, counted exactly, and exported as a parser that is not ours reads them."""

import math
import sys
import threading
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.metrics import Metric, MetricError, MetricKind, MetricReporter

COUNTER, GAUGE, HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
STEPS = Metric("steps_total", COUNTER, "Steps.", ("kind",))
WAITING = Metric("waiting", GAUGE, "Waiting requests.")
LATENCY = Metric("latency_seconds", HISTOGRAM, "Latency.", buckets=(0.1, 1, 2.5))
HOSTILE = st.text(st.sampled_from('\\"\nn{},= é#') | st.characters(codec="utf-8", exclude_characters="\r"))


def parse(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every line of an export, read by prometheus_client."""
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client reads the export")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_registering_again_changes_nothing_and_keeps_values() -> None:
    reporter = MetricReporter([STEPS, LATENCY])
    reporter.increase("steps_total", 3, {"kind": "prefill"})
    reporter.observe("latency_seconds", 0.5)
    before = reporter.expose()
    reporter.register_additional_metrics([STEPS, LATENCY, STEPS])
    reporter.register_additional_metrics([Metric("steps_total", COUNTER, "Said otherwise.", ("kind",))])
    assert reporter.expose() == before


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (Metric("steps_total", GAUGE, "Steps.", ("kind",)), ("counter labels (kind)", "gauge labels (kind)")),
        (
            Metric("steps_total", COUNTER, "Steps.", ("kind", "rank")),
            ("counter labels (kind)", "labels (kind, rank)"),
        ),
        (
            Metric("latency_seconds", HISTOGRAM, "Latency.", buckets=(0.1, 1)),
            ("buckets (0.1, 1, 2.5)", "buckets (0.1, 1)"),
        ),
    ],
)
def test_the_same_name_with_another_kind_labels_or_buckets_is_refused(
    other: Metric, named: tuple[str, str]
) -> None:
    reporter = MetricReporter([STEPS, LATENCY])
    before = reporter.expose()
    with pytest.raises(MetricError) as raised:
        reporter.register_additional_metrics([WAITING, other])
    assert all(name in str(raised.value) for name in (other.name, *named))
    assert reporter.expose() == before, "one of a refused registration was declared"


def test_a_refused_registration_takes_no_name() -> None:
    reporter = MetricReporter([STEPS])
    with pytest.raises(MetricError):
        reporter.register_additional_metrics([LATENCY, Metric("steps_total", GAUGE, "")])
    reporter.register_additional_metrics([Metric("latency_seconds_count", COUNTER, "")])
    assert "latency_seconds_count 0\n" in reporter.expose()


def test_two_contradicting_metrics_of_one_registration_are_refused() -> None:
    with pytest.raises(MetricError, match="waiting"):
        MetricReporter([WAITING, Metric("waiting", COUNTER, "")])


@pytest.mark.parametrize("order", [0, 1])
def test_a_histogram_and_a_metric_with_the_name_of_one_of_its_lines_are_refused(order: int) -> None:
    both = [LATENCY, Metric("latency_seconds_count", COUNTER, "")]
    reporter = MetricReporter([both[order]])
    with pytest.raises(MetricError, match="latency_seconds_count is taken by"):
        reporter.register_additional_metrics([both[1 - order]])
    reporter.register_additional_metrics([WAITING])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "1st"}, "1st"),
        ({"name": "a b"}, "a b"),
        ({"labels": ("a-b",)}, "a-b"),
        ({"labels": ("__name",)}, "__name"),
        ({"labels": ("a", "a")}, "each label once"),
        ({"buckets": (1,)}, "gauge has no buckets"),
        ({"kind": HISTOGRAM}, "ascending"),
        ({"kind": HISTOGRAM, "buckets": (1, 1)}, "ascending"),
        ({"kind": HISTOGRAM, "buckets": (1, math.inf)}, "finite"),
        ({"kind": HISTOGRAM, "buckets": (1,), "labels": ("le",)}, "'le'"),
    ],
)
def test_a_metric_that_prometheus_would_not_read_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(MetricError, match=message):
        Metric(**{"name": "good", "kind": GAUGE, "help": "", **values})  # type: ignore[arg-type]


def test_use_as_what_it_is_not_is_refused() -> None:
    reporter = MetricReporter([STEPS, WAITING, LATENCY])
    for call, message in (
        (lambda: reporter.increase("unknown"), "unknown: no such metric"),
        (lambda: reporter.increase("waiting"), "waiting: is a gauge, used as a counter"),
        (lambda: reporter.set("latency_seconds", 1), "latency_seconds: is a histogram, used as a gauge"),
        (lambda: reporter.observe("waiting", 1), "waiting: is a gauge, used as a histogram"),
        (lambda: reporter.increase("steps_total"), r"expected labels \(kind\), got \(\)"),
        (lambda: reporter.set("waiting", 1, {"kind": "x"}), r"expected labels \(\), got \(kind\)"),
        (lambda: reporter.observe("latency_seconds", math.nan), "NaN"),
    ):
        with pytest.raises(MetricError, match=message):
            call()


@pytest.mark.parametrize("amount", [-1, math.nan, -math.inf])
def test_a_counter_never_falls(amount: float) -> None:
    reporter = MetricReporter([STEPS])
    labels = {"kind": "prefill"}
    reporter.advance("steps_total", 5, labels)
    with pytest.raises(MetricError, match="never falls"):
        reporter.increase("steps_total", amount, labels)
    with pytest.raises(MetricError, match="never falls"):
        reporter.advance("steps_total", 5 + amount, labels)
    reporter.advance("steps_total", 5, labels)
    assert reporter.value("steps_total", labels) == 5


def test_buckets_include_their_bound_and_add_up() -> None:
    reporter = MetricReporter([LATENCY])
    for value in (0.1, 0.1000001, 1, 2.5, 2.6, math.inf, -1):
        reporter.observe("latency_seconds", value)
    seen = parse(reporter.expose())
    bounds = {
        bound: seen["latency_seconds_bucket", (("le", bound),)] for bound in ("0.1", "1", "2.5", "+Inf")
    }
    assert bounds == {"0.1": 2, "1": 4, "2.5": 5, "+Inf": 7}
    assert seen["latency_seconds_count", ()] == 7
    assert seen["latency_seconds_sum", ()] == math.inf


def test_what_has_no_labels_is_exported_before_its_first_value() -> None:
    seen = parse(MetricReporter([WAITING, LATENCY, STEPS]).expose())
    assert seen["waiting", ()] == 0
    assert seen["latency_seconds_bucket", (("le", "+Inf"),)] == 0
    assert not any(name == "steps_total" for name, _ in seen)


@given(help=HOSTILE, values=st.lists(HOSTILE, min_size=1, max_size=3, unique=True))
def test_help_and_label_values_survive_the_export(help: str, values: list[str]) -> None:
    reporter = MetricReporter([Metric("odd", GAUGE, help, ("what",))])
    for number, value in enumerate(values):
        reporter.set("odd", number + 0.5, {"what": value})
    text = reporter.expose()
    assert len(text.split("\n")) == 2 + len(values) + 1, "a value broke its line"
    assert parse(text) == {("odd", (("what", value),)): number + 0.5 for number, value in enumerate(values)}


def test_the_export_is_as_documented() -> None:
    reporter = MetricReporter([STEPS, LATENCY, WAITING])
    reporter.increase("steps_total", labels={"kind": 'a"b\\c\nd'})
    reporter.set("waiting", -0.5)
    reporter.observe("latency_seconds", 0.25)
    assert reporter.expose() == (
        "# HELP latency_seconds Latency.\n"
        "# TYPE latency_seconds histogram\n"
        'latency_seconds_bucket{le="0.1"} 0\n'
        'latency_seconds_bucket{le="1"} 1\n'
        'latency_seconds_bucket{le="2.5"} 1\n'
        'latency_seconds_bucket{le="+Inf"} 1\n'
        "latency_seconds_sum 0.25\n"
        "latency_seconds_count 1\n"
        "# HELP steps_total Steps.\n"
        "# TYPE steps_total counter\n"
        'steps_total{kind="a\\"b\\\\c\\nd"} 1\n'
        "# HELP waiting Waiting requests.\n"
        "# TYPE waiting gauge\n"
        "waiting -0.5\n"
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, 2**53 + 2.0, 0.1, 3, -7.25])
def test_numbers_survive_the_export(value: float) -> None:
    reporter = MetricReporter([WAITING])
    reporter.set("waiting", value)
    seen = parse(reporter.expose())["waiting", ()]
    assert seen == value or (math.isnan(seen) and math.isnan(value))


def test_the_order_of_the_export_is_that_of_names_and_label_values() -> None:
    exports = set()
    for metrics in permutations([STEPS, WAITING, LATENCY]):
        for kinds in permutations(["a", "b", "c"]):
            reporter = MetricReporter(metrics)
            for kind in kinds:
                reporter.increase("steps_total", labels={"kind": kind})
            exports.add(reporter.expose())
    assert len(exports) == 1


def test_labels_may_come_in_any_order() -> None:
    reporter = MetricReporter([Metric("pairs", COUNTER, "", ("b", "a"))])
    reporter.increase("pairs", 1, {"a": "1", "b": "2"})
    reporter.increase("pairs", 1, {"b": "2", "a": "1"})
    assert 'pairs{b="2",a="1"} 2\n' in reporter.expose()


def test_threads_lose_nothing() -> None:
    reporter = MetricReporter([STEPS, LATENCY])
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work(thread: int) -> None:
        for number in range(1000):
            reporter.increase("steps_total", labels={"kind": str(number % 7)})
            reporter.observe("latency_seconds", 1)
            if number % 100 == 0:
                reporter.register_additional_metrics([STEPS, Metric(f"own_{thread}_{number}", GAUGE, "")])
                reporter.expose()

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert sum(reporter.value("steps_total", {"kind": str(kind)}) for kind in range(7)) == 8000
    assert reporter.value("latency_seconds") == 8000
    assert reporter.expose().count("# TYPE own_") == 80
