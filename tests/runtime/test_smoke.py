"""The smoke suite: it passes here, and every way in which it must fail does fail."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.__main__ import main
from runtime.smoke import cases, run


def _made() -> dict[str, Any]:
    answer = {"ids": [1, 2], "text": "ab", "logprobs": [-0.5, -1.0], "finish_reason": "length", "error": ""}
    provenance = {
        "suite": "cpu",
        "arch": "cpu",
        "dtype": "float32",
        "torch": "2",
        "triton": "3",
        "commit": "c",
    }
    return {
        "provenance": provenance,
        "cases": {"a": [copy.deepcopy(answer) for _ in range(2)], "b": [answer]},
    }


def test_equal_answers_match() -> None:
    verdict = run.compare(_made(), _made())
    assert verdict.passed
    assert str(verdict) == "total: 3, matched: 3, compare diff count: 0, visit failed: 0, other: 0"


def test_log_probabilities_have_a_tolerance() -> None:
    made = _made()
    made["cases"]["a"][0]["logprobs"][1] += 5e-5
    assert run.compare(made, _made()).passed


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda made: made["cases"]["a"][1].update(ids=[1, 3]), "matched: 2, compare diff count: 1,"),
        (lambda made: made["cases"]["a"][1].update(text="aB"), "matched: 2, compare diff count: 1,"),
        (lambda made: made["cases"]["a"][1].update(ids=[9], text=""), "matched: 2, compare diff count: 1,"),
        (lambda made: made["cases"]["b"][0].update(finish_reason="stop"), "compare diff count: 1,"),
        (lambda made: made["cases"]["b"][0].update(logprobs=[-0.5, -1.1]), "compare diff count: 1,"),
        (lambda made: made["cases"]["b"][0].update(logprobs=[-0.5, float("nan")]), "compare diff count: 1,"),
        (lambda made: made["cases"]["b"][0].update(logprobs=[-0.5, None]), "compare diff count: 1,"),
        (
            lambda made: made["cases"]["b"][0].update(finish_reason="error", error="NaN"),
            "visit failed: 1, other: 0",
        ),
        (lambda made: made["cases"]["b"][0].update(finish_reason="abort"), "visit failed: 1, other: 0"),
        (lambda made: made["cases"]["b"][0].update(finish_reason=None), "visit failed: 1, other: 0"),
        (
            lambda made: made["cases"].update(b={"error": "RuntimeError: no"}),
            "matched: 2, compare diff count: 0, visit failed: 1",
        ),
        (
            lambda made: made["cases"].update(c=made["cases"]["b"]),
            "matched: 3, compare diff count: 0, visit failed: 0, other: 1",
        ),
        (
            lambda made: made["cases"].pop("b"),
            "total: 2, matched: 2, compare diff count: 0, visit failed: 0, other: 1",
        ),
        (lambda made: made["cases"]["a"].append(made["cases"]["b"][0]), "other: 1"),
        (lambda made: made.update(cases={}), "total: 0, matched: 0"),
    ],
)
def test_what_must_not_pass(change: Change, line: str) -> None:
    made = _made()
    change(made)
    verdict = run.compare(made, _made())
    assert not verdict.passed
    assert line in str(verdict)


def test_nothing_asked_and_nothing_kept_is_no_pass() -> None:
    empty = _made() | {"cases": {}}
    assert not run.compare(empty, empty).passed


@pytest.mark.parametrize("key", ["arch", "dtype", "suite"])
def test_answers_of_another_machine_are_refused_not_compared(key: str) -> None:
    kept = _made()
    kept["provenance"][key] = "sm120"
    with pytest.raises(run.SmokeError, match=f"kept for {key} sm120, this is .*: not comparable"):
        run.compare(_made(), kept)


@pytest.fixture
def small_suite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Two cases of the CPU suite, and a folder of goldens of their own."""
    monkeypatch.setitem(
        cases.SUITES,
        "cpu",
        [case for case in cases.SUITES["cpu"] if case.name.startswith(("greedy", "stop"))],
    )
    monkeypatch.setattr(run, "GOLDENS", tmp_path / "goldens")
    monkeypatch.setattr(run.golden_path, "__defaults__", (tmp_path / "goldens",))
    monkeypatch.setattr(run.read_golden, "__defaults__", (tmp_path / "goldens",))
    return tmp_path


def test_keep_then_match_then_a_change_is_shown(
    small_suite: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(small_suite / "out")]
    assert main(["smoke", "--suite", "cpu", *out]) == 2
    assert "no kept answers for this architecture" in capsys.readouterr().err
    assert main(["smoke", "--suite", "cpu", "--rebaseline", *out]) == 0
    assert main(["smoke", "--suite", "cpu", *out]) == 0
    assert "total: 4, matched: 4, compare diff count: 0, visit failed: 0, other: 0" in capsys.readouterr().out
    golden = run.golden_path("cpu")
    kept = json.loads(golden.read_text())
    kept["cases"]["greedy, reference"][1]["ids"][3] += 1
    golden.write_text(json.dumps(kept))
    assert main(["smoke", "--suite", "cpu", *out]) == 1
    printed = capsys.readouterr().out
    assert "greedy, reference, request 1: ids: expected" in printed
    assert "matched: 3, compare diff count: 1," in printed
    assert json.loads((small_suite / "out/cpu.json").read_text())["provenance"]["arch"] == "cpu"


def test_a_case_that_breaks_is_a_failed_visit(small_suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = ["--out", str(small_suite / "out")]
    assert main(["smoke", "--suite", "cpu", "--rebaseline", *out]) == 0
    first = cases.SUITES["cpu"][0]
    broken = replace(first, options=replace(first.options, pages=2))
    monkeypatch.setitem(cases.SUITES, "cpu", [broken, *cases.SUITES["cpu"][1:]])
    assert main(["smoke", "--suite", "cpu", *out]) == 1


def test_an_unknown_suite_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", "--suite", "tpu"]) == 2
    assert "suite: expected one of cpu, gpu, tp2, got tpu" in capsys.readouterr().err


def test_the_suite_passes_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", "--suite", "cpu", "--out", str(tmp_path)]) == 0
    assert "compare diff count: 0, visit failed: 0, other: 0" in capsys.readouterr().out
