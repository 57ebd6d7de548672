"""Confirmation: where a severe case is one or two votes short, two fresh reps read its code blind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from reviewer.answers import DiscoverAnswer
from reviewer.ask import Panel, gather
from reviewer.case import Case
from reviewer.checklist import Item
from reviewer.checkout.base import Checkout
from reviewer.cluster import match
from reviewer.discover import as_finding
from reviewer.model import ConfirmKpi, Finding
from reviewer.place import excerpt
from reviewer.plan import Part, Plan, digest
from reviewer.policy import ReviewPolicy

_FRESH_REPS = 2
_WITHIN = 2


@dataclass(frozen=True, slots=True)
class Confirmation:
    """`attached` are what the fresh reps said of known cases; `extra` is what they said beside them."""

    kpi: ConfirmKpi = field(default_factory=ConfirmKpi)
    extra: tuple[Finding, ...] = ()
    attached: tuple[tuple[Case, Finding], ...] = ()


async def confirm(
    panel: Panel,
    cases: Sequence[Case],
    raws: Sequence[Finding],
    plan: Plan,
    checkout: Checkout,
    items: dict[str, Item],
) -> Confirmation:
    """Asks exactly two fresh reps about each place with a candidate, and counts their votes into the cases."""
    quorum = panel.policy.quorum
    candidates = [case for case in cases if case.may_block and quorum - _WITHIN <= case.support < quorum]
    places: dict[str, list[Case]] = defaultdict(list)
    for case in candidates:
        places[case.finding.path].append(case)

    async def ask(path: str, fresh: int) -> tuple[str, int, DiscoverAnswer | None]:
        parts = _parts(plan, path)
        about = places[path][0].finding
        asked = await panel.ask(
            "confirm",
            fresh,
            digest(path, *(name for part in parts for name in part.digests())),
            DiscoverAnswer,
            diff="\n\n".join(part.text() for part in parts),
            excerpt=excerpt(checkout, path, about.side, about.line_start),
        )
        return path, fresh, asked.answer

    reps = fresh_reps(panel.policy)
    answers = await gather(ask(path, fresh) for path in places for fresh in reps)
    paths = frozenset(path for shard in plan.shards for path in shard.paths())
    said: list[Finding] = []
    failed = 0
    for path, fresh, answer in answers:
        for case in places[path]:
            (case.missing if answer is None else case.looked).add(fresh)
        if answer is None:
            failed += 1
        else:
            said += [as_finding(draft, fresh, items, paths) for draft in answer.findings]
    extra: list[Finding] = []
    attached: list[tuple[Case, Finding]] = []
    worded = [(case, raws[index]) for case in cases for index in case.members]
    for finding, (index, _) in zip(said, match(said, [raw for _, raw in worded]), strict=True):
        if index is None:
            extra.append(finding)
            continue
        case = worded[index][0]
        attached.append((case, finding))
        if case in candidates:
            case.reps.add(finding.rep)
    reached = sum(case.support >= quorum for case in candidates)
    kpi = ConfirmKpi(candidates=len(candidates), to_block=reached, confirm_fail=failed)
    return Confirmation(kpi, tuple(extra), tuple(attached))


def fresh_reps(policy: ReviewPolicy) -> range:
    """The numbers of the reps that confirm: those after the reps that discover."""
    return range(policy.reps, policy.reps + _FRESH_REPS)


def _parts(plan: Plan, path: str) -> list[Part]:
    return [part for shard in plan.shards for part in shard.parts if part.file.path == path]
