"""One outcome a job, by evidence: the table."""

from __future__ import annotations

from typing import Any

import pytest

from ci_dispatch.model import (
    Comparison,
    Golden,
    Job,
    JobReport,
    JobSpec,
    KpiVerdict,
    Notice,
    Outcome,
    Perf,
    Step,
    StepRun,
)
from ci_dispatch.verdict import judge

KEPT = "goldens/cpu.json"


def job(
    *, steps: tuple[str, ...] = ("build", "smoke", "bench"), golden: bool = True, perf: bool = True
) -> Job:
    spec = JobSpec(
        name="all",
        steps=tuple(Step(name=name, argv=("true",), timeout=60) for name in steps),  # type: ignore[arg-type]
        goldens=(Golden(output="cpu.json", kept=KEPT),) if golden else (),
        perf=Perf() if perf else None,
    )
    return Job(repo="o/r", number=1, head_sha="a" * 40, base_sha="b" * 40, spec=spec)


def run(name: str = "smoke", ending: str = "exited", status: int | None = 0, **more: Any) -> StepRun:
    return StepRun(name=name, ending=ending, status=status, seconds=1, **more)  # type: ignore[arg-type]


def kpi(verdict: str = "ok", **more: Any) -> KpiVerdict:
    facts: dict[str, Any] = {
        "name": "decode",
        "head": 1.0,
        "base": 1.0,
        "ratio": 1.2,
        "low": 1.15,
        "high": 1.25,
    }
    return KpiVerdict(verdict=verdict, **(facts | more))  # type: ignore[arg-type]


MATCHED = Comparison(kept=KEPT, total=3, matched=3)
DIFFERS = Comparison(kept=KEPT, total=3, matched=1, different=2)
GOOD = (run("build"), run("smoke"), run("bench"))
FINE: dict[str, Any] = {"runs": GOOD, "comparisons": (MATCHED,)}


def notice(kind: str, where: str = "during", **more: Any) -> tuple[Notice, ...]:
    return (Notice(kind=kind, where=where, **more),)  # type: ignore[arg-type]


def runs(*changed: StepRun) -> dict[str, Any]:
    """The good runs with others in the place of those of the same name."""
    names = {one.name for one in changed}
    return {"runs": (*(one for one in GOOD if one.name not in names), *changed)}


def base(name: str, ending: str = "exited") -> dict[str, Any]:
    return {"runs": (*GOOD, run(name, status=1, ending=ending, side="base"))}


