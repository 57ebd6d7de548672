"""Counters, gauges and histograms by name and labels, and their export as Prometheus' text format 0.0.4."""

import math
import re
import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_NO_LABELS: Mapping[str, str] = {}


class MetricError(ValueError):
    """A metric that cannot be, contradicts another one of its name, or is used as what it is not; names the metric."""


class MetricKind(StrEnum):
    """What a metric's values mean, in Prometheus' words."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """A metric's declaration.

    Attributes:
        name: the unit is part of it, as in `_seconds`.
        help: one sentence for whoever reads the export.
        labels: names of the labels that every value has.
        buckets: upper bounds of a histogram's buckets, inclusive, ascending; +Inf follows by itself.

    Raises:
        MetricError: a name that Prometheus would not read, or buckets that are no buckets.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise MetricError(f"{self.name!r}: expected a metric name of letters, digits, _ and :")
        if self.kind is MetricKind.HISTOGRAM:
            self._check_buckets()
        elif self.buckets:
            raise MetricError(f"{self.name}: a {self.kind} has no buckets, got {self.buckets}")
        for label in self.labels:
            if not _LABEL.fullmatch(label) or (label == "le" and self.kind is MetricKind.HISTOGRAM):
                raise MetricError(
                    f"{self.name}: expected label names of letters, digits and _, got {label!r}"
                )
        if len(set(self.labels)) < len(self.labels):
            raise MetricError(f"{self.name}: expected each label once, got {', '.join(self.labels)}")

    def __str__(self) -> str:
        parts = [self.kind.value, f"labels ({', '.join(self.labels)})"]
        if self.buckets:
            parts.append(f"buckets ({', '.join(_number(bound) for bound in self.buckets)})")
        return " ".join(parts)

    @property
    def series(self) -> tuple[str, ...]:
        """Names that its lines in the export have."""
        if self.kind is MetricKind.HISTOGRAM:
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        return (self.name,)

    def agrees_with(self, other: "Metric") -> bool:
        """Whether values of the one are values of the other; the help may differ."""
        return (self.kind, self.labels, self.buckets) == (other.kind, other.labels, other.buckets)

    def _check_buckets(self) -> None:
        rising = all(low < high for low, high in pairwise(self.buckets))
        if not self.buckets or not rising or not all(math.isfinite(bound) for bound in self.buckets):
            raise MetricError(f"{self.name}: expected finite bounds in ascending order, got {self.buckets}")


@dataclass
class _Values:
    """A metric's values: a number for each labelling, or one count a bucket and the sum."""

    metric: Metric
    numbers: dict[tuple[str, ...], float] = field(default_factory=dict)
    buckets: dict[tuple[str, ...], list[int]] = field(default_factory=dict)


