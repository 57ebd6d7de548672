"""The suite of two ranks: it passes here, a twin that answers otherwise is seen, a rank that dies fails one case."""

import copy
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from runtime.__main__ import main
from runtime.proto import engine_pb2 as pb
from runtime.proto.engine_pb2_grpc import EngineStub
from runtime.server.process import ServerProcess
from runtime.server.shapes import shape
from runtime.smoke import cases
from runtime.smoke.compare import compare
from runtime.smoke.plan import plan
from runtime.smoke.run import run_suite
from tests.runtime.server_kit import WAIT, children, until

if torch.cuda.is_available():
    pytest.skip("a GPU: the suite runs on two of them, by itself", allow_module_level=True)

SYNC, ASYNC = "moe_fp8pb_cuda_graph_sync_tp2", "moe_fp8pb_cuda_graph_async_tp2"


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Sequence[cases.Case]:
    """The case that the suite is there for, and its twin."""
    kept = [case for case in cases.SUITES["tp2"] if case.name in (SYNC, ASYNC)]
    monkeypatch.setitem(cases.SUITES, "tp2", kept)
    return kept


@pytest.mark.exhaustive
def test_the_suite_passes_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", "--suite", "tp2", "--out", str(tmp_path)]) == 0
    assert "total: 30, matched: 30, compare diff count: 0" in capsys.readouterr().out


def test_the_case_is_what_its_name_says(two: Sequence[cases.Case]) -> None:
    (sync,), (overlapped,) = plan(two, "cpu")
    assert (sync.case.name, overlapped.case.name, overlapped.case.twin) == (SYNC, ASYNC, SYNC)
    for planned in (sync, overlapped):
        model = shape(planned.case.model, "cpu").config
        assert model.fp8
        assert model.experts is not None
        assert (planned.config.tensor_parallel, planned.config.buckets) == (2, (8,))
    assert (sync.config.overlap, overlapped.config.overlap) == (False, True)
    assert [word for word in sync.arguments if word != "--no-overlap"] == list(overlapped.arguments)
    assert sync.waves == overlapped.waves
    assert [len(wave) for wave in sync.waves] == [5]


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
    assert compare(made, golden).passed
    made["cases"][ASYNC][0]["ids"] = [7, 7]
    verdict = compare(made, golden)
    assert str(verdict) == "total: 2, matched: 1, compare diff count: 1, visit failed: 0, other: 0"
    made["cases"][SYNC][0]["finish_reason"] = "error"
    verdict = compare(made, golden)
    assert "matched: 0, compare diff count: 0, visit failed: 1, other: 1" in str(verdict)


def test_a_rank_that_dies_fails_its_case_alone_and_says_why(
    two: Sequence[cases.Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, killed = ServerProcess.wait_ready, []

    def wait_ready(self: ServerProcess, seconds: float) -> str:
        address = ready(self, seconds)
        if not killed:
            killed.extend(children(self.process.pid))
            os.kill(killed[0], signal.SIGKILL)
            with grpc.insecure_channel(address) as channel:
                health = EngineStub(channel).Health
                until(
                    lambda: health(pb.HealthRequest(), timeout=WAIT).state == pb.HEALTH_STATE_FAILED,
                    "it is noticed while nobody asks for anything",
                )
        return address

    monkeypatch.setattr(ServerProcess, "wait_ready", wait_ready)
    made = run_suite("tp2", tmp_path).made
    assert len(killed) == 1
    for answer in made["cases"][SYNC]:
        assert "INTERNAL: the engine has failed: RankError: rank 1: killed by SIGKILL" in answer["error"]
        assert "server: ended with status 1" in answer["error"]
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
