"""`python -m kernels build`: in processes of their own, since the interpreter that the other tests use compiles nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels import cuda, registry, target

ROOT = Path(__file__).parents[2]


@pytest.fixture
def caches(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return kept | {
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
        "WHITESMOKE_KERNEL_CACHE": str(tmp_path / "cuda"),
        "PYTHONPATH": str(ROOT),
    }


def _build(
    environment: dict[str, str], cases: list[str], *archs: str
) -> tuple[int, str, list[dict[str, object]]]:
    """Build planted cases; returns exit status, what was printed, the variants of the JSON."""
    report = Path(environment["TRITON_CACHE_DIR"]).parent / "report.json"
    report.unlink(missing_ok=True)
    program = (
        "import sys\nfrom tests.kernels import planted\nfrom kernels.__main__ import main\n"
        f"planted.install(*{cases!r})\nsys.exit(main(['build', '--arch', *{archs!r}, '--json', {str(report)!r}]))"
    )
    # The build's workers are forked from a process with no file of its own: kernels come from tests/kernels/planted.py.
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        check=False,
    )
    variants = json.loads(report.read_text())["variants"] if report.exists() else []
    return done.returncode, done.stdout + done.stderr, variants


def test_compiles_then_finds_everything_compiled(caches: dict[str, str]) -> None:
    status, text, variants = _build(caches, ["plain", "fp8"], "sm90", "sm120")
    assert status == 0, text
    assert sorted((v["case"], v["arch"], v["status"]) for v in variants) == [
        ("planted/fp8", "sm120", "compiled"),
        ("planted/fp8", "sm90", "compiled"),
        ("planted/plain", "sm120", "compiled"),
        ("planted/plain", "sm90", "compiled"),
    ]
    assert all(v["registers"] and v["binary_bytes"] and not v["spill_bytes"] for v in variants)
    status, text, again = _build(caches, ["plain", "fp8"], "sm90", "sm120")
    assert status == 0, text
    assert {v["status"] for v in again} == {"cached"}
    assert {v["key"] for v in again} == {v["key"] for v in variants}


def test_a_missing_feature_is_reported_with_its_reason(caches: dict[str, str]) -> None:
    status, text, variants = _build(caches, ["plain", "fp8"], "sm80")
    assert status == 0, text
    by_case = {v["case"]: v for v in variants}
    assert by_case["planted/plain"]["status"] == "compiled"
    assert by_case["planted/fp8"]["status"] == "unsupported"
    assert f"unsupported on sm80, since {target.REASONS['fp8']}: planted/fp8" in text


def test_the_reason_is_true_since_the_compiler_refuses(caches: dict[str, str]) -> None:
    status, text, _ = _build(caches, ["undeclared_fp8"], "sm80")
    assert status == 1
    assert "fp8e4nv not supported in this architecture" in text


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("spilling", "spills"),
        ("too_much_shared", "bytes of shared memory, a block has 232448"),
        ("broken", "ValueError: rows: expected 4, got 3"),
        ("silent", "the case launched nothing"),
    ],
)
def test_errors_fail_the_build_by_name(caches: dict[str, str], case: str, reason: str) -> None:
    status, text, variants = _build(caches, ["plain", case], "sm90")
    assert status == 1
    assert f"error: sm90 planted/{case}" in text
    assert reason in text
    assert {v["case"]: v["status"] for v in variants} == {
        "planted/plain": "compiled",
        f"planted/{case}": "failed",
    }


def test_refuses_an_unknown_operation_and_the_interpreter(caches: dict[str, str]) -> None:
    command = [sys.executable, "-m", "kernels", "build", "norm", "--arch", "sm90"]
    unknown = subprocess.run(command, capture_output=True, text=True, env=caches, cwd=ROOT, check=False)
    assert unknown.returncode == 2
    assert "operation: expected one of" in unknown.stderr
    interpreted = subprocess.run(
        command, capture_output=True, text=True, env=caches | {"TRITON_INTERPRET": "1"}, cwd=ROOT, check=False
    )
    assert interpreted.returncode == 2
    assert "TRITON_INTERPRET: expected it unset" in interpreted.stderr


@pytest.mark.parametrize("name", registry.OPERATIONS)
def test_case_names_are_unique_and_begin_with_the_operation(name: str) -> None:
    names = [case.name for case in registry.module(name).build_cases()]
    assert names
    assert len(set(names)) == len(names)
    assert all("/" in case for case in names)


@pytest.mark.skipif(not cuda.available(), reason="no nvcc: install requirements/gpu.txt")
def test_every_cuda_source_is_reached_by_a_case(caches: dict[str, str]) -> None:
    program = """
from kernels import cuda, launch, registry, target
reached = set()
with target.building("sm90"), launch.recording(lambda *_: None), cuda.recording(lambda lib, _: reached.add(lib.source)):
    for name in registry.OPERATIONS:
        for case in registry.module(name).build_cases():
            case.call()
print(*sorted(reached))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=caches, cwd=ROOT, check=False
    )
    assert done.stdout.split() == sorted(path.name for path in cuda.SOURCES.glob("*.cu")), done.stderr
