"""Every operation's small check under compute-sanitizer; planted faults first, or silence would prove nothing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
FOUND = 86
"""Exit status that the sanitizer is told to give when it found something."""

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: nothing to watch"),
    pytest.mark.skipif(
        shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not installed"
    ),
]


def _watch(tool: str, *module: str) -> subprocess.CompletedProcess[str]:
    # Without torch's caching allocator each tensor is an allocation of its own, and a step past its end is seen.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": str(ROOT)}
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "5"]
    return subprocess.run(
        [*command, sys.executable, "-m", *module],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        check=False,
    )


@pytest.mark.parametrize(
    ("tool", "fault", "words"),
    [("memcheck", "out_of_bounds", "Invalid __global__ write"), ("racecheck", "race", "Race reported")],
)
def test_a_planted_fault_is_caught(tool: str, fault: str, words: str) -> None:
    done = _watch(tool, "tests.kernels.planted", fault)
    assert done.returncode == FOUND, done.stdout + done.stderr
    assert words in done.stdout + done.stderr


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_every_operation_is_clean(tool: str) -> None:
    done = _watch(tool, "kernels", "check")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "operations within their bounds" in done.stdout
