"""Rechecks: every open finding of earlier rounds that nobody repeated is asked about again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from reviewer.answers import RecheckAnswer
from reviewer.ask import Panel, gather
from reviewer.checkout.base import Checkout
from reviewer.model import Recheck, RecheckKpi, ReportedFinding, State
from reviewer.place import excerpt
from reviewer.plan import digest


async def recheck(
    panel: Panel, findings: Sequence[ReportedFinding], checkout: Checkout
) -> tuple[ReportedFinding, ...]:
    """Asks every rep about a blocker and one about anything else.

    A blocker is fixed only when a quorum says so. No answer counts as `fail` and leaves the finding open.
    """
    return tuple(await gather(_recheck(panel, finding, checkout) for finding in findings))


def recheck_by_detector(
    findings: Sequence[ReportedFinding], ran: frozenset[str]
) -> tuple[ReportedFinding, ...]:
    """A detector's finding that the detector no longer makes is fixed; where it did not run, nobody knows."""
    return tuple(
        _answered(finding, Recheck.FIXED if ran & set(finding.checklist_ids) else Recheck.FAIL, "")
        for finding in findings
    )


def tally(findings: Sequence[ReportedFinding]) -> RecheckKpi:
    counts = Counter(finding.recheck.value for finding in findings if finding.recheck is not None)
    return RecheckKpi(**counts)


async def _recheck(panel: Panel, finding: ReportedFinding, checkout: Checkout) -> ReportedFinding:
    code = excerpt(checkout, finding.path, finding.side, finding.line_start)
    subject = digest(finding.path, finding.title, code)
    asked = await gather(
        panel.ask("recheck", rep, subject, RecheckAnswer, finding=finding, excerpt=code)
        for rep in range(panel.policy.reps if finding.blocking else 1)
    )
    answers = [one.answer for one in asked if one.answer is not None]
    votes = Counter(answer.answer for answer in answers)
    needed = panel.policy.quorum if finding.blocking else 1
    outcome: Recheck = Recheck.FAIL
    if votes[Recheck.FIXED] >= needed:
        outcome = Recheck.FIXED
    elif votes[Recheck.STILL_OPEN]:
        outcome = Recheck.STILL_OPEN
    elif votes:
        outcome = Recheck.CANNOT_SUBSTANTIATE
    evidence = next((answer.evidence for answer in answers if answer.answer is outcome), "")
    return _answered(finding, outcome, evidence)


def _answered(finding: ReportedFinding, outcome: Recheck, evidence: str) -> ReportedFinding:
    update: dict[str, object] = {"recheck": outcome, "evidence": evidence}
    if outcome is Recheck.FIXED:
        update["state"] = State.FIXED
    return finding.model_copy(update=update)
