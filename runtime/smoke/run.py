"""Runs a suite, keeps every raw output, and sums up what became of it."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runtime.parallel.connect import DevicesError, require_devices
from runtime.smoke import direct
from runtime.smoke.cases import SUITES
from runtime.smoke.compare import Verdict
from runtime.smoke.errors import SmokeError
from runtime.smoke.golden import device_of, provenance
from runtime.smoke.plan import plan
from runtime.smoke.servers import Servers

TWO_RANKS = 2


@dataclass(frozen=True)
class Run:
    """What a suite gave.

    Attributes:
        made: `provenance`, `twins` and `cases`, as they are kept.
        seconds: of each request, by the case's name.
        total_seconds: of everything, starts and ends of servers among it.
        is_direct: the engine was asked, not servers.
    """

    made: dict[str, Any]
    seconds: Mapping[str, list[float]]
    total_seconds: float
    is_direct: bool


def run_suite(suite: str, out: Path, *, is_direct: bool = False) -> Run:
    """Ask everything of a suite; raw outputs also go to `out/suite.json`, whatever becomes of the comparison.

    Args:
        is_direct: ask the engine itself, not servers.

    Raises:
        SmokeError: no such suite, no device for it, or a case that is none.
    """
    if suite not in SUITES:
        raise SmokeError(f"suite: expected one of {', '.join(SUITES)}, got {suite}")
    if suite == "gpu" and not torch.cuda.is_available():
        raise SmokeError("suite gpu: no GPU here; --suite cpu runs anywhere")
    device = device_of(suite)
    if suite == "tp2":
        try:
            require_devices(device, TWO_RANKS)
        except DevicesError as error:
            raise SmokeError(f"suite {suite}: {error}") from None
    started = time.monotonic()
    groups = plan(SUITES[suite], device)
    if is_direct:
        visits = direct.answer_all(groups)
    else:
        with Servers() as servers:
            visits = servers.visit_all(groups)
    made = {
        "provenance": provenance(suite),
        "twins": {case.name: case.twin for case in SUITES[suite] if case.twin is not None},
        "cases": {name: [one.answer for one in asked] for name, asked in visits.items()},
    }
    out.mkdir(parents=True, exist_ok=True)
    _write(out / f"{suite}.json", made)
    seconds = {name: [one.seconds for one in asked] for name, asked in visits.items()}
    return Run(made, seconds, time.monotonic() - started, is_direct)


def write_summary(path: Path, run: Run, verdict: Verdict | None, error: str = "") -> None:
    """What a CI job keeps as evidence beside its own comparison: counts, each request's status and seconds.

    Args:
        verdict: None where nothing could be compared; `error` then says why.
    """
    counts = (
        {} if verdict is None else {name.replace(" ", "_"): count for name, count in verdict.counts.items()}
    )
    requests = [
        {
            "case": outcome.case,
            "request": outcome.request,
            "status": outcome.status.value,
            "seconds": _seconds(run, outcome.case, outcome.request),
            "details": list(outcome.details),
        }
        for outcome in (() if verdict is None else verdict.outcomes)
    ]
    _write(
        path,
        {
            "suite": run.made["provenance"]["suite"],
            "asked": "the engine" if run.is_direct else "servers",
            "passed": verdict is not None and verdict.passed,
            "error": error,
            "counts": counts,
            "seconds": round(run.total_seconds, 3),
            "provenance": run.made["provenance"],
            "requests": requests,
        },
    )


def _seconds(run: Run, case: str, request: int) -> float | None:
    """None of a request that was not asked."""
    known = run.seconds.get(case, [])
    return round(known[request], 3) if request < len(known) else None


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
