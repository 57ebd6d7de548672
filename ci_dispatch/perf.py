"""Judges the bench step's numbers: head beside base, run interleaved on one GPU, with the base run twice for the noise floor.

Of each round one log ratio, the head's value over the geometric mean of the base's two, so that drift between rounds cancels. The
ratio of a KPI is their 20 % trimmed mean, its 95 % interval Yuen's: a run or two that something else disturbed widen it little.
The same of base again over base is the noise floor. A KPI is worse only if all of the interval lies beyond both the threshold and
the noise floor, and if its slowdown is significant beside all other KPIs of the job (one-sided, Holm, 5 % over the family).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from statistics import fmean, median

from ci_dispatch.model import KpiRule, KpiVerdict, Perf, Sample

MIN_PAIRS = 5
"""Fewer rounds in which all three sides gave a number judge nothing."""
TRIMMED = 0.2
CONFIDENCE = 0.95
FAMILY_ALARMS = 0.05
"""Chance that any KPI of a job fails while none is slower."""
_LEAST_ERROR = 1e-9
"""Equal numbers in every round come from a clock's resolution: no interval is narrower than this."""

_Sides = Mapping[str, Mapping[int, Sample]]
_REPORTED = KpiRule(threshold=None)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A trimmed mean of logarithms with its standard error and degrees of freedom."""

    mean: float
    error: float
    freedom: int

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends of the 95 % interval."""
        from scipy.special import stdtrit

        reach = float(stdtrit(self.freedom, (1 + CONFIDENCE) / 2)) * self.error
        return self.mean - reach, self.mean + reach

    @property
    def chance(self) -> float:
        """Of a mean this far above 0 where the true one is 0 (one-sided)."""
        from scipy.special import stdtr

        return float(stdtr(self.freedom, -self.mean / self.error))


def estimate(values: Sequence[float]) -> Estimate:
    """Trimmed mean and Yuen's standard error of at least `MIN_PAIRS` values."""
    ordered = sorted(values)
    count = len(ordered)
    cut = int(TRIMMED * count)
    kept = ordered[cut : count - cut]
    winsorised = [kept[0]] * cut + kept + [kept[-1]] * cut
    centre = fmean(winsorised)
    squares = sum((value - centre) ** 2 for value in winsorised)
    error = math.sqrt(squares / (len(kept) * (len(kept) - 1)))
    return Estimate(fmean(kept), max(error, _LEAST_ERROR), len(kept) - 1)


def compare(samples: Sequence[Sample], perf: Perf) -> tuple[KpiVerdict, ...]:
    """Judge every KPI, in the order in which the head, then the base, first names them.

    Verdicts:
        worse, better: beyond threshold and noise, either way. ok: neither; `detail` says where a slowdown beyond the
        threshold might hide. new: only the head has it. too_few: under `MIN_PAIRS` whole rounds, or gone at the head; it judges nothing.
        reported: its rule has no threshold.
    """
    kpis: dict[str, dict[str, dict[int, Sample]]] = {}
    for sample in sorted(samples, key=lambda one: one.side != "head"):
        kpis.setdefault(sample.name, {}).setdefault(sample.side, {})[sample.round] = sample
    measured = {name: _measure(name, sides, _rule(name, perf.rules)) for name, sides in kpis.items()}
    alarms = _significant({name: one.effect.chance for name, one in measured.items() if one.effect})
    return tuple(_judge(one, name in alarms) for name, one in measured.items())


@dataclass(frozen=True, slots=True)
class _Measured:
    """What is known of a KPI; `effect` is None where it is not judged, and `verdict` then says why."""

    verdict: KpiVerdict
    threshold: float
    effect: Estimate | None = None
    noise: float = 0.0


def _rule(name: str, rules: Sequence[KpiRule]) -> KpiRule:
    return next((rule for rule in rules if fnmatchcase(name, rule.names)), _REPORTED)


def _measure(name: str, sides: _Sides, rule: KpiRule) -> _Measured:
    head, base, again = (sides.get(side, {}) for side in ("head", "base", "base_again"))
    rounds = sorted(head.keys() & base.keys() & again.keys())
    plain = KpiVerdict(
        name=name,
        unit=next(iter((*head.values(), *base.values(), *again.values()))).unit,
        head=_median(head),
        base=_median(base, again),
        samples=len(rounds),
        extra=_extra(head),
        verdict="reported",
    )
    threshold = rule.threshold or math.inf
    if head and not base and not again:
        return _Measured(_with(plain, verdict="new"), threshold)
    if len(rounds) < MIN_PAIRS:
        few = "gone: only the base has it" if not head else f"{len(rounds)} whole rounds, {MIN_PAIRS} needed"
        kind = "reported" if rule.threshold is None else "too_few"
        return _Measured(_with(plain, verdict=kind, detail=few), threshold)
    sign = 1 if rule.better == "lower" else -1
    logs = [[math.log(side[number].value) for number in rounds] for side in (head, base, again)]
    effect = estimate([sign * (h - (b + a) / 2) for h, b, a in zip(*logs, strict=True)])
    noise = max(map(abs, estimate([a - b for _, b, a in zip(*logs, strict=True)]).interval))
    low, high = effect.interval
    verdict = _with(
        plain, ratio=_exp(effect.mean), low=_exp(low), high=_exp(high), noise=math.expm1(min(noise, 700.0))
    )
    return _Measured(verdict, threshold, None if rule.threshold is None else effect, noise)


def _judge(one: _Measured, alarm: bool) -> KpiVerdict:
    if one.effect is None:
        return one.verdict
    low, high = one.effect.interval
    bar = max(math.log(one.threshold), one.noise)
    if low > bar and alarm:
        return _with(one.verdict, verdict="worse")
    if high < -bar:
        return _with(one.verdict, verdict="better")
    if low > bar:
        return _with(
            one.verdict,
            verdict="ok",
            detail="beyond the threshold, but no more than chance among so many KPIs",
        )
    if max(one.noise, high) <= math.log(one.threshold):
        return _with(one.verdict, verdict="ok")
    hidden = max(one.noise, (high - low) / 2 + math.log(one.threshold))
    return _with(
        one.verdict, verdict="ok", detail=f"a slowdown below about {_exp(hidden):.2f}x would not be seen"
    )


def _significant(chances: Mapping[str, float]) -> frozenset[str]:
    """Holm: the names whose chances, from the smallest, stay below their share of `FAMILY_ALARMS`."""
    found: set[str] = set()
    for rank, name in enumerate(sorted(chances, key=lambda one: chances[one])):
        if chances[name] > FAMILY_ALARMS / (len(chances) - rank):
            break
        found.add(name)
    return frozenset(found)


def _with(one: KpiVerdict, /, **changes: object) -> KpiVerdict:
    return one.model_copy(update=changes)


def _median(*sides: Mapping[int, Sample]) -> float | None:
    values = [sample.value for side in sides for sample in side.values()]
    return median(values) if values else None


def _extra(samples: Mapping[int, Sample]) -> dict[str, float]:
    keys = dict.fromkeys(key for sample in samples.values() for key in sample.extra)
    return {key: median(one.extra[key] for one in samples.values() if key in one.extra) for key in keys}


def _exp(log: float) -> float:
    """Finite, as JSON has no infinity."""
    return math.exp(max(-700.0, min(log, 700.0)))
