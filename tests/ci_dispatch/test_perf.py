"""Reading a bench step's numbers, and judging them."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from scipy.stats.mstats import trimmed_mean_ci

from ci_dispatch import kpis
from ci_dispatch.model import KpiRule, KpiVerdict, Perf, Sample
from ci_dispatch.perf import MIN_PAIRS, compare, estimate

PERF = Perf(rounds=8)


def measured(
    ratio: float = 1.0,
    *,
    names: Sequence[str] = ("decode",),
    rounds: int = 8,
    noise: float = 0.01,
    drift: float = 0.05,
    outliers: float = 0.0,
    seed: int = 0,
    slow: int = 1,
) -> list[Sample]:
    """A bench as it goes: three runs a round in changing order, noise a run and a KPI, drift with time, now and then a run that
    something disturbed. The first `slow` names are slower by `ratio`."""
    chance = random.Random(seed)
    samples = []
    for number in range(rounds):
        order = ["head", "base", "base_again"]
        chance.shuffle(order)
        for place, side in enumerate(order):
            shared = chance.gauss(0, noise / 2) + drift * (3 * number + place) / (3 * rounds)
            for index, name in enumerate(names):
                log = shared + chance.gauss(0, noise)
                log += chance.uniform(0.1, 0.7) if chance.random() < outliers else 0
                log += math.log(ratio) if side == "head" and index < slow else 0
                samples.append(
                    Sample(name=name, side=side, round=number, value=100 * math.exp(log), unit="us")  # type: ignore[arg-type]
                )
    return samples


def verdicts(samples: Sequence[Sample], perf: Perf = PERF) -> list[str]:
    return [one.verdict for one in compare(samples, perf)]


def share(of: Callable[[int], bool], times: int = 200) -> float:
    return sum(map(of, range(times))) / times


def test_the_same_code_passes_whatever_the_drift() -> None:
    """CI.md 17."""
    assert share(lambda seed: verdicts(measured(seed=seed, drift=0.3)) == ["ok"]) == 1


def test_ten_percent_slower_fails() -> None:
    """CI.md 17."""
    assert share(lambda seed: verdicts(measured(1.1, seed=seed)) == ["worse"]) >= 0.98


def test_ten_percent_slower_fails_though_one_run_in_fifty_is_disturbed() -> None:
    assert share(lambda seed: verdicts(measured(1.1, seed=seed, outliers=0.02)) == ["worse"]) >= 0.9


def test_a_thirty_percent_slowdown_stays_red_on_a_noisy_host() -> None:
    """CI.md 11."""
    assert (
        share(lambda seed: verdicts(measured(1.3, seed=seed, noise=0.02, outliers=0.02)) == ["worse"]) >= 0.95
    )


def test_two_hundred_kpis_of_the_same_code_raise_no_alarm() -> None:
    names = [f"kernel {n}" for n in range(200)]
    alarmed = share(
        lambda seed: (
            "worse" in verdicts(measured(names=names, seed=seed, noise=0.05, drift=0.1, outliers=0.05))
        ),
        times=40,
    )
    assert alarmed <= 0.05


def test_one_slow_kpi_among_two_hundred_fails_alone() -> None:
    names = [f"kernel {n}" for n in range(200)]
    for seed in range(10):
        found = verdicts(measured(1.1, names=names, seed=seed))
        assert found[0] == "worse"
        assert found.count("worse") == 1


def test_the_family_bounds_what_each_kpi_alone_would_not() -> None:
    """A slowdown that is just significant by itself is not among many noisy neighbours."""
    few = measured(1.25, rounds=6, noise=0.035, seed=3)
    alone = compare(few, PERF)[0]
    assert alone.verdict == "worse"
    crowd = measured(1.0, names=[f"n{i}" for i in range(2_000)], rounds=6, noise=0.035, seed=4)
    among = compare([*few, *crowd], PERF)[0]
    assert (among.verdict, among.low) == ("ok", alone.low)
    assert "chance" in among.detail


def test_a_slowdown_within_the_threshold_passes() -> None:
    assert share(lambda seed: verdicts(measured(1.03, seed=seed, noise=0.005)) == ["ok"]) == 1


def test_an_improvement_is_said_to_be_one() -> None:
    (one,) = compare(measured(0.7), PERF)
    assert one.verdict == "better"
    assert one.ratio is not None
    assert one.ratio < 0.75


def test_where_higher_is_better_the_ratio_still_means_worse_above_one() -> None:
    perf = Perf(rules=(KpiRule(names="tokens*", better="higher"),))
    slower = [one.model_copy(update={"name": "tokens/s"}) for one in measured(1 / 1.2)]
    (one,) = compare(slower, perf)
    assert one.verdict == "worse"
    assert one.ratio == pytest.approx(1.2, rel=0.02)
    assert verdicts([one.model_copy(update={"name": "tokens/s"}) for one in measured(1.2)], perf) == [
        "better"
    ]


def test_the_first_rule_that_matches_holds_and_what_none_matches_is_reported() -> None:
    rules = (KpiRule(names="slow*", threshold=2.0), KpiRule(names="*us", threshold=None), KpiRule(names="k*"))
    names = ["slow k", "k us", "k", "else"]
    found = compare(measured(1.3, names=names, slow=4), Perf(rules=rules))
    assert [one.verdict for one in found] == ["ok", "reported", "worse", "reported"]
    assert found[1].ratio == pytest.approx(1.3, rel=0.03)


def test_the_noise_floor_hides_what_the_base_does_to_itself() -> None:
    """Base again is 20 % slower than base: a head 15 % slower than their mean is no evidence."""
    samples = [
        Sample(name="k", side=side, round=number, value=value * (1 + 0.001 * number))
        for number in range(8)
        for side, value in (("base", 100.0), ("base_again", 120.0), ("head", 126.0))
    ]
    (one,) = compare(samples, PERF)
    assert one.low is not None
    assert one.low > 1.05
    assert one.noise == pytest.approx(0.2, rel=0.02)
    assert one.verdict == "ok"
    assert one.detail == "a slowdown below about 1.20x would not be seen"


def test_an_interval_that_reaches_beyond_the_threshold_is_no_silent_pass() -> None:
    """Little noise between the base's runs, much in the head's."""
    samples = [
        Sample(name="k", side=side, round=number, value=value)
        for number in range(8)
        for side, value in (("base", 100.0), ("base_again", 100.5), ("head", (80.0, 125.0)[number % 2]))
    ]
    (one,) = compare(samples, PERF)
    assert one.verdict == "ok"
    assert "would not be seen" in one.detail
    (quiet,) = compare(measured(noise=0.002, drift=0), PERF)
    assert (quiet.verdict, quiet.detail) == ("ok", "")


def test_too_few_rounds_judge_nothing() -> None:
    (one,) = compare(measured(3.0, rounds=MIN_PAIRS - 1), PERF)
    assert (one.verdict, one.samples, one.ratio) == ("too_few", MIN_PAIRS - 1, None)
    assert "5 needed" in one.detail
    assert verdicts(measured(3.0, rounds=MIN_PAIRS)) == ["worse"]


def test_only_rounds_in_which_every_side_ran_count() -> None:
    samples = [one for one in measured(3.0) if (one.side, one.round % 2) != ("base_again", 0)]
    (one,) = compare(samples, PERF)
    assert (one.verdict, one.samples) == ("too_few", 4)


@pytest.mark.parametrize("missing", ["base", "base_again"])
def test_a_kpi_that_one_run_of_the_base_gives_is_not_new(missing: str) -> None:
    (one,) = compare([one for one in measured(3.0) if one.side != missing], PERF)
    assert (one.verdict, one.samples) == ("too_few", 0)


def test_a_kpi_of_the_head_alone_is_new_and_one_of_the_base_alone_is_not_let_go() -> None:
    samples = measured(names=("both", "head only", "base only"))
    samples = [
        one
        for one in samples
        if not (one.name == "head only" and one.side != "head")
        and not (one.name == "base only" and one.side == "head")
    ]
    found = {one.name: one for one in compare(samples, PERF)}
    assert {name: one.verdict for name, one in found.items()} == {
        "both": "ok",
        "head only": "new",
        "base only": "too_few",
    }
    assert found["base only"].head is None
    assert "gone" in found["base only"].detail


def test_equal_numbers_in_every_round_are_judged() -> None:
    def steady(head: float) -> list[Sample]:
        return [
            Sample(name="k", side=side, round=number, value=head if side == "head" else 10)
            for number in range(8)
            for side in ("head", "base", "base_again")
        ]

    assert verdicts(steady(10)) == ["ok"]
    assert verdicts(steady(11)) == ["worse"]
    assert verdicts(steady(9)) == ["better"]


def test_the_largest_and_smallest_floats_give_json() -> None:
    samples = [
        Sample(name="k", side=side, round=number, value=1e308 if side == "head" else 5e-324)
        for number in range(8)
        for side in ("head", "base", "base_again")
    ]
    (one,) = compare(samples, PERF)
    back = KpiVerdict.model_validate_json(one.model_dump_json())
    assert all(
        math.isfinite(value) for value in (back.ratio, back.low, back.high, back.noise) if value is not None
    )
    assert one.verdict == "worse"


def test_the_estimate_is_yuens() -> None:
    chance = random.Random(5)
    values = [chance.gauss(0.1, 0.02) for _ in range(9)] + [3.0]
    ours, (low, high) = estimate(values), trimmed_mean_ci(values, (0.2, 0.2))
    assert ours.mean == pytest.approx(stats.trim_mean(values, 0.2))
    # Ours is the error of Yuen's test; scipy's own is narrower by sqrt(n (h - 1) / ((n - 1) h)), h values being kept of n.
    narrower = math.sqrt(10 * 5 / (9 * 6))
    assert (ours.interval[1] - ours.interval[0]) * narrower == pytest.approx(high - low)
    t = stats.t(ours.freedom)
    assert ours.interval[0] == pytest.approx(ours.mean - t.ppf(0.975) * ours.error)
    assert ours.chance == pytest.approx(t.sf(ours.mean / ours.error))


def test_what_a_kpi_says_beside_its_value_is_the_heads_median() -> None:
    samples = [
        one.model_copy(update={"extra": {"copy_percent": float(one.round if one.side == "head" else 99)}})
        for one in measured(rounds=5)
    ]
    assert compare(samples, PERF)[0].extra == {"copy_percent": 2.0}


# --- reading -------------------------------------------------------------------------------------------------------


def read(folder: Path, value: Any) -> tuple[list[Sample], list[str]]:
    path = folder / "kpis.json"
    path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    return kpis.read(path, "head", 3, below=folder)


def test_numbers_are_read_with_side_and_round(tmp_path: Path) -> None:
    entry = {"name": "rms_norm [1, 4096]", "value": 3, "unit": "us", "extra": {"copy_percent": 88.5}}
    samples, bad = read(tmp_path, {"kpis": [entry, {"name": "b", "value": 0.5}]})
    assert bad == []
    assert samples[0] == Sample(
        name="rms_norm [1, 4096]", side="head", round=3, value=3.0, unit="us", extra={"copy_percent": 88.5}
    )
    assert samples[1].unit == ""


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "k", "value": "3.0"},
        {"name": "k", "value": True},
        {"name": "k", "value": None},
        {"name": "k"},
        {"name": "k", "value": [1]},
        {"name": "k", "value": float("nan")},
        {"name": "k", "value": float("inf")},
        {"name": "k", "value": 10**400},
        {"name": "k", "value": -1},
        {"name": "k", "value": 0},
        {"name": 5, "value": 1},
        {"name": "", "value": 1},
        {"name": "n" * 201, "value": 1},
        {"name": "\ud800", "value": 1},
        {"name": "a\0b", "value": 1},
        {"value": 1},
        {"name": "k", "value": 1, "unit": 5},
        {"name": "k", "value": 1, "unit": "u" * 21},
        {"name": "k", "value": 1, "extra": [1]},
        {"name": "k", "value": 1, "extra": {"x": "1"}},
        {"name": "k", "value": 1, "extra": {"x": float("nan")}},
        {"name": "k", "value": 1, "extra": {str(n): 1 for n in range(17)}},
        {"name": "k", "value": 1, "verdict": "ok"},
        "k",
        5,
        None,
        [],
    ],
)
def test_what_lies_about_its_type_is_named_and_the_rest_is_kept(tmp_path: Path, entry: Any) -> None:
    samples, bad = read(tmp_path, {"kpis": [entry, {"name": "good", "value": 1}]})
    assert [one.name for one in samples] == ["good"]
    assert len(bad) == 1
    assert bad[0].startswith("head, round 3: entry 0: ")
    assert len(bad[0]) < 400


def test_numbers_that_overflow_a_float_in_the_text_are_named(tmp_path: Path) -> None:
    samples, bad = read(tmp_path, b'{"kpis": [{"name": "k", "value": 1e400}]}')
    assert samples == []
    assert "finite" in bad[0]


def test_a_name_given_twice_counts_for_neither(tmp_path: Path) -> None:
    samples, bad = read(tmp_path, {"kpis": [{"name": "k", "value": value} for value in (1, 2, 3)]})
    assert samples == []
    assert bad == ['head, round 3: "k": given twice, so neither counts']


def test_numbers_beyond_the_first_thousand_are_not_kept(tmp_path: Path) -> None:
    samples, bad = read(tmp_path, {"kpis": [{"name": f"{n}", "value": 1} for n in range(kpis.MAX_KPIS + 1)]})
    assert len(samples) == kpis.MAX_KPIS
    assert bad == ["head, round 3: 1,001 entries; the first 1,000 are read"]


def test_a_million_entries_are_cut_and_said(tmp_path: Path) -> None:
    samples, bad = read(tmp_path, b'{"kpis": [' + b"1," * 1_000_000 + b"1]}")
    assert samples == []
    assert "1,000,001 entries" in bad[0]
    assert len(bad) <= 21


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b'{"kpis": {}}',
        b"[" * 200_000,
        b"\xff",
        b'{"kpis": [' + b"[" * 50 + b"]" * 50 + b"]}",
        b" " * (kpis.MAX_FILE + 1),
    ],
)
def test_a_file_that_holds_no_numbers_is_named(tmp_path: Path, raw: bytes) -> None:
    samples, bad = read(tmp_path, raw)
    assert samples == []
    assert len(bad) == 1
    assert "kpis.json" in bad[0]


def test_a_link_a_pipe_and_nothing_are_named(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"kpis": [{"name": "k", "value": 1}]}')
    out = tmp_path / "out"
    out.mkdir()
    path = out / "kpis.json"
    assert "no such file" in kpis.read(path, "base", 0, below=out)[1][0]
    path.symlink_to(secret)
    assert kpis.read(path, "base", 0, below=out)[0] == []
    path.unlink()
    os.mkfifo(path)
    assert "not a regular file" in kpis.read(path, "base", 0)[1][0]
    (out / "deep").symlink_to(tmp_path)
    assert kpis.read(out / "deep/secret.json", "base", 0, below=out)[0] == []