class MetricReporter:
    """Metrics of one process; any thread may write and export.

    A metric without labels is exported from its registration on, as 0; a labelled one when it has its first value.
    """

    def __init__(self, metrics: Iterable[Metric] = ()) -> None:
        self._lock = threading.Lock()
        self._metrics: dict[str, _Values] = {}
        self._owner: dict[str, str] = {}
        self.register_additional_metrics(metrics)

    def register_additional_metrics(self, metrics: Iterable[Metric]) -> None:
        """Declare metrics: all of them or, if it raises, none. Those declared before stay, with their values.

        Raises:
            MetricError: one has the name of another of a different kind, labels or buckets, or its exported lines would.
        """
        with self._lock:
            fresh: dict[str, Metric] = {}
            owner = dict(self._owner)
            for metric in metrics:
                known = self._metrics[metric.name].metric if metric.name in self._metrics else None
                known = known or fresh.get(metric.name)
                if known is not None and not known.agrees_with(metric):
                    raise MetricError(f"{metric.name}: registered as {known}, cannot become {metric}")
                if known is None:
                    fresh[metric.name] = metric
                for series in metric.series:
                    taken = owner.setdefault(series, metric.name)
                    if taken != metric.name:
                        raise MetricError(f"{metric.name}: its series {series} is taken by {taken}")
            self._owner = owner
            for metric in fresh.values():
                self._metrics[metric.name] = _Values(metric)
                if not metric.labels:
                    self._start(self._metrics[metric.name], ())

    def increase(self, name: str, amount: float = 1, labels: Mapping[str, str] = _NO_LABELS) -> None:
        """Add to a counter.

        Raises:
            MetricError: no such counter, other labels, or an amount below 0.
        """
        with self._lock:
            values, key = self._find(name, MetricKind.COUNTER, labels)
            if not amount >= 0:
                raise MetricError(f"{name}: a counter never falls, got an increase of {amount}")
            values.numbers[key] = values.numbers.get(key, 0.0) + amount

    def advance(self, name: str, total: float, labels: Mapping[str, str] = _NO_LABELS) -> None:
        """Set a counter to a total that is counted elsewhere.

        Raises:
            MetricError: no such counter, other labels, or a total below the last one.
        """
        with self._lock:
            values, key = self._find(name, MetricKind.COUNTER, labels)
            last = values.numbers.get(key, 0.0)
            if not total >= last:
                raise MetricError(
                    f"{name}: a counter never falls, got {_number(total)} after {_number(last)}"
                )
            values.numbers[key] = float(total)

    def set(self, name: str, value: float, labels: Mapping[str, str] = _NO_LABELS) -> None:
        """Set a gauge.

        Raises:
            MetricError: no such gauge, or other labels.
        """
        with self._lock:
            values, key = self._find(name, MetricKind.GAUGE, labels)
            values.numbers[key] = float(value)

    def observe(self, name: str, value: float, labels: Mapping[str, str] = _NO_LABELS) -> None:
        """Count a value in a histogram.

        Raises:
            MetricError: no such histogram, other labels, or NaN, which belongs to no bucket.
        """
        with self._lock:
            values, key = self._find(name, MetricKind.HISTOGRAM, labels)
            if math.isnan(value):
                raise MetricError(f"{name}: NaN belongs to no bucket")
            if key not in values.buckets:
                self._start(values, key)
            values.buckets[key][bisect_left(values.metric.buckets, value)] += 1
            values.numbers[key] += value

    def value(self, name: str, labels: Mapping[str, str] = _NO_LABELS) -> float:
        """A counter's or gauge's value, a histogram's sum; 0 before the first.

        Raises:
            MetricError: no such metric, or other labels.
        """
        with self._lock:
            values, key = self._find(name, None, labels)
            return values.numbers.get(key, 0.0)

    def expose(self) -> str:
        """All metrics as text (`CONTENT_TYPE`), in the order of their names and label values."""
        with self._lock:
            lines = [line for name in sorted(self._metrics) for line in _lines(self._metrics[name])]
        return "".join(f"{line}\n" for line in lines)

    def _find(
        self, name: str, kind: MetricKind | None, labels: Mapping[str, str]
    ) -> tuple[_Values, tuple[str, ...]]:
        values = self._metrics.get(name)
        if values is None:
            raise MetricError(f"{name}: no such metric; register_additional_metrics declares one")
        metric = values.metric
        if kind is not None and metric.kind is not kind:
            raise MetricError(f"{name}: is a {metric.kind}, used as a {kind}")
        if labels.keys() != set(metric.labels):
            raise MetricError(
                f"{name}: expected labels ({', '.join(metric.labels)}), got ({', '.join(labels)})"
            )
        return values, tuple(labels[label] for label in metric.labels)

    def _start(self, values: _Values, key: tuple[str, ...]) -> None:
        values.numbers[key] = 0.0
        if values.metric.kind is MetricKind.HISTOGRAM:
            values.buckets[key] = [0] * (len(values.metric.buckets) + 1)


def _lines(values: _Values) -> list[str]:
    metric = values.metric
    lines = [
        f"# HELP {metric.name} {_escape_help(metric.help)}",
        f"# TYPE {metric.name} {metric.kind}",
    ]
    for key in sorted(values.numbers):
        pairs = list(zip(metric.labels, key, strict=True))
        if metric.kind is not MetricKind.HISTOGRAM:
            lines.append(f"{metric.name}{_labels(pairs)} {_number(values.numbers[key])}")
            continue
        total = 0
        for bound, count in zip((*metric.buckets, math.inf), values.buckets[key], strict=True):
            total += count
            lines.append(f"{metric.name}_bucket{_labels([*pairs, ('le', _number(bound))])} {total}")
        lines.append(f"{metric.name}_sum{_labels(pairs)} {_number(values.numbers[key])}")
        lines.append(f"{metric.name}_count{_labels(pairs)} {total}")
    return lines


def _labels(pairs: Sequence[tuple[str, str]]) -> str:
    if not pairs:
        return ""
    return "{" + ",".join(f'{name}="{_escape_label(value)}"' for name, value in pairs) + "}"


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escape_label(text: str) -> str:
    return _escape_help(text).replace('"', '\\"')


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    # Whole numbers without ".0": bounds read as they were declared, and counts as counts.
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))
