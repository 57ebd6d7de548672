"""From evidence to a job's one outcome. What a step prints is no evidence; only what the runner saw is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ci_dispatch.model import Comparison, Job, JobReport, JobResult, KpiVerdict, Notice, Outcome, StepRun

_ALWAYS_INFRA = frozenset({"lost", "no_runner", "source", "drained", "agent"})
_HOST = frozenset({"preflight", "orphan", "memory", "disk"})
"""The host's own troubles. After the steps they are what the job left behind, and change nothing about how it went."""
_NAMED = 3

Finding = tuple[Outcome, str]


def judge(job: Job, report: JobReport, kpis: Sequence[KpiVerdict]) -> JobResult:
    """Give a job its outcome and the reason in a line. The first of these that holds decides.

    Cancelled; infra, a runner or its service that failed; hardware; infra, a host not fit; timed out; golden, where the smoke step
    failed but its outputs tell why; code, whatever else is not a step that exited with 0 or whose outputs were not compared;
    golden; perf; infra, where the base itself cannot be measured; code, where numbers are bad or too few; passed.
    """
    finding = next(_findings(job, report, kpis), None) or (Outcome.PASSED, _praise(report, kpis))
    return JobResult(outcome=finding[0], reason=_cut(finding[1]), report=report, kpis=tuple(kpis))


def _findings(job: Job, report: JobReport, kpis: Sequence[KpiVerdict]) -> Iterator[Finding]:
    yield from _from_outside(report)
    yield from _from_runs(job, report)
    yield from _from_outputs(job, report)
    yield from _from_numbers(job, report, kpis)


def _from_outside(report: JobReport) -> Iterator[Finding]:
    if report.cancelled or any(run.ending == "cancelled" for run in report.runs):
        yield Outcome.CANCELLED, "cancelled on request"
    for notice in report.notices:
        if notice.kind in _ALWAYS_INFRA:
            yield Outcome.INFRA, _notice(notice)
    if any(run.ending == "lost" for run in report.runs):
        yield Outcome.INFRA, "the runner lost sight of a step"
    for notice in report.notices:
        if notice.is_hardware:
            yield Outcome.HARDWARE, _notice(notice)
    for notice in report.notices:
        if notice.kind in _HOST and notice.where != "after":
            yield Outcome.INFRA, _notice(notice)


def _from_runs(job: Job, report: JobReport) -> Iterator[Finding]:
    failed = [run for run in report.runs if run.side == "head" and not _went_well(run)]
    for run in failed:
        if run.ending == "timed_out":
            yield Outcome.TIMED_OUT, _ending(run)
    # A smoke step that noticed by itself that answers differ; the comparison says which.
    if failed and all(run.name == "smoke" and run.ending == "exited" for run in failed):
        yield from (
            (Outcome.GOLDEN, _mismatch(one))
            for one in report.comparisons
            if one.different and not one.refused
        )
    faults = [notice for notice in report.notices if notice.is_program_fault]
    for run in failed:
        fault = f" ({_notice(faults[0])}: a fault of the program)" if faults else ""
        yield Outcome.CODE, _ending(run) + fault
    for step in job.spec.steps:
        if not any(run.name == step.name and run.side == "head" for run in report.runs):
            yield Outcome.CODE, f"step {step.name} did not run, and nothing says why"


def _from_outputs(job: Job, report: JobReport) -> Iterator[Finding]:
    by_golden = {one.kept: one for one in report.comparisons}
    for golden in job.spec.goldens:
        compared = by_golden.get(golden.kept)
        if compared is None:
            yield Outcome.CODE, f"golden {golden.kept} was not compared, and nothing says why"
        elif not compared.refused and compared.total == 0:
            yield Outcome.CODE, f"golden {golden.kept}: no case ran, so nothing was tested"
    for one in report.comparisons:
        if not one.passed:
            yield Outcome.GOLDEN, one.refused or _mismatch(one)