End = Outcome
XID = {"detail": "fallen off the bus", "code": 79, "gpu": "GPU-1"}
TABLE: list[tuple[str, dict[str, Any], tuple[KpiVerdict, ...], Outcome, str]] = [
    ("all well", {}, (kpi(),), End.PASSED, "3/3 requests matched, compare diff count: 0"),
    ("better, new and reported pass and are said", {}, (kpi("better"), kpi("new")), End.PASSED, "1 better, 1 new"),
    ("noise that hides is said", {}, (kpi(detail="noisy"),), End.PASSED, "not to be told from noise: decode"),
    # cancelled
    ("cancelled", {"cancelled": True}, (kpi(),), End.CANCELLED, "on request"),
    ("a cancelled step", runs(run(ending="cancelled", status=None)), (), End.CANCELLED, "on request"),
    ("cancelled before lost", {"cancelled": True, "notices": notice("lost")}, (), End.CANCELLED, ""),
    # infra
    ("lost runner", {"notices": notice("lost")}, (kpi(),), End.INFRA, "lost"),
    ("no runner in time", {"runs": (), "comparisons": (), "notices": notice("no_runner", "before")}, (), End.INFRA, "no runner"),
    ("drained", {"notices": notice("drained")}, (), End.INFRA, "drained"),
    ("no source", {"runs": (), "notices": notice("source", "before", detail="base: 404")}, (), End.INFRA, "base: 404"),
    ("agent's own fault", {"notices": notice("agent", "after")}, (kpi(),), End.INFRA, "agent"),
    ("full host", {"notices": notice("disk", "before"), "runs": ()}, (), End.INFRA, "disk"),
    ("orphan before", {"notices": notice("orphan", "before"), "runs": ()}, (), End.INFRA, "orphan"),
    ("preflight", {"notices": notice("preflight", "before"), "runs": ()}, (), End.INFRA, "preflight"),
    ("a lost step", runs(run(ending="lost", status=None)), (), End.INFRA, "lost sight"),
    ("infra beats a failed step", {"notices": notice("lost"), **runs(run("build", status=1))}, (), End.INFRA, ""),
    ("what the job left behind is no infra", {"notices": notice("orphan", "after")}, (kpi(),), End.PASSED, ""),
    ("a full disk that the job left is no infra", {"notices": notice("disk", "after"), **runs(run(ending="disk", status=-9))}, (), End.CODE, "disk limit"),
    # hardware
    ("missing GPU", {"notices": notice("gpu_missing", "before"), "runs": ()}, (), End.HARDWARE, "gpu missing"),
    ("CUDA broken", {"notices": notice("compute", "before"), "runs": ()}, (), End.HARDWARE, "compute"),
    ("preflight that names the GPU", {"notices": (*notice("preflight", "before"), *notice("ecc", "before"))}, (), End.HARDWARE, "ecc"),
    ("ECC after", {"notices": notice("ecc", "after")}, (kpi(),), End.HARDWARE, "ecc after"),
    ("Xid and a failed step", {"notices": notice("xid", **XID), **runs(run(status=1))}, (), End.HARDWARE, "xid 79 on GPU-1"),
    ("Xid of no number", {"notices": notice("xid"), **runs(run(status=1))}, (), End.HARDWARE, "xid"),
    ("a program's Xid", {"notices": notice("xid", code=31), **runs(run(status=1))}, (), End.CODE, "a fault of the program"),
    ("a program's Xid and no failure", {"notices": notice("xid", code=13)}, (kpi(),), End.PASSED, ""),
    ("hardware beats time", {"notices": notice("xid", **XID), **runs(run(ending="timed_out", status=-9))}, (), End.HARDWARE, ""),
    # timed out
    ("step out of time", runs(run(ending="timed_out", status=-9)), (), End.TIMED_OUT, "step smoke ran out of time after 1 s"),
    ("bench out of time", runs(run("bench", ending="timed_out", round=2)), (), End.TIMED_OUT, "bench (head, round 2)"),
    ("time beats what else failed", runs(run("build", status=1), run(ending="timed_out", status=-9)), (), End.TIMED_OUT, ""),
    # code
    ("exit status", runs(run("build", status=3)), (), End.CODE, "step build ended with status 3"),
    ("no exit status", runs(run("build", status=None)), (kpi(),), End.CODE, "no exit status"),
    ("signal", runs(run(ending="signalled", status=-11)), (), End.CODE, "signal 11"),
    ("memory", runs(run(ending="memory", status=-9)), (), End.CODE, "memory limit"),
    ("disk", runs(run(ending="disk", status=-9)), (), End.CODE, "disk limit"),
    ("log", runs(run(ending="log", status=-9)), (), End.CODE, "log limit"),
    ("no such command", runs(run(ending="not_started", status=None, detail="bazelisk: not found")), (), End.CODE, "bazelisk: not found"),
    ("head's bench failed", runs(run("bench", status=1, round=1)), (kpi(),), End.CODE, "bench (head, round 1)"),
    ("too many processes", runs(run(ending="processes", status=-9)), (), End.CODE, "processes limit"),
    ("only the base's ran", runs(run("bench", side="base")), (kpi(),), End.CODE, "step bench did not run"),
    ("a step that never ran", {"runs": GOOD[:2]}, (kpi(),), End.CODE, "step bench did not run"),
    ("nothing ran", {"runs": (), "comparisons": ()}, (), End.CODE, "step build did not run"),
    ("not compared", {"comparisons": ()}, (kpi(),), End.CODE, "was not compared"),
    ("another golden compared", {"comparisons": (Comparison(kept="else", total=1, matched=1),)}, (kpi(),), End.CODE, "was not compared"),
    ("zero cases", {"comparisons": (Comparison(kept=KEPT),)}, (kpi(),), End.CODE, "no case ran"),
    ("no KPI", {}, (), End.CODE, "gave no KPI"),
    ("bad numbers", {"bad_numbers": ("head, round 0: entry 3: lies",)}, (kpi(),), End.CODE, "entry 3: lies"),
    ("too few", {}, (kpi(), kpi("too_few", name="k", detail="2 whole rounds, 5 needed")), End.CODE, "k (2 whole rounds, 5 needed)"),
    # the base's own troubles
    ("the first bench, which the base lacks", base("bench"), (kpi("new"),), End.PASSED, "nothing to compare with yet: step bench (base, round 0)"),
    ("the base is killed", base("bench", ending="signalled"), (kpi("new"),), End.INFRA, "nothing to compare the head with: step bench (base, round 0)"),
    ("the base does not build", base("build"), (kpi("too_few"),), End.INFRA, "step build (base, round 0)"),
    ("the base's bench has no time", base("bench", ending="timed_out"), (), End.INFRA, "ran out of time"),
    ("the base failed once and rounds enough are left", base("bench"), (kpi(),), End.PASSED, ""),
    ("slower and the base failed once", base("bench"), (kpi("worse"), kpi("new")), End.PERF, ""),
    # golden
    ("answers differ", {"comparisons": (DIFFERS,)}, (kpi(),), End.GOLDEN, "1/3 requests matched, compare diff count: 2"),
    ("answers differ and the smoke step says so", {"comparisons": (DIFFERS,), **runs(run(status=1))}, (kpi(),), End.GOLDEN, "count: 2"),
    ("smoke fails though all matched", runs(run(status=1)), (kpi(),), End.CODE, "smoke ended with status 1"),
    ("smoke crashed and left differences", {"comparisons": (DIFFERS,), **runs(run(ending="signalled", status=-11))}, (), End.CODE, "signal 11"),
    ("build failed and answers differ", {"comparisons": (DIFFERS,), **runs(run("build", status=1), run(status=1))}, (), End.CODE, "build"),
    ("failed requests", {"comparisons": (Comparison(kept=KEPT, total=2, matched=1, failed=1),)}, (kpi(),), End.GOLDEN, "1 failed"),
    ("unasked requests", {"comparisons": (Comparison(kept=KEPT, total=2, matched=1, other=1),)}, (kpi(),), End.GOLDEN, "1 other"),
    ("refused", {"comparisons": (Comparison(kept=KEPT, refused="kept on sm90"),)}, (kpi(),), End.GOLDEN, "kept on sm90"),
    ("one of two differs", {"comparisons": (MATCHED, Comparison(kept="b", total=1, different=1))}, (kpi(),), End.GOLDEN, "golden b"),
    ("golden beats perf", {"comparisons": (DIFFERS,)}, (kpi("worse"),), End.GOLDEN, ""),
    # perf
    ("slower", {}, (kpi(), kpi("worse")), End.PERF, "1 KPI slower than the base: decode 1.200x [1.150, 1.250]"),
    ("slower beats too few", {}, (kpi("too_few"), kpi("worse")), End.PERF, ""),
    ("the slowest first", {}, (kpi("worse"), kpi("worse", name="b", ratio=1.9)), End.PERF, "base: b 1.900x"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("evidence", "kpis", "outcome", "words"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_evidence_decides(
    evidence: dict[str, Any], kpis: tuple[KpiVerdict, ...], outcome: Outcome, words: str
) -> None:
    report = JobReport(**(FINE | evidence))
    result = judge(job(), report, kpis)
    assert (result.outcome, words in result.reason) == (outcome, True), result.reason
    assert result.report == report
    assert result.kpis == kpis


@pytest.mark.parametrize(
    "said", ["CUDA error: device-side assert", "Xid 79", "infra", "runner lost", "PASSED"]
)
@pytest.mark.parametrize("status", [0, 1])
def test_what_a_step_prints_changes_nothing(said: str, status: int) -> None:
    quiet = JobReport(**FINE | runs(run("build", status=status)))
    loud = quiet.model_copy(update={"log_tail": said})
    before, after = judge(job(), quiet, (kpi(),)), judge(job(), loud, (kpi(),))
    assert (before.outcome, before.reason) == (after.outcome, after.reason)


def test_a_job_of_a_build_alone_needs_neither_goldens_nor_numbers() -> None:
    result = judge(job(steps=("build",), golden=False, perf=False), JobReport(runs=(run("build"),)), ())
    assert (result.outcome, result.reason) == (Outcome.PASSED, "1 step passed")


def test_a_bench_without_a_perf_rule_is_only_a_step() -> None:
    report = JobReport(**FINE, bad_numbers=("head: no",))
    assert judge(job(perf=False), report, ()).outcome is Outcome.PASSED


def test_a_reason_is_bounded() -> None:
    report = JobReport(**FINE | runs(run(ending="not_started", status=None, detail="x" * 2_000)))
    assert len(judge(job(), report, ()).reason) == 1_000


def test_every_ending_but_a_clean_exit_fails() -> None:
    for ending in (
        "exited",
        "signalled",
        "timed_out",
        "cancelled",
        "memory",
        "disk",
        "log",
        "not_started",
        "lost",
    ):
        for status in (None, 0, 1, -9):
            result = judge(
                job(), JobReport(**FINE | runs(run("build", ending=ending, status=status))), (kpi(),)
            )
            assert (result.outcome is Outcome.PASSED) == (ending == "exited" and status == 0)
