"""The verdict: what blocks, and whether enough was seen to say that nothing does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reviewer.case import Case
from reviewer.discover import Discovery
from reviewer.model import FactCheck, Outcome, ReportedFinding, RoundReport, Severity, State, Verdict
from reviewer.plan import Plan
from reviewer.policy import ReviewPolicy
from reviewer.text import Text


def decide(blocking: int, reasons: Sequence[str], *, detectors_only: bool) -> Verdict:
    """BLOCKED by any blocker; else INCONCLUSIVE for any reason; else LGTM. Failure is never a pass."""
    outcome = Outcome.BLOCKED if blocking else Outcome.INCONCLUSIVE if reasons else Outcome.LGTM
    return Verdict(outcome=outcome, blocking=blocking, reasons=tuple(reasons), detectors_only=detectors_only)


def doubts(
    policy: ReviewPolicy,
    plan: Plan,
    discovery: Discovery,
    cases: Iterable[Case],
    coverage: float,
    text: Text,
) -> list[str]:
    """Why this round cannot say LGTM, in words; empty when it can."""
    reasons = []
    fewest = min((discovery.valid_reps(shard) for shard in plan.shards), default=policy.reps)
    if fewest < policy.quorum:
        reasons.append(text("too_few_reps", valid=fewest, reps=policy.reps, quorum=policy.quorum))
    for case in cases:
        if unresolved(case, policy):
            reasons.append(
                text(
                    "could_have_blocked",
                    title=case.finding.title,
                    support=case.support,
                    of=case.of,
                    lost=case.lost,
                )
            )
        if case.fact_check is FactCheck.PARSE_FAIL:
            reasons.append(text("fact_check_silent", title=case.finding.title))
    if coverage < policy.min_coverage:
        reasons.append(text("low_coverage", coverage=coverage, least=policy.min_coverage))
    return reasons


def unresolved(case: Case, policy: ReviewPolicy) -> bool:
    """Whether answers that were lost could have lifted this case to the quorum."""
    return case.may_block and case.support < policy.quorum <= case.support + case.lost


def settle(report: RoundReport, changed: ReportedFinding) -> RoundReport:
    """The report after a maintainer dismissed or reopened one of its findings."""
    lists = (report.blocking, report.non_blocking, report.closed)
    before = {one.id: one for one in (*report.blocking, *report.non_blocking, *report.closed)}
    if changed.id not in before:
        return report
    blocking, non_blocking, closed = (
        tuple(one for one in findings if one.id != changed.id) for findings in lists
    )
    if changed.state is State.DISMISSED:
        closed = (*closed, changed)
    elif changed.blocking:
        blocking = by_severity((*blocking, changed))
    else:
        non_blocking = by_severity((*non_blocking, changed))
    verdict = decide(len(blocking), report.verdict.reasons, detectors_only=report.verdict.detectors_only)
    on_unchanged = report.kpi.blocking_on_unchanged
    return report.model_copy(
        update={
            "blocking": blocking,
            "non_blocking": non_blocking,
            "closed": closed,
            "verdict": verdict,
            "kpi": report.kpi.model_copy(
                update={"blocking": len(blocking), "blocking_on_unchanged": min(on_unchanged, len(blocking))}
            ),
        }
    )


def by_severity(findings: Iterable[ReportedFinding]) -> tuple[ReportedFinding, ...]:
    """Most severe first, then the best supported, then by place."""
    return tuple(
        sorted(
            findings,
            key=lambda one: (Severity(one.severity).rank, -one.support, one.path, one.line_start, one.id),
        )
    )
