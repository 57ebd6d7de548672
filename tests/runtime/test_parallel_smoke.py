"""The suite of two ranks: it passes here, a twin that answers otherwise is seen, a rank that dies fails one case."""

import copy
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.__main__ import main
from runtime.parallel.engine import ParallelEngine
from runtime.request import Request
from runtime.smoke import cases, run

if torch.cuda.is_available():
    pytest.skip("a GPU: the suite runs on two of them, by itself", allow_module_level=True)

SYNC, ASYNC = "moe_fp8pb_cuda_graph_sync_tp2", "moe_fp8pb_cuda_graph_async_tp2"


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Sequence[cases.Case]:
    """The case that the suite is there for, and its twin."""
    kept = [case for case in cases.SUITES["tp2"] if case.name in (SYNC, ASYNC)]
    monkeypatch.setitem(cases.SUITES, "tp2", kept)
    return kept


def test_the_suite_passes_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", "--suite", "tp2", "--out", str(tmp_path)]) == 0
    assert "total: 30, matched: 30, compare diff count: 0" in capsys.readouterr().out


def test_the_case_is_what_its_name_says(two: Sequence[cases.Case]) -> None:
    sync, overlapped = two
    assert (sync.name, overlapped.name, overlapped.twin) == (SYNC, ASYNC, SYNC)
    for case in two:
        assert case.model.fp8
        assert case.model.experts is not None
        assert (case.ranks, case.options.buckets) == (2, (8,))
    assert (sync.options.overlap, overlapped.options.overlap) == (False, True)
    assert replace(sync.options, overlap=True) == overlapped.options
    assert (sync.prompts, sync.sampling, sync.model) == (
        overlapped.prompts,
        overlapped.sampling,
        overlapped.model,
    )


def _made() -> dict[str, Any]:
    answer = {"ids": [1, 2], "text": "", "logprobs": [None, None], "finish_reason": "length", "error": ""}
    where = {"suite": "tp2", "arch": "cpu", "dtype": "float32"}
    return {
        "provenance": where,
        "twins": {ASYNC: SYNC},
        "cases": {SYNC: [answer], ASYNC: [copy.deepcopy(answer)]},
    }


def test_a_twin_is_what_is_compared_with() -> None:
    made, golden = _made(), _made()
    golden["cases"][ASYNC][0]["ids"] = [7, 7]
    assert run.compare(made, golden).passed
    made["cases"][ASYNC][0]["ids"] = [7, 7]
    verdict = run.compare(made, golden)
    assert str(verdict) == "total: 2, matched: 1, compare diff count: 1, visit failed: 0, other: 0"
    made["cases"][SYNC] = {"error": "broken"}
    verdict = run.compare(made, golden)
    assert "matched: 0, compare diff count: 0, visit failed: 1, other: 1" in str(verdict)


def test_a_rank_that_dies_fails_its_case_alone(
    two: Sequence[cases.Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted = ParallelEngine.submit
    killed: list[int] = []

    def submit(self: ParallelEngine, *arguments: Any, **named: Any) -> Request:
        if not killed:
            killed.append(self._processes._processes[1].pid)
            os.kill(killed[0], signal.SIGKILL)
        return submitted(self, *arguments, **named)

    monkeypatch.setattr(ParallelEngine, "submit", submit)
    made = run.run_suite("tp2", tmp_path)
    assert made["cases"][SYNC] == {"error": "RankError: rank 1: killed by SIGKILL"}
    assert [answer["finish_reason"] for answer in made["cases"][ASYNC]] == ["length"] * 5


def test_one_gpu_where_two_are_asked(
    two: Sequence[cases.Case], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert main(["smoke", "--suite", "tp2"]) == 2
    assert (
        "error: suite tp2: 2 ranks: expected 2 GPUs, there are 1; ask for fewer ranks"
        in capsys.readouterr().err
    )
