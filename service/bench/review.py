"""Seconds and peak memory of the steps of a review that need no model: parse, plan, cluster, render.

Each stage runs in a process of its own, so that its peak is its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_MIB = 2**20
_FINDINGS, _GROWTH = 1_000, 10


@dataclass(frozen=True, slots=True)
class Stage:
    """`seconds` is the median of five runs; `peak_mib` what the process grew by, imports aside."""

    name: str
    seconds: float
    peak_mib: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What `whitesmoke bench review` prints. `unidiff_ratio` is our parse time over unidiff's in the same run,
    None where unidiff is not installed; `memory_ratio` is the peak of parse and plan, patch included, over the
    patch."""

    patch_mib: float
    files: int
    added: int
    stages: tuple[Stage, ...]
    unidiff_seconds: float | None
    unidiff_ratio: float | None
    memory_ratio: float


def run(patch: Path) -> Figures:
    """Measures everything on one patch."""
    size = patch.stat().st_size
    stages = [
        _measure("parse", patch),
        _measure("parse+plan", patch),
        _measure(f"cluster {_FINDINGS}", patch),
        _measure(f"cluster {_FINDINGS * _GROWTH}", patch),
        _measure("render", patch),
    ]
    facts = _child("facts", patch)
    unidiff = _child("unidiff", patch)["seconds"]
    by_name = {stage.name: stage for stage in stages}
    return Figures(
        patch_mib=size / _MIB,
        files=facts["files"],
        added=facts["added"],
        stages=tuple(stages),
        unidiff_seconds=unidiff,
        unidiff_ratio=by_name["parse"].seconds / unidiff if unidiff else None,
        memory_ratio=1 + by_name["parse+plan"].peak_mib * _MIB / size,
    )


def run_synthetic() -> Figures:
    """Measures on a made patch of about 17 MB, 1,467 files and 290,000 added lines."""
    from service.bench.patches import make_patch

    with tempfile.NamedTemporaryFile(suffix=".patch") as file:
        file.write(make_patch())
        file.flush()
        return run(Path(file.name))


def render(figures: Figures) -> str:
    """The figures as a table for people."""
    lines = [
        f"patch: {figures.patch_mib:.1f} MiB, {figures.files:,} files, {figures.added:,} added lines",
        f"{'stage':<18} {'seconds':>9} {'peak MiB':>9}",
        *(f"{stage.name:<18} {stage.seconds:>9.3f} {stage.peak_mib:>9.1f}" for stage in figures.stages),
    ]
    if figures.unidiff_seconds and figures.unidiff_ratio:
        lines.append(
            f"unidiff parses it in {figures.unidiff_seconds:.3f} s; ours takes {figures.unidiff_ratio:.2f} of that"
        )
    lines.append(f"peak of parse+plan: {figures.memory_ratio:.1f} x the patch")
    return "\n".join(lines)


def render_json(figures: Figures) -> str:
    return json.dumps(asdict(figures), indent=2)


def _measure(name: str, patch: Path) -> Stage:
    result = _child(name, patch)
    return Stage(name, result["seconds"], result["peak_mib"])


def _child(name: str, patch: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "service.bench.stages", name, str(patch)],
        capture_output=True,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result
