"""One stage of `whitesmoke bench review`, in the process that runs it: prints seconds and peak memory as JSON."""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reviewer.model import Finding, RoundReport

_RUNS = 5
_REPS = 5
_FAULTS = (
    ("off by one at the end of {a}", "the last {b} is never written when {a} is full"),
    ("{a} is read before {b} is set", "a request that arrives early sees the {b} of another"),
    ("no limit on retries of {a}", "a dead {b} is asked for ever and holds the {a}"),
    ("{a} leaks when {b} fails", "the handle of {a} is closed on success only"),
    ("integer overflow in the offset of {a}", "with large {b} the product passes 2^31"),
    ("the cache of {a} is never cleared", "stale {b} are served after a reload"),
)
_WORDS = (
    "block",
    "cursor",
    "digest",
    "engine",
    "frame",
    "graph",
    "kernel",
    "lane",
    "lease",
    "mask",
    "page",
    "slot",
)
_WORDINGS = (
    "{title}",
    "{title}, so {body}",
    "Check {title}",
    "When used concurrently, {title}",
    "{body}: {title}",
)


def make_findings(count: int, seed: int = 0) -> list[Finding]:
    """Findings as five reps would make them: a third as many faults, each worded up to five ways."""
    from reviewer.model import Finding, Severity

    rng = random.Random(seed)
    faults = []
    for number in range(count // 3):
        title, body = rng.choice(_FAULTS)
        a, b = rng.sample(_WORDS, 2)
        place = (f"src/{a}/{b}_{number % 97}.py", rng.randrange(1, 900))
        faults.append((place, title.format(a=f"`{a}_{number}`", b=b), body.format(a=a, b=b)))
    findings = []
    for number in range(count):
        (path, line), title, body = rng.choice(faults)
        line = max(1, line + rng.randrange(-3, 4))
        findings.append(
            Finding(
                path=path,
                line_start=line,
                line_end=line + 2,
                severity=rng.choice(list(Severity)),
                title=rng.choice(_WORDINGS).format(title=title, body=body),
                body=body,
                rep=number * _REPS // count,
            )
        )
    return findings


def make_report(findings: list[Finding]) -> RoundReport:
    """A report in which every finding is reported by itself."""
    from reviewer.model import (
        ChecklistKpi,
        ConfirmKpi,
        FactCheckKpi,
        Kpi,
        Outcome,
        PullRequest,
        RecheckKpi,
        ReportedFinding,
        RoundReport,
        Verdict,
    )

    shared = {"path", "line_start", "line_end", "side", "severity", "category", "title", "body"}
    reported = tuple(
        ReportedFinding(id=f"F{number}", support=1, of=_REPS, **finding.model_dump(include=shared))
        for number, finding in enumerate(findings, start=1)
    )
    zero = dict.fromkeys(
        (
            "shards",
            "discover_fail",
            "clusters",
            "synth_fail",
            "blocking_dedup_merged",
            "merged",
            "delta_lines",
        ),
        0,
    )
    kpi = Kpi(
        reps=_REPS, agentic_reps=2, diff_truncated=False, patch_bytes=1, coverage=1.0, discover_ok=_REPS,
        discover_attempts=_REPS, confirm=ConfirmKpi(), fact_check=FactCheckKpi(), model="made", round_index=1,
        delta_files=1, full_files=1, new_findings=len(reported), recheck=RecheckKpi(), blocking=0,
        blocking_on_unchanged=0, models=("made",), detector_findings=0, checklist=ChecklistKpi(), tool_calls=0,
        tokens_in=0, tokens_out=0, cost_usd=0.0, seconds=0.0, **zero,
    )  # fmt: skip
    return RoundReport(
        pull=PullRequest(repo="made/up", number=1, base_sha="0" * 40, head_sha="1" * 40),
        round_index=1,
        reviewed_at="2026-01-01T00:00:00+00:00",
        language="en",
        verdict=Verdict(outcome=Outcome.LGTM),
        blocking=(),
        non_blocking=reported,
        closed=(),
        checklist=(),
        strengths=(),
        unreviewed=(),
        fates=(),
        tool_calls=(),
        warnings=(),
        kpi=kpi,
    )


class _PatchAlone:
    """A checkout of which nothing but the patch is there: files cannot be read."""

    def __init__(self, diff: object) -> None:
        self.diff = diff

    def read(self, path: str, side: object) -> None:
        return None


def _timed(name: str, patch: bytes) -> Callable[[], object]:
    """What to time. Imports are paid here, before the clock and the memory count begin."""
    if name in ("parse", "parse+plan"):
        from reviewer.diff import parse
        from reviewer.plan import make_plan
        from reviewer.policy import ReviewPolicy
        from reviewer.text import load_text

        policy, text = ReviewPolicy(max_shards=1_000_000), load_text("round/text", "en")

        def parse_and_plan() -> object:
            diff = parse(patch)
            plan = make_plan(diff, _PatchAlone(diff), policy, {}, text)  # type: ignore[arg-type]
            return diff, plan, [shard.subject for shard in plan.shards]

        return parse_and_plan if name == "parse+plan" else lambda: parse(patch)
    if name == "unidiff":
        import unidiff

        decoded = patch.decode()
        return lambda: unidiff.PatchSet(decoded)  # type: ignore[attr-defined]
    if name.startswith("cluster"):
        from reviewer.cluster import cluster

        findings = make_findings(int(name.split()[1]))
        cluster(findings[:10])
        return lambda: cluster(findings)
    from reviewer.report.round import render_round

    report = make_report(make_findings(1_000))
    render_round(make_report([]))
    return lambda: render_round(report)


def _main(name: str, path: str) -> dict[str, object]:
    patch = Path(path).read_bytes()
    if name == "facts":
        from reviewer.diff import parse

        diff = parse(patch)
        return {"files": len(diff.files), "added": sum(file.added for file in diff.files)}
    try:
        timed = _timed(name, patch)
    except ImportError:  # unidiff, outside a development environment
        return {"seconds": None}
    before = _peak_kib()
    seconds = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        result = timed()
        seconds.append(time.perf_counter() - start)
        del result
    return {"seconds": statistics.median(seconds), "peak_mib": (_peak_kib() - before) / 1024}


def _peak_kib() -> int:
    """The peak of this process. Not getrusage's: on Linux that starts at the size of the parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


if __name__ == "__main__":
    print(json.dumps(_main(*sys.argv[1:])))
