"""`whitesmoke bench lease`: the simulation behind it, at small size."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from ci_dispatch.lease import Assignment
from service.bench.lease_load import GPUS_PER_HOST, Load, make
from service.bench.lease_simulation import best_labels, first_fit, ours, play, play_labels, strict_first


def load(job_id: int, gpus: int, at: float = 0.0, seconds: float = 100.0) -> Load:
    return Load(job_id, gpus, at, seconds, 2 * seconds, 0, f"pull {job_id}", f"user {job_id}")


def test_the_command_prints_a_row_a_way_and_a_row_a_fleet(run, tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    said = run("bench", "lease", "--jobs", "60", "--hosts", "2", "--seeds", "2", "--json", out)
    assert said.status == 0
    figures = json.loads(out.read_text())
    names = [row["name"] for row in figures["rows"]]
    assert names[0] == "leases"
    assert all(f"| {name} |" in said.out for name in names)
    assert len(figures["decisions"]) == 4
    for row in figures["rows"]:
        assert row["stuck"] == 0
        assert row["all"]["jobs"] == 120 == row["busiest"]["jobs"] + row["others"]["jobs"]
        assert sum(part["jobs"] for part in row["by_size"].values()) == 120
        assert 0 < row["used"] <= 1
        assert 0 < row["used_in_need"] <= 1
    table = [line for line in said.out.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table} == {16, 5}


def test_the_same_seed_gives_the_same_jobs_and_another_gives_others() -> None:
    assert make(100, 64, 0.9, 1) == make(100, 64, 0.9, 1) != make(100, 64, 0.9, 2)


def test_the_jobs_ask_for_what_was_said() -> None:
    loads = make(2000, 64, 0.5, 3)
    assert [one.job_id for one in sorted(loads, key=lambda one: one.job_id)] == list(range(2000))
    assert all(one.at <= other.at for one, other in pairwise(loads))
    asked = sum(one.gpus * one.seconds for one in loads) / (64 * loads[-1].at)
    assert asked == pytest.approx(0.5, rel=0.05)
    assert all(one.seconds <= one.limit for one in loads)


@pytest.mark.parametrize("decide", [ours, strict_first, first_fit])
def test_no_way_uses_more_gpus_than_there_are(decide) -> None:
    loads = make(200, 16, 1.5, 4)
    played = play(loads, 2, decide)
    assert played.stuck == 0
    assert set(played.began) == {one.job_id for one in loads}
    changes: Counter[float] = Counter()
    for one in loads:
        assert played.began[one.job_id] >= one.at
        changes[played.began[one.job_id]] += one.gpus
        changes[played.began[one.job_id] + one.seconds] -= one.gpus
    busy = 0
    for at in sorted(changes):
        busy += changes[at]
        assert busy <= 2 * GPUS_PER_HOST


def test_strict_order_stops_behind_a_large_job_and_first_fit_does_not() -> None:
    loads = [load(0, 4), load(1, 8, at=1), load(2, 1, at=2)]
    assert play(loads, 1, strict_first).began == {0: 0.0, 1: 100.0, 2: 200.0}
    assert play(loads, 1, first_fit).began == {0: 0.0, 2: 2.0, 1: 102.0}


def test_jobs_of_a_label_wait_for_a_runner_of_their_own() -> None:
    loads = [load(0, 1), load(1, 1), load(2, 2), load(3, 2, at=150)]
    played = play_labels(loads, {0: 2, 1: 1, 2: 1, 4: 0, 8: 0})
    assert played.began == {0: 0.0, 1: 100.0, 2: 0.0, 3: 150.0}


def test_the_cut_found_is_the_best_and_serves_every_size() -> None:
    loads = make(150, 8, 0.9, 5)
    loads = [one for one in loads if one.gpus < 8]
    found = best_labels(loads, 1)
    assert found[1] + 2 * found[2] + 4 * found[4] + 8 * found[8] == 8

    def waited(labels: dict[int, int]) -> float:
        began = play_labels(loads, labels).began
        return sum(began[one.job_id] - one.at for one in loads)

    for fours in range(1, 3):
        for twos in range(1, (8 - 4 * fours) // 2 + 1):
            ones = 8 - 4 * fours - 2 * twos
            if ones:
                assert waited(found) <= waited({0: 2, 1: ones, 2: twos, 4: fours, 8: 0})


def test_a_way_that_starts_nothing_is_seen_to_be_stuck() -> None:
    def never(*_: object) -> list[Assignment]:
        return []

    assert play([load(0, 1), load(1, 8, at=5)], 1, never).stuck == 2