def _from_numbers(job: Job, report: JobReport, kpis: Sequence[KpiVerdict]) -> Iterator[Finding]:
    if job.spec.perf is None:
        return
    worse = sorted((one for one in kpis if one.verdict == "worse"), key=lambda one: -(one.ratio or 0))
    if worse:
        yield (
            Outcome.PERF,
            f"{_count(len(worse), 'KPI')} slower than the base: {_list([_slower(one) for one in worse])}",
        )
    base = [run for run in report.runs if run.side != "head" and not _went_well(run)]
    if (
        base
        and (not kpis or any(one.verdict in ("new", "too_few") for one in kpis))
        and not _is_first(base, kpis)
    ):
        # Neither the change's fault nor a reason to let it pass unmeasured.
        yield Outcome.INFRA, f"nothing to compare the head with: {_ending(base[0])}"
    if report.bad_numbers:
        yield Outcome.CODE, f"bench wrote what is no number: {_list(report.bad_numbers)}"
    if not kpis:
        yield Outcome.CODE, "bench gave no KPI, so nothing was measured"
    few = [one for one in kpis if one.verdict == "too_few"]
    if few:
        names = _list([f"{one.name} ({one.detail})" for one in few])
        yield Outcome.CODE, f"too few numbers to judge {_count(len(few), 'KPI')}: {names}"


def _is_first(base: Sequence[StepRun], kpis: Sequence[KpiVerdict]) -> bool:
    """Whether the base has no such bench: it ends by itself each time, and no number of it is known."""
    return (
        all(run.ending == "exited" for run in base)
        and all(one.verdict == "new" for one in kpis)
        and bool(kpis)
    )


def _praise(report: JobReport, kpis: Sequence[KpiVerdict]) -> str:
    parts = [f"{_count(len({run.name for run in report.runs}), 'step')} passed"]
    if report.comparisons:
        total = sum(one.total for one in report.comparisons)
        parts.append(f"{total}/{total} requests matched, compare diff count: 0")
    if kpis:
        kinds = [one.verdict for one in kpis]
        counts = [f"{kinds.count(kind)} {kind}" for kind in ("better", "new", "reported") if kind in kinds]
        parts.append(
            f"{_count(len(kpis), 'KPI')}, none slower" + (f" ({', '.join(counts)})" if counts else "")
        )
    failed = [run for run in report.runs if run.side != "head" and not _went_well(run)]
    if failed and kpis and all(one.verdict == "new" for one in kpis):
        parts.append(f"nothing to compare with yet: {_ending(failed[0])}")
    noisy = [one.name for one in kpis if one.verdict == "ok" and one.detail]
    if noisy:
        parts.append(f"not to be told from noise: {_list(noisy)}")
    return "; ".join(parts)


def _went_well(run: StepRun) -> bool:
    return run.ending == "exited" and run.status == 0


def _which(run: StepRun) -> str:
    of_a_round = run.name == "bench" or run.side != "head"
    return f"step {run.name} ({run.side}, round {run.round})" if of_a_round else f"step {run.name}"


def _ending(run: StepRun) -> str:
    detail = f": {run.detail}" if run.detail else ""
    if run.ending == "exited":
        status = "no exit status" if run.status is None else f"status {run.status}"
        return f"{_which(run)} ended with {status}{detail}"
    if run.ending == "signalled":
        signal = "a signal" if run.status is None else f"signal {abs(run.status)}"
        return f"{_which(run)} was ended by {signal}{detail}"
    if run.ending == "not_started":
        return f"{_which(run)} could not be started{detail}"
    if run.ending == "timed_out":
        return f"{_which(run)} ran out of time after {run.seconds:.0f} s{detail}"
    return f"{_which(run)} went over its {run.ending} limit{detail}"


def _mismatch(one: Comparison) -> str:
    words = (
        f"golden {one.kept}: {one.matched}/{one.total} requests matched, compare diff count: {one.different}"
    )
    rest = [f"{count} {kind}" for kind, count in (("failed", one.failed), ("other", one.other)) if count]
    return ", ".join([words, *rest])


def _notice(notice: Notice) -> str:
    words = f"{notice.kind} {notice.code}" if notice.code is not None else notice.kind.replace("_", " ")
    gpu = f" on {notice.gpu}" if notice.gpu else ""
    return f"{words}{gpu} {notice.where} the steps" + (f": {notice.detail}" if notice.detail else "")


def _slower(one: KpiVerdict) -> str:
    return f"{one.name} {one.ratio:.3f}x [{one.low:.3f}, {one.high:.3f}]"


def _list(words: Sequence[str]) -> str:
    more = f" and {len(words) - _NAMED:,} more" if len(words) > _NAMED else ""
    return ", ".join(words[:_NAMED]) + more


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _cut(words: str) -> str:
    return words if len(words) <= 1_000 else words[:999] + "…"
