"""The gate: which cases block, why the others do not, and what became of every raw finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reviewer.case import Case
from reviewer.ledger import Ledger
from reviewer.model import FactCheck, Fate, Finding, ReportedFinding, Severity, State
from reviewer.text import Text


@dataclass(frozen=True, slots=True)
class Gate:
    """Decides one round's cases. `quorum` is the policy's; `first_number` the next free finding number."""

    ledger: Ledger
    round_index: int
    quorum: int
    text: Text

    def blocks(self, case: Case) -> bool:
        """A blocker of an earlier round, a detector under a blocking item, or votes that hold."""
        if case.dismissed:
            return False
        voted = case.may_block and case.support >= self.quorum and case.fact_check is FactCheck.HOLD
        return case.already_blocking or case.certain or voted

    def report(self, case: Case, finding_id: str, raws: Sequence[Finding]) -> ReportedFinding:
        """The case as the round reports it."""
        finding, known, blocking = case.finding, case.known, self.blocks(case)
        severity = case.severity
        fact_check, evidence = case.fact_check, case.evidence
        if known is not None and case.already_blocking:
            severity = min(severity, known.severity, key=lambda one: one.rank)
            fact_check, evidence = known.fact_check, known.evidence
        ids = (id_ for index in case.members for id_ in raws[index].checklist_ids)
        refuted = case.fact_check is FactCheck.REFUTED
        return ReportedFinding(
            **finding.model_dump(include=_CARRIED_OVER),
            id=finding_id,
            severity=severity,
            checklist_ids=tuple(dict.fromkeys(ids)),
            support=case.support,
            of=case.of,
            blocking=blocking,
            state=State.DISMISSED if case.dismissed else State.REFUTED if refuted else State.OPEN,
            first_round=known.first_round if known else self.round_index,
            last_round=self.round_index,
            fact_check=fact_check,
            evidence=evidence,
            demoted="" if blocking else self._demoted(case, severity),
            merged_from=tuple(f"{one.path}:{one.line_start}" for one in case.folded),
        )

    def fates(
        self, case: Case, reported: ReportedFinding, raws: Sequence[Finding], folded: bool
    ) -> dict[int, Fate]:
        """What became of the case's raw findings, by their index."""
        say, votes = self.text, len(case.members)
        fates = {}
        for index in case.members:
            reason = reported.demoted
            if folded:
                reason = say("fate_folded", id=reported.id)
            elif raws[index].rep < 0 and case.support:
                reason = say("fate_evidence", id=reported.id)
            elif votes > 1 and not reason:
                reason = say("fate_merged", id=reported.id, votes=votes)
            outcome = "merged" if folded else _OUTCOMES.get(reported.state, "non_blocking")
            if outcome == "non_blocking" and reported.blocking:
                outcome = "blocking"
            fates[index] = Fate.model_validate(
                {"raw": raws[index], "finding_id": reported.id, "outcome": outcome, "reason": reason}
            )
        return fates

    def _demoted(self, case: Case, severity: Severity) -> str:
        say = self.text
        if case.known is not None and case.dismissed:
            dismissal = self.ledger.dismissals[case.known.id]
            return say("dismissed", by=dismissal.by, reason=dismissal.reason)
        if not severity.can_block:
            return ""
        if case.late:
            return say("said_in_passing")
        if not case.reps:
            return say("detector_does_not_block")
        if case.fact_check is FactCheck.REFUTED:
            return say("refuted")
        if case.fact_check is FactCheck.PARSE_FAIL:
            return say("no_fact_check")
        return say("too_little_support", support=case.support, of=case.of, quorum=self.quorum)


_CARRIED_OVER = {
    "path",
    "line_start",
    "line_end",
    "side",
    "category",
    "title",
    "body",
    "suggestion",
    "quoted_code",
    "source",
}
_OUTCOMES: Mapping[State, str] = {State.DISMISSED: "dismissed", State.REFUTED: "refuted"}
