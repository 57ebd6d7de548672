"""This repository's own `.whitesmoke.yml`: jobs whose steps are commands that exist, and numbers and goldens that CI can read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ci_dispatch import kpis
from ci_dispatch.golden import compare
from ci_dispatch.model import Comparison, JobSpec, Sample, Step
from reviewer.globs import matches
from service.policy import load_policy

ROOT = Path(__file__).parents[2]
CI = load_policy((ROOT / ".whitesmoke.yml").read_text(), ".whitesmoke.yml").ci
JOBS = {job.name: job for job in CI.jobs}
STEPS = [pytest.param(job, step, id=f"{job.name}-{step.name}") for job in CI.jobs for step in job.steps]
GOLDENS = [pytest.param(job, id=job.name) for job in CI.jobs if job.goldens]


def test_the_jobs_are_those_that_the_design_names_and_a_small_one_for_any_machine() -> None:
    assert CI.mode == "runner"
    assert {name: (job.arch, job.gpus) for name, job in JOBS.items()} == {
        "kernels-build": ("cpu", 0),
        "kernels-sm90": ("sm90", 1),
        "runtime-smoke-cpu": ("cpu", 0),
        "runtime-smoke-sm90": ("sm90", 1),
        "runtime-smoke-tp2-sm90": ("sm90", 2),
        "kernels-perf-sm90": ("sm90", 1),
        "runtime-perf-cpu": ("cpu", 0),
    }


@pytest.mark.parametrize(
    ("changed", "jobs"),
    [
        ("docs/runtime.md", set()),
        ("runtime/BENCHMARKS.md", set()),
        ("service/web.py", set()),
        ("kernels/rms_norm.py", set(JOBS) - {"runtime-perf-cpu"}),
        ("kernels/csrc/norms.cu", set(JOBS) - {"runtime-perf-cpu"}),
        ("kernels/bench/rms_norm.py", {"kernels-build", "kernels-sm90", "kernels-perf-sm90"}),
        ("tests/kernels/test_rms_norm.py", {"kernels-sm90"}),
        (
            "runtime/engine.py",
            {"runtime-smoke-cpu", "runtime-smoke-sm90", "runtime-smoke-tp2-sm90", "runtime-perf-cpu"},
        ),
        (
            "runtime/smoke/goldens/cpu-cpu.json",
            {"runtime-smoke-cpu", "runtime-smoke-sm90", "runtime-smoke-tp2-sm90", "runtime-perf-cpu"},
        ),
    ],
)
def test_what_changed_chooses_the_jobs(changed: str, jobs: set[str]) -> None:
    assert {name for name, job in JOBS.items() if matches(changed, job.paths)} == jobs


@pytest.mark.parametrize(("job", "step"), STEPS)
def test_every_step_is_a_command_that_its_program_takes(
    job: JobSpec, step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import kernels.__main__ as kernels
    import runtime.__main__ as runtime

    ran: list[str] = []

    def note(name: str) -> Callable[[object], int]:
        def run(_arguments: object) -> int:
            ran.append(name)
            return 0

        return run

    for name in ("_build", "_bench", "_check"):
        monkeypatch.setattr(kernels, name, note(f"kernels {name[1:]}"))
    monkeypatch.setattr(runtime.smoke, "_smoke", note("runtime smoke"))
    monkeypatch.setattr(runtime.bench, "run", note("runtime bench"))
    commands = [[one.replace("$OUT", str(tmp_path)) for one in step.argv]]
    if commands[0][:2] == ["sh", "-c"]:
        commands = [part.removeprefix("exec ").split() for part in commands[0][2].split(" && ")]
    for python, flag, program, *rest in commands:
        assert (python, flag) == ("python3", "-m")
        if program == "pytest":
            assert (ROOT / rest[-1]).is_dir()
            continue
        assert {"kernels": kernels, "runtime": runtime}[program].main(rest) == 0
        assert ran[-1] == f"{program} {rest[0]}"


@pytest.mark.parametrize("job", CI.jobs, ids=list(JOBS))
def test_the_steps_of_a_job_have_time_in_it(job: JobSpec) -> None:
    longest = max(step.timeout for step in job.steps)
    assert longest <= job.running_minutes * 60


def test_the_operations_that_are_timed_exist() -> None:
    from kernels import registry

    (argv,) = (step.argv for step in JOBS["kernels-perf-sm90"].steps if step.name == "bench")
    names = argv[argv.index("bench") + 1 : argv.index("--kpis")]
    assert set(names) <= set(registry.OPERATIONS)


def test_kernels_are_built_for_the_gpu_that_the_job_gets() -> None:
    for job in CI.jobs:
        if job.gpus:
            build = next(step for step in job.steps if step.name == "build")
            assert build.argv[build.argv.index("--arch") + 1] == job.arch


@pytest.mark.parametrize("job", GOLDENS)
def test_goldens_name_the_file_that_the_suite_writes_and_the_smoke_tests_own_tolerance(job: JobSpec) -> None:
    from runtime.smoke.compare import TOLERANCES

    (one,) = job.goldens
    (smoke,) = (step for step in job.steps if step.name == "smoke")
    suite = smoke.argv[smoke.argv.index("--suite") + 1]
    assert one.output == f"{suite}.json"
    assert one.kept == f"runtime/smoke/goldens/{suite}-{job.arch}.json"
    dtype = "float32" if job.arch == "cpu" else "bfloat16"
    assert one.tolerances["logprobs"].absolute == TOLERANCES[dtype]
    assert one.tolerances["logprobs"].relative == 0
    if not (ROOT / one.kept).exists():
        pytest.skip(f"{one.kept}: not made yet; it takes two GPUs")
    assert json.loads((ROOT / one.kept).read_text())["provenance"]["arch"] == job.arch


def test_a_tampered_answer_of_the_kept_suite_is_a_difference(tmp_path: Path) -> None:
    job = JOBS["runtime-smoke-cpu"]
    (golden,) = job.goldens
    made = json.loads((ROOT / golden.kept).read_text())
    name = next(iter(made["cases"]))
    made["cases"][name][0]["ids"][3] += 1
    (tmp_path / golden.output).write_text(json.dumps(made))
    one: Comparison = compare(golden, tmp_path / golden.output, ROOT / golden.kept, job.arch)
    assert (one.different, one.failed, one.other) == (1, 0, 0)
    assert one.differences[0].field == "ids[3]"


def test_harness_globs_name_files_that_measure() -> None:
    for job in CI.jobs:
        for glob in job.perf.harness if job.perf else ():
            assert any(matches(str(path.relative_to(ROOT)), [glob]) for path in ROOT.glob("*/bench/*.py")), (
                glob
            )


def read(path: Path) -> list[Sample]:
    samples, bad = kpis.read(path, "head", 0, below=path.parent)
    assert bad == []
    return samples


def test_the_bench_of_any_machine_writes_numbers_that_ci_takes(tmp_path: Path) -> None:
    (step,) = JOBS["runtime-perf-cpu"].steps
    argv = [one.replace("$OUT", str(tmp_path)) for one in step.argv[1:]]
    subprocess.run([sys.executable, *argv], cwd=ROOT, check=True, timeout=120, capture_output=True)
    samples = read(tmp_path / "kpis.json")
    assert [(one.name, one.unit) for one in samples] == [
        ("decode step, references, batch 1", "ms"),
        ("decode step, references, batch 8", "ms"),
    ]


def test_a_kernels_row_is_a_number_with_its_share_of_copy_bandwidth(tmp_path: Path) -> None:
    from kernels.bench import report
    from kernels.bench.harness import Figures, Row

    row = Row("rms_norm", "[64, 7168] bf16", lambda seed: seed, lambda inputs: None, 4_000_000, 1)
    figures = Figures(us=2.0, hot_us=1.5, outside_us=None, floor_us=1.0, of_copy=0.5, tflops=0.0, peers={})
    path = tmp_path / "kpis.json"
    path.write_text(json.dumps({"kpis": [report.kpi(row, figures)]}))
    (one,) = read(path)
    assert (one.name, one.value, one.unit) == ("rms_norm [64, 7168] bf16", 2.0, "us")
    assert one.extra == {"copy_percent": 50.0, "floor_us": 1.0}


def test_kernels_rows_have_names_of_their_own_that_ci_takes(tmp_path: Path) -> None:
    from kernels import registry
    from kernels.bench import report
    from kernels.bench.harness import Figures

    figures = Figures(us=2.0, hot_us=None, outside_us=None, floor_us=1.0, of_copy=0.5, tflops=0.0, peers={})
    rows = [row for name in registry.OPERATIONS for row in registry.benchmark(name).rows()]
    path = tmp_path / "kpis.json"
    path.write_text(json.dumps({"kpis": [report.kpi(row, figures) for row in rows]}))
    assert len(read(path)) == len(rows) > 100


def test_the_kernels_bench_writes_its_numbers_as_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    from kernels.bench import report
    from kernels.bench.harness import Figures, Row

    def measure(row: Row, _bandwidth: float, *, with_peers: bool) -> Figures:
        if row.shape == "broken":
            raise ValueError("no")
        return Figures(us=2.0, hot_us=None, outside_us=None, floor_us=1.0, of_copy=0.5, tflops=0.0, peers={})

    def rows(name: str) -> list[Row]:
        shapes = ["ok"] if name == "first" else ["broken"]
        return [Row(name, shape, lambda seed: seed, lambda inputs: None, 1, 1) for shape in shapes]

    monkeypatch.setattr(report.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(report.torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(report, "copy_bandwidth", lambda: 4e12)
    monkeypatch.setattr(report, "describe", lambda bandwidth: {})
    monkeypatch.setattr(report, "measure", measure)
    monkeypatch.setattr(report.registry, "benchmark", lambda name: SimpleNamespace(rows=lambda: rows(name)))
    path = tmp_path / "kpis.json"
    assert report.run(["first", "second"], with_peers=False, json_file=None, kpis_file=path) == 1
    assert [one.name for one in read(path)] == ["first ok"]


def test_decode_steps_are_numbers_with_their_share_of_the_floor(tmp_path: Path) -> None:
    from dataclasses import asdict

    from runtime.bench import cli, decode

    row = decode.DecodeFigures(64, 512, "xqa", 2.0, 2.25, 1.5, 14.0, 0.75, 3.0, 228)
    path = tmp_path / "kpis.json"
    path.write_text(json.dumps({"kpis": cli.decode_kpis([asdict(row)])}))
    step, replay = read(path)
    assert (step.name, step.value, step.extra) == (
        "decode step, xqa, batch 64, context 512",
        2.0,
        {"floor_percent": 37.5},
    )
    assert (replay.name, replay.value) == ("decode replay, xqa, batch 64, context 512", 1.5)
