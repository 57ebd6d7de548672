"""One round of review, step by step: plan, discover, cluster, synthesize, recognise, confirm, recheck, dedup,
fact check, gate, verdict. What each step means is in its own module."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from reviewer.ask import Panel
from reviewer.assemble import Draft, assemble
from reviewer.cases import Docket, refresh
from reviewer.checklist import Item
from reviewer.checkout.base import Checkout
from reviewer.confirm import Confirmation, confirm, fresh_reps
from reviewer.dedup import fold_same_causes
from reviewer.detect import detect_changes
from reviewer.detectors.run import DetectorRun
from reviewer.discover import Discovery, Pass, as_finding, discover
from reviewer.engines.base import Engine
from reviewer.fact_check import fact_check
from reviewer.ledger import Ledger
from reviewer.model import FactCheckKpi, Finding, PullRequest, ReportedFinding, RoundReport, State
from reviewer.plan import Plan, make_plan
from reviewer.policy import ReviewPolicy
from reviewer.recheck import recheck, recheck_by_detector
from reviewer.synthesize import synthesize
from reviewer.text import load_text


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a step of the round is: `done` of `total`, with a word on the latest."""

    step: str
    done: int
    total: int
    note: str = ""


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class RoundResult:
    """`reprinted` is True where the head was already reviewed and its report stands as it was."""

    report: RoundReport
    ledger: Ledger
    reprinted: bool = False


async def run_round(
    pull: PullRequest,
    checkout: Checkout,
    policy: ReviewPolicy,
    ledger: Ledger,
    engine: Engine | None,
    items: Sequence[Item],
    on_progress: OnProgress,
    *,
    now: datetime,
    full: bool = False,
) -> RoundResult:
    """Reviews one head of a pull request and returns its report with the ledger that remembers it.

    Without an engine the detectors alone review. `full` reads everything again, also a head that was already
    reviewed. Raises `EngineError` where the engine can give no answer at all; the ledger is then unchanged.
    """
    if ledger.last is not None and not full and _same_head(ledger.last, pull, engine):
        return RoundResult(ledger.last, ledger, reprinted=True)

    text = load_text("round/text", policy.language)
    panel = Panel(engine, policy) if engine is not None else None
    by_id = {item.id: item for item in items}

    plan = make_plan(checkout.diff, checkout, policy, ledger.files, text, full=full)
    on_progress(Progress("plan", len(plan.shards), len(plan.shards), f"{len(plan.delta)} files"))

    detecting = asyncio.create_task(
        asyncio.to_thread(detect_changes, checkout, plan.excluded, items, policy.language)
    )
    try:
        discovery = await _discover(panel, pull, checkout, plan, items, on_progress)
    except BaseException:
        detecting.cancel()
        raise
    detected = await detecting
    on_progress(
        Progress("detect", len(detected.ran), len(detected.ran), f"{len(detected.findings)} findings")
    )

    docket = Docket()
    docket.add(_drafts(discovery, by_id, checkout), discovery)
    docket.add_detected(detected.findings, by_id)
    synth_fail = 0
    if panel:
        synth_fail = await synthesize(panel, docket.cases, docket.raws)
    on_progress(Progress("cluster", docket.clusters, docket.clusters, f"of {len(docket.raws)} findings"))

    earlier = refresh(tuple(ledger.findings.values()), checkout, ledger.files)
    docket.recognise(list(docket.cases), earlier, ledger)
    confirmation, into, facts = Confirmation(), {}, FactCheckKpi()
    if panel:
        confirmation = await confirm(panel, docket.cases, docket.raws, plan, checkout, by_id)
        for case, finding in confirmation.attached:
            docket.attach(case, finding)
        late = docket.add(confirmation.extra, discovery, fresh=frozenset(fresh_reps(policy)))
        docket.recognise(late, earlier, ledger)
        on_progress(Progress("confirm", confirmation.kpi.to_block, confirmation.kpi.candidates))
    carried = await _recheck(panel, docket, earlier, checkout, detected, plan, on_progress)
    if panel:
        candidates = [case for case in docket.cases if case.may_block and case.support >= policy.quorum]
        into = await fold_same_causes(panel, candidates)
        candidates = [case for case in candidates if id(case) not in into]
        facts = await fact_check(panel, candidates, checkout, text)
        on_progress(Progress("fact check", facts.hold, facts.checked, f"{facts.refuted} refuted"))

    return RoundResult(
        *assemble(
            Draft(
                pull=pull,
                checkout=checkout,
                policy=policy,
                items=by_id,
                plan=plan,
                discovery=discovery,
                detected=detected,
                docket=docket,
                carried=carried,
                synth_fail=synth_fail,
                confirm=confirmation.kpi,
                folded_into=into,
                fact_check=facts,
                panel=panel,
                now=now,
            ),
            ledger,
            text,
        )
    )


def _same_head(last: RoundReport, pull: PullRequest, engine: Engine | None) -> bool:
    same = (last.pull.base_sha, last.pull.head_sha) == (pull.base_sha, pull.head_sha)
    return same and last.verdict.detectors_only == (engine is None)


async def _discover(
    panel: Panel | None,
    pull: PullRequest,
    checkout: Checkout,
    plan: Plan,
    items: Sequence[Item],
    on_progress: OnProgress,
) -> Discovery:
    if panel is None or not plan.shards:
        return Discovery(())
    total, done = panel.policy.reps * len(plan.shards), 0

    def on_pass(one: Pass) -> None:
        nonlocal done
        done += 1
        answer = one.asked.answer
        note = f"{len(answer.findings)} findings" if answer else f"lost: {one.asked.lost}"
        on_progress(Progress("discover", done, total, f"rep {one.rep} shard {one.shard.index}: {note}"))

    return await discover(panel, pull, checkout, plan.shards, items, on_pass)


def _drafts(discovery: Discovery, items: dict[str, Item], checkout: Checkout) -> list[Finding]:
    paths = frozenset(file.path for file in checkout.diff.files)
    return [
        as_finding(draft, one.rep, items, paths)
        for one in discovery.passes
        if one.asked.answer is not None
        for draft in one.asked.answer.findings
    ]


async def _recheck(
    panel: Panel | None,
    docket: Docket,
    earlier: Sequence[ReportedFinding],
    checkout: Checkout,
    detected: DetectorRun,
    plan: Plan,
    on_progress: OnProgress,
) -> tuple[ReportedFinding, ...]:
    """Earlier open findings that nobody repeated. Where nothing changed, no model is asked."""
    repeated = {case.known.id for case in docket.cases if case.known is not None}
    silent = [one for one in earlier if one.state is State.OPEN and one.id not in repeated]
    said = tuple(one for one in silent if one.source == "model")
    if panel and plan.delta:
        said = await recheck(panel, said, checkout)
    found = recheck_by_detector([one for one in silent if one.source != "model"], detected.ran)
    if silent:
        fixed = sum(one.state is State.FIXED for one in (*said, *found))
        on_progress(Progress("recheck", fixed, len(silent), "fixed"))
    return (*said, *found)
