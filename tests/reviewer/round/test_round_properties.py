"""The identities between the numbers of a round, over generated rounds in which anything may fail."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reviewer.engines.base import CompletionFailed, Request
from reviewer.ledger import Ledger
from reviewer.model import FactCheck, Outcome, RoundReport
from tests.kit.engines import Reply, ScriptedEngine
from tests.kit.rounds import review

PATHS = ("cache/pages.py", "cache/slots.py", "serve/loop.py", "kernels/copy.cu")
TOPICS = (
    ("the last page is written past its end", "An off-by-one in the loop bound."),
    ("a lock is held while the file is fetched", "Every other request waits for the network."),
    ("the retry has no limit", "A dead endpoint is asked for ever."),
    ("the error swallows its cause", "Nobody can tell why the load failed."),
    ("numbers are compared as text", "10 sorts before 9."),
)


def tree(rng: random.Random) -> dict[str, str]:
    return {
        path: "".join(f"line_{i} = {rng.randrange(4)}\n" for i in range(rng.randrange(3, 30)))
        for path in PATHS
        if rng.random() < 0.9
    }


class RandomReps:
    """Reps that answer at random: well, badly, late, or with findings that repeat, conflict or make no sense."""

    def __init__(self, rng: random.Random, head: dict[str, str], failing: float) -> None:
        self._rng = rng
        self._head = head
        self._failing = failing

    def __call__(self, request: Request) -> Reply:
        rng, step = self._rng, request.key.step
        if rng.random() < self._failing:
            return rng.choice(["", "no JSON", '{"findings": 3}', CompletionFailed("timeout", "late")])
        if step in ("discover", "confirm"):
            return {
                "findings": [self.finding() for _ in range(rng.randrange(4))],
                "strengths": rng.sample(["clear names", "good tests", "small functions"], rng.randrange(3)),
            }
        if step == "recheck":
            return {"answer": rng.choice(["fixed", "fixed", "still_open", "cannot_substantiate"])}
        if step == "fact_check":
            return {"verdict": rng.choice(["hold", "hold", "refuted"]), "evidence": "seen"}
        if step == "dedup":
            return {"groups": rng.choice([[], [[0, 1]], [[0, 5]], [[1, 0]]])}
        topic = rng.choice(TOPICS)
        return {"title": topic[0], "body": topic[1]}

    def finding(self) -> dict[str, Any]:
        rng = self._rng
        path = rng.choice(PATHS)
        lines = self._head.get(path, "nothing\n").splitlines()
        line = rng.randrange(len(lines))
        topic = rng.choice(TOPICS)
        return {
            "path": path,
            "line_start": line + 1,
            "line_end": line + 1,
            "severity": rng.choice(["P0", "P1", "P1", "P1", "P2", "P3"]),
            "title": topic[0],
            "body": topic[1],
            "quoted_code": rng.choice([lines[line], lines[line], "not there at all"]),
        }


def assert_identities(report: RoundReport, engine: ScriptedEngine, before: Ledger) -> None:
    kpi = report.kpi
    everything = (*report.blocking, *report.non_blocking, *report.closed)

    assert kpi.discover_ok + kpi.discover_fail == kpi.reps * kpi.shards
    assert kpi.discover_attempts == len([key for key in engine.asked("discover") if key.turn == 0])
    assert kpi.discover_attempts >= kpi.discover_ok + kpi.discover_fail
    assert kpi.new_findings + kpi.merged == kpi.clusters
    assert kpi.synth_fail <= kpi.clusters
    assert kpi.confirm.to_block <= kpi.confirm.candidates
    assert kpi.confirm.confirm_fail <= 2 * kpi.confirm.candidates
    checks = kpi.fact_check
    assert checks.checked == checks.hold + checks.refuted + checks.parse_fail
    held = {one.id for one in before.open_findings() if one.blocking}
    new = [one for one in everything if one.last_round == kpi.round_index and one.id not in held]
    assert checks.checked == sum(one.fact_check is not None for one in new)
    assert checks.refuted == sum(one.fact_check is FactCheck.REFUTED for one in new)
    rechecked = kpi.recheck
    asked = Counter(one.recheck for one in everything if one.recheck is not None)
    assert sum(rechecked.model_dump().values()) == asked.total()
    assert kpi.blocking == len(report.blocking)
    assert kpi.blocking_on_unchanged <= kpi.blocking
    assert kpi.round_index == report.round_index == before.rounds + 1
    assert kpi.delta_files <= kpi.full_files
    assert 0 <= kpi.coverage <= 1
    assert kpi.diff_truncated == (kpi.coverage < 1)
    assert kpi.checklist.fail + kpi.checklist.unsure <= kpi.checklist.total == len(report.checklist)

    ids = [one.id for one in everything]
    assert len(ids) == len(set(ids))
    assert all(fate.finding_id in ids for fate in report.fates)
    assert all(one.support <= one.of for one in everything)
    assert all(one.blocking for one in report.blocking)
    assert not any(one.blocking for one in report.non_blocking)
    assert all(one.severity.can_block for one in report.blocking)
    assert all(one.demoted for one in report.non_blocking if one.severity.can_block and not one.carried)
    still_open = {one.id for one in before.open_findings()}
    assert still_open <= set(ids), "an open finding vanished"

    outcome = report.verdict.outcome
    assert (outcome is Outcome.BLOCKED) == bool(report.blocking)
    assert report.verdict.blocking == len(report.blocking)
    if outcome is Outcome.LGTM:
        assert not report.verdict.reasons
        assert checks.parse_fail == 0
        assert kpi.coverage == 1


def play(seed: int, rounds: int) -> None:
    rng = random.Random(seed)
    base, ledger = tree(rng), Ledger()
    policy = {
        "reps": (reps := rng.randrange(1, 6)),
        "agentic_reps": 0,
        "quorum": rng.randrange(1, reps + 1),
        "attempts": rng.randrange(1, 3),
        "shard_tokens": rng.choice([500, 24_000]),
        "max_shards": rng.choice([1, 16]),
    }
    for _ in range(rounds):
        head = tree(rng)
        engine = ScriptedEngine(RandomReps(rng, head, failing=rng.choice([0.0, 0.1, 0.5, 1.0])))
        result = review(engine, base=base, head=head, ledger=ledger, full=rng.random() < 0.2, **policy)
        if not result.reprinted:
            assert_identities(result.report, engine, ledger)
        json.loads(result.report.model_dump_json())
        assert Ledger.from_json(result.ledger.to_json(), "ledger") == result.ledger
        ledger = result.ledger


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_the_identities_of_every_kpi_hold_over_generated_rounds(seed: int) -> None:
    play(seed, rounds=4)


@pytest.mark.exhaustive
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_the_identities_of_every_kpi_hold_over_many_generated_rounds(seed: int) -> None:
    play(seed, rounds=6)
