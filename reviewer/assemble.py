"""The end of a round: its report, its numbers, and the ledger that remembers it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import chain

from reviewer.ask import Panel
from reviewer.case import Case
from reviewer.cases import Docket
from reviewer.checklist import Item, applicable
from reviewer.checkout.base import Checkout
from reviewer.detectors.run import DetectorRun
from reviewer.discover import Discovery
from reviewer.engines.base import Usage
from reviewer.gate import Gate
from reviewer.ledger import Ledger
from reviewer.model import (
    ConfirmKpi,
    FactCheck,
    FactCheckKpi,
    Fate,
    Finding,
    Kpi,
    PullRequest,
    ReportedFinding,
    RoundReport,
    State,
    Unreviewed,
)
from reviewer.plan import FileMark, Plan, mark
from reviewer.policy import ReviewPolicy
from reviewer.recheck import tally
from reviewer.tally import answer_items, count, name_strengths
from reviewer.text import Text
from reviewer.verdict import by_severity, decide, doubts, unresolved


@dataclass(frozen=True, slots=True)
class Draft:
    """Everything that the steps of a round found out. `folded_into` maps `id()` of a case that shares
    another's root cause to that other; `carried` are earlier open findings that nobody repeated."""

    pull: PullRequest
    checkout: Checkout
    policy: ReviewPolicy
    items: dict[str, Item]
    plan: Plan
    discovery: Discovery
    detected: DetectorRun
    docket: Docket
    carried: tuple[ReportedFinding, ...]
    synth_fail: int
    confirm: ConfirmKpi
    folded_into: dict[int, Case]
    fact_check: FactCheckKpi
    panel: Panel | None
    now: datetime

    @property
    def round_reviewed_lines(self) -> int:
        """Changed lines of the delta that at least one rep answered on."""
        return sum(
            part.lines
            for shard in self.plan.shards
            if self.discovery.valid_reps(shard)
            for part in shard.parts
        )


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The round's findings, each raw finding's fate, and the places folded into each finding."""

    blocking: tuple[ReportedFinding, ...]
    non_blocking: tuple[ReportedFinding, ...]
    closed: tuple[ReportedFinding, ...]
    fates: tuple[Fate, ...]
    folded: dict[str, tuple[Finding, ...]]
    next_number: int


def assemble(draft: Draft, ledger: Ledger, text: Text) -> tuple[RoundReport, Ledger]:
    """The report and the next ledger."""
    round_index = ledger.rounds + 1
    gate = Gate(ledger, round_index, draft.policy.quorum, text)
    outcome = _outcome(draft, gate, ledger)
    lines = draft.round_reviewed_lines
    coverage = lines / draft.plan.reviewable if draft.plan.reviewable else 1.0
    reported = (*outcome.blocking, *outcome.non_blocking)
    reasons: list[str] = []
    if draft.panel:
        reasons = doubts(draft.policy, draft.plan, draft.discovery, draft.docket.cases, coverage, text)
    checklist = answer_items(
        _items_of_round(draft, reported),
        draft.discovery,
        reported,
        draft.detected.ran,
        draft.policy.quorum,
        draft.policy.language,
    )
    usage = draft.panel.usage if draft.panel else Usage()
    models = tuple(sorted(usage.models, key=lambda model: (-usage.models[model], model)))
    tool_calls = draft.panel.tool_calls() if draft.panel else ()
    delta = draft.plan.changed_paths
    kpi = Kpi(
        reps=draft.policy.reps if draft.panel else 0,
        agentic_reps=draft.policy.agentic_reps if draft.panel else 0,
        diff_truncated=lines < draft.plan.reviewable,
        patch_bytes=draft.checkout.diff.size,
        coverage=round(coverage, 4),
        shards=len(draft.plan.shards),
        discover_ok=draft.discovery.ok,
        discover_fail=len(draft.discovery.lost),
        discover_attempts=draft.discovery.attempts,
        clusters=draft.docket.clusters,
        synth_fail=draft.synth_fail,
        confirm=draft.confirm,
        blocking_dedup_merged=len(draft.folded_into),
        fact_check=draft.fact_check,
        model=models[0] if models else "none",
        round_index=round_index,
        delta_files=len(draft.plan.delta),
        full_files=len(draft.checkout.diff.files),
        new_findings=draft.docket.clusters - draft.docket.merged,
        merged=draft.docket.merged,
        recheck=tally(draft.carried),
        blocking=len(outcome.blocking),
        blocking_on_unchanged=sum(one.path not in delta for one in outcome.blocking),
        delta_lines=draft.plan.reviewable,
        models=models,
        detector_findings=len(draft.detected.findings),
        checklist=count(checklist),
        tool_calls=len(tool_calls),
        tokens_in=usage.tokens_in,
        tokens_out=usage.tokens_out,
        cost_usd=round(usage.cost_usd, 6),
        seconds=round(usage.seconds, 3),
    )
    report = RoundReport(
        pull=draft.pull,
        round_index=round_index,
        reviewed_at=draft.now.isoformat(timespec="seconds"),
        language=draft.policy.language,
        verdict=decide(len(outcome.blocking), reasons, detectors_only=draft.panel is None),
        blocking=outcome.blocking,
        non_blocking=outcome.non_blocking,
        closed=outcome.closed,
        checklist=checklist,
        strengths=name_strengths(draft.discovery),
        unreviewed=_unreviewed(draft, text),
        fates=outcome.fates,
        tool_calls=tool_calls,
        warnings=_warnings(draft, text),
        kpi=kpi,
    )
    return report, _remember(draft, ledger, outcome, report)


def _outcome(draft: Draft, gate: Gate, ledger: Ledger) -> _Outcome:
    raws, number = draft.docket.raws, ledger.next_number
    reported: dict[int, ReportedFinding] = {}
    for case in draft.docket.cases:
        if id(case) in draft.folded_into:
            continue
        if case.known is None:
            name, number = f"F{number}", number + 1
        else:
            name = case.known.id
        reported[id(case)] = gate.report(case, name, raws)
    fates: dict[int, Fate] = {}
    folded: dict[str, tuple[Finding, ...]] = {}
    for case in draft.docket.cases:
        into = draft.folded_into.get(id(case))
        target = reported[id(into or case)]
        fates |= gate.fates(case, target, raws, folded=into is not None)
        if case.folded:
            folded[target.id] = (*ledger.folded.get(target.id, ()), *case.folded)
    everything = [*reported.values(), *draft.carried]
    closed = [one for one in everything if one.state in (State.FIXED, State.DISMISSED)]
    remaining = [one for one in everything if one.state not in (State.FIXED, State.DISMISSED)]
    return _Outcome(
        blocking=by_severity(one for one in remaining if one.blocking),
        non_blocking=by_severity(one for one in remaining if not one.blocking),
        closed=by_severity(closed),
        fates=tuple(fates[index] for index in range(len(raws))),
        folded=folded,
        next_number=number,
    )


def _items_of_round(draft: Draft, reported: tuple[ReportedFinding, ...]) -> list[Item]:
    """The items that apply to what was reviewed, and those that a finding still open fails."""
    wanted = {item.id for item in applicable(draft.items.values(), draft.plan.changed_paths)}
    wanted |= set(chain.from_iterable(one.checklist_ids for one in reported))
    return [item for item in draft.items.values() if item.id in wanted]


def _unreviewed(draft: Draft, text: Text) -> tuple[Unreviewed, ...]:
    """What no model saw: excluded files, hunks that fitted nowhere, and shards that every rep lost.

    Where no model was asked at all the report says so once, and does not list everything.
    """
    if not draft.panel:
        return draft.plan.excluded
    lost = tuple(
        Unreviewed(path=part.file.path, reason=text("rep_lost"), lines=part.lines)
        for shard in draft.plan.shards
        if not draft.discovery.valid_reps(shard)
        for part in shard.parts
    )
    return (*draft.plan.excluded, *draft.plan.overflow, *lost)


def _warnings(draft: Draft, text: Text) -> tuple[str, ...]:
    lost = (
        text("rep_answer_lost", rep=one.rep, shard=one.shard.index, why=one.asked.lost)
        for one in draft.discovery.lost
    )
    failures = (text("detector_failed", failure=failure) for failure in draft.detected.failures)
    engine = draft.panel.engine.warnings() if draft.panel else ()
    return (*lost, *failures, *engine)


def _remember(draft: Draft, ledger: Ledger, outcome: _Outcome, report: RoundReport) -> Ledger:
    now = (*outcome.blocking, *outcome.non_blocking, *outcome.closed)
    return ledger.model_copy(
        update={
            "rounds": report.round_index,
            "next_number": outcome.next_number,
            "findings": {**ledger.findings, **{one.id: one for one in now}},
            "folded": {**ledger.folded, **outcome.folded},
            "files": _marks(draft, ledger),
            "last": report,
        }
    )


def _marks(draft: Draft, ledger: Ledger) -> dict[str, FileMark]:
    """Marks every file of the change that is reviewed completely: all its hunks, by a quorum of reps, and
    with no question about it left open."""
    open_questions = {one.path for one in draft.plan.overflow}
    for shard in draft.plan.shards:
        if draft.discovery.valid_reps(shard) < draft.policy.quorum:
            open_questions.update(shard.paths())
    for case in draft.docket.cases:
        if unresolved(case, draft.policy) or case.fact_check is FactCheck.PARSE_FAIL:
            open_questions.add(case.finding.path)
    # A file outside the delta is as it was reviewed, perhaps on another base: its mark moves along.
    paths = draft.plan.changed_paths
    return {
        file.path: mark(file)
        for file in draft.checkout.diff.files
        if (file.path not in open_questions if file.path in paths else file.path in ledger.files)
    }
