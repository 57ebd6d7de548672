"""The commands `check` and `bench`: verdicts that can fail, and a table that says what a figure means."""

import sys
from types import ModuleType

import pytest
import torch

from kernels import check, registry
from kernels.__main__ import main
from kernels.bench import markdown, report
from kernels.bench.harness import Figures, Row

NAN = float("nan")


def _operation(monkeypatch: pytest.MonkeyPatch, error: float | Exception, bound: float) -> None:
    module = ModuleType("kernels.stand_in")

    def run(_device: torch.device) -> tuple[float, float]:
        if isinstance(error, Exception):
            raise error
        return error, bound

    module.__dict__["check"] = run
    monkeypatch.setitem(sys.modules, "kernels.stand_in", module)
    monkeypatch.setattr(registry, "OPERATIONS", ("stand_in",))


@pytest.mark.parametrize(
    ("error", "status", "verdict"),
    [
        (1e-3, 0, "ok"),
        (2e-2, 1, "FAIL"),
        (NAN, 1, "FAIL"),
        (ValueError("q: expected shape [4], got [3]"), 1, "q: expected shape [4], got [3]"),
    ],
)
def test_check_passes_within_the_bound_alone(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: float | Exception,
    status: int,
    verdict: str,
) -> None:
    _operation(monkeypatch, error, 1e-2)
    assert main(["check"]) == status
    printed = capsys.readouterr().out
    assert verdict in printed
    assert f"{1 - status} of 1 operations within their bounds" in printed
    assert f"torch {torch.__version__}" in printed


def test_check_of_nothing_fails() -> None:
    assert check.run([]) == 1


def test_check_names_an_unknown_operation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "norm"]) == 1
    assert "operation: expected one of" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU here can run the benchmark")
def test_bench_without_a_gpu_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 1
    assert "no GPU" in capsys.readouterr().out


def _row(**changes: object) -> Row:
    values: dict[str, object] = {
        "operation": "rms_norm",
        "shape": "[64, 7168] bf16",
        "make_inputs": lambda seed: seed,
        "run": lambda inputs: None,
        "bytes_moved": 4_000_000,
        "input_bytes": 1,
        "target": ">= 90 %",
        "met": lambda figures: figures.of_copy >= 0.9,
    }
    return Row(**(values | changes))  # type: ignore[arg-type]


def test_a_line_holds_time_floor_share_ratio_and_verdict() -> None:
    figures = Figures(
        us=2.0,
        hot_us=1.5,
        outside_us=9.0,
        floor_us=1.0,
        of_copy=0.5,
        tflops=0.0,
        peers={"eager": 5.0, "flashinfer": "not installed"},
    )
    line = report.line(_row(), figures)
    for part in (
        "2.00 us",
        "(hot 1.50)",
        "(outside a graph 9.00)",
        "floor 1.00",
        "2000 GB/s",
        "50.0% of copy",
        "eager 5.00 (2.50x)",
    ):
        assert part in line
    assert "flashinfer: not installed" in line
    assert line.endswith("target >= 90 %: missed")
    assert report.line(_row(met=lambda f: f.of_copy >= 0.5), figures).endswith(": met")
    assert figures.ratio("eager") == 2.5


def test_the_record_keeps_the_verdict() -> None:
    figures = Figures(us=2.0, hot_us=None, outside_us=None, floor_us=1.9, of_copy=0.95, tflops=0.0, peers={})
    assert report.record(_row(), figures)["verdict"] == "met"
    assert report.record(_row(target="", met=None), figures)["verdict"] == ""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU to time on")
def test_the_harness_orders_a_short_and_a_long_copy() -> None:
    from kernels.bench.harness import copy_bandwidth, graph_us

    small = torch.randn(1 << 20, device="cuda")
    large = torch.randn(1 << 28, device="cuda")
    short = graph_us(lambda t: t.clone(), [small])
    long = graph_us(lambda t: t.clone(), [large])
    assert 0 < short < long
    assert copy_bandwidth(1 << 30) > 1e11


def test_the_page_gets_its_figures_and_keeps_its_words() -> None:
    figures = Figures(
        us=2.0,
        hot_us=1.5,
        outside_us=None,
        floor_us=1.0,
        of_copy=0.5,
        tflops=0.0,
        peers={"eager": 5.0, "other": "absent"},
    )
    page = f"before\n{markdown.BEGIN}\nold\n{markdown.END}\nafter\n"
    text = markdown.tables({"about": {"device": "H200"}, "rows": [report.record(_row(), figures)]})
    made = markdown.replace_between_marks(page, text)
    assert made.startswith("before\n")
    assert made.endswith("after\n")
    assert "old" not in made
    assert "Measured device H200." in made
    assert (
        "| [64, 7168] bf16 | **2.00** (hot 1.50) | 1.00 | 50.0% | eager 5.00 (2.50×); other: absent |" in made
    )
    assert ">= 90 %: **missed** |" in made
    with pytest.raises(ValueError, match="expected the marks"):
        markdown.replace_between_marks("no marks", text)
