"""The service killed at its points: every commit and every call to the forge."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.bench.faults import FaultsResult, run

SERVICE = Path(__file__).parents[2] / "service"


def assert_sound(result: FaultsResult) -> None:
    assert result.lost == ()
    assert result.duplicated == ()


def test_nothing_is_lost_and_nothing_stands_twice_at_a_sample_of_the_points() -> None:
    result = run(sample=24, flows=("review",))
    assert result.runs == 24
    assert_sound(result)


def test_no_job_is_lost_and_none_counts_twice_at_a_sample_of_the_points() -> None:
    """Killed between comment, gate, run, lease, report, verdict, check and comment; the runner dies too, or lives on."""
    result = run(sample=10, flows=("ci",))
    assert result.runs == 10
    assert_sound(result)


@pytest.mark.exhaustive
@pytest.mark.parametrize("flow", ["review", "ci"])
def test_nothing_is_lost_and_nothing_stands_twice_at_any_point(flow: str) -> None:
    result = run(flows=(flow,))
    assert result.runs == result.points > 100
    assert_sound(result)


def test_no_commit_and_no_outward_call_goes_past_the_points() -> None:
    """All transactions are `Database.write`'s, and only forges and the webhook's sender speak HTTP."""
    past = re.compile(
        r"\.engine\.(connect|begin)\(|sessionmaker|import (requests|httpx|urllib\.request)|urlopen\("
    )
    allowed = {"store/database.py", "webhook_client.py", "cli/pull.py"}
    found = {
        str(path.relative_to(SERVICE))
        for path in SERVICE.rglob("*.py")
        if past.search(path.read_text("utf-8")) and not path.is_relative_to(SERVICE / "forge" / "github")
    }
    assert {name for name in found if not name.startswith(("demo/", "bench/", "doctor/"))} <= allowed
