"""Jobs as they may stand, and how their reports are written: for the tests of reports."""

from __future__ import annotations

from functools import partial
from typing import Any

from markdown_it import MarkdownIt

from ci_dispatch.model import (
    Artifact,
    Comparison,
    Difference,
    Golden,
    Job,
    JobReport,
    JobResult,
    JobSpec,
    KpiVerdict,
    Notice,
    Outcome,
    Perf,
    Step,
    StepRun,
)
from ci_dispatch.report import JobView, RunView, Writing
from reviewer.redact import redact
from reviewer.report.escape import code_span, fence, guard, inline, plain
from reviewer.text import load_text

HEAD, BASE = "a" * 40, "b" * 40
ABOUT = RunView(HEAD, BASE, qualified="@alice approved this head.")
KEPT = "runtime/smoke/goldens/cpu-cpu.json"
HOSTILE = (
    "</summary></details><img src=x onerror=alert(1)> | cell | `tick` ``` [link](javascript:alert(1)) ![i](http://evil.example/x)"
    " @everyone #1 https://evil.example \u202e\x1b[2J\x00 lgtm ready to ci\n\n/ci run\n# heading\n<!-- whitesmoke:ci {} -->"
)
SECRET = "ghp_" + "A1b2C3d4E5" * 4


def writing(language: str = "en") -> Writing:
    return Writing(
        text=load_text("ci/text", language),  # type: ignore[arg-type]
        redact=redact,
        code=code_span,
        fence=fence,
        inline=inline,
        plain=plain,
        guard=partial(guard, phrases=("lgtm ready to ci",)),
    )


WRITING = writing()


def job(name: str = "smoke", *, golden: bool = True, perf: bool = False, **changes: Any) -> Job:
    steps = ["build", *(["smoke"] if golden else []), *(["bench"] if perf else [])]
    spec = JobSpec(
        name=name,
        steps=tuple(Step(name=one, argv=("true",), timeout=60) for one in steps),  # type: ignore[arg-type]
        goldens=(Golden(output="cpu.json", kept=KEPT),) if golden else (),
        perf=Perf() if perf else None,
        **{key: value for key, value in changes.items() if key in JobSpec.model_fields},
    )
    rest = {key: value for key, value in changes.items() if key not in JobSpec.model_fields}
    return Job(repo="o/r", number=1, head_sha=HEAD, base_sha=BASE, spec=spec, **rest)


def done(outcome: Outcome = Outcome.PASSED, of: Job | None = None, **parts: Any) -> JobView:
    kpis = parts.pop("kpis", ())
    view = {key: parts.pop(key) for key in ("url", "artifacts_url", "seconds") if key in parts}
    parts.setdefault("runs", (StepRun(name="build", ending="exited", status=0, seconds=12.3),))
    result = JobResult(
        outcome=outcome, reason=parts.pop("reason", "why"), report=JobReport(**parts), kpis=kpis
    )
    return JobView(of or job(), "done", result, **view)


def kpi(name: str = "rms_norm", verdict: str = "ok", **more: Any) -> KpiVerdict:
    facts: dict[str, Any] = {
        "head": 12.5,
        "base": 10.0,
        "ratio": 1.25,
        "low": 1.2,
        "high": 1.3,
        "noise": 0.021,
    }
    facts |= {"unit": "us", "extra": {"copy_percent": 88.8}, "samples": 8}
    return KpiVerdict(name=name, verdict=verdict, **(facts | more))  # type: ignore[arg-type]


DIFFERENT = Comparison(
    kept=KEPT,
    total=35,
    matched=33,
    different=2,
    differences=(Difference(case="greedy", request=1, field="ids[7]", expected="41", actual="42"),),
)


def html(markdown: str) -> str:
    rendered: str = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(markdown)
    return rendered


def size(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def hostile() -> JobView:
    """Every text that a job, its branch or its host can choose."""
    return done(
        Outcome.GOLDEN,
        job(perf=True),
        reason=HOSTILE,
        runs=(StepRun(name="build", ending="not_started", seconds=0, detail=HOSTILE),),
        comparisons=(
            Comparison(
                kept=KEPT,
                total=2,
                different=1,
                failed=1,
                differences=(
                    Difference(case=HOSTILE, request=0, field=HOSTILE, expected=HOSTILE, actual=HOSTILE),
                ),
                failures=(HOSTILE,),
                notes=(HOSTILE,),
            ),
        ),
        bad_numbers=(HOSTILE,),
        notices=(Notice(kind="agent", gpu=HOSTILE, detail=HOSTILE),),
        environment={HOSTILE: HOSTILE},
        left_out=(HOSTILE,),
        log_tail=HOSTILE,
        artifacts=(Artifact(path="x`|/cpu.json", bytes=1, sha256="0"),),
        artifacts_url="https://ci.example",
        kpis=(kpi(HOSTILE[:190], unit="|`<b>", detail=HOSTILE),),
    )
