"""The benchmark's synthetic patch: what its arguments promise, and how little memory parsing needs."""

from __future__ import annotations

import subprocess
import tracemalloc
from pathlib import Path

from reviewer.diff import parse
from service.bench.patches import make_patch


def test_a_synthetic_patch_has_the_files_and_lines_asked_for() -> None:
    for files, added, seed in ((1, 0, 0), (1, 100, 0), (2, 1, 0), (45, 1000, 1), (80, 9_000, 2)):
        diff = parse(make_patch(files, added, seed))
        assert len(diff.files) == files
        assert sum(file.added for file in diff.files) == added
    assert {file.status for file in diff.files} == {"added", "deleted", "modified"}


def test_a_synthetic_patch_depends_on_its_arguments_alone() -> None:
    assert make_patch(20, 500, 7) == make_patch(20, 500, 7) != make_patch(20, 500, 8)


def test_git_reads_a_synthetic_patch_alike(tmp_path: Path) -> None:
    patch = make_patch(60, 3000)
    numstat = subprocess.run(
        ["git", "apply", "--numstat", "-"], input=patch, capture_output=True, check=True, cwd=tmp_path
    ).stdout.decode()
    ours = "".join(f"{file.added}\t{file.removed}\t{file.path}\n" for file in parse(patch).files)
    assert numstat == ours


def test_parsing_needs_less_memory_than_the_patch_itself() -> None:
    patch = make_patch(200, 40_000)
    tracemalloc.start()
    diff = parse(patch)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(diff.files) == 200
    assert peak < len(patch) / 2
