"""The fact check of blocking candidates: first a machine, then a model told to refute them with evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from reviewer.answers import FactCheckAnswer
from reviewer.ask import Panel, gather
from reviewer.case import Case
from reviewer.checkout.base import Checkout
from reviewer.facts import check_facts
from reviewer.model import FactCheck, FactCheckKpi
from reviewer.place import excerpt
from reviewer.plan import Part, digest
from reviewer.text import Text


async def fact_check(
    panel: Panel, candidates: Sequence[Case], checkout: Checkout, text: Text
) -> FactCheckKpi:
    """Sets `fact_check` and `evidence` of every candidate, and its lines to where its code stands."""
    await gather(_check(panel, case, checkout, text) for case in candidates)
    tally = Counter(case.fact_check for case in candidates)
    return FactCheckKpi(
        checked=len(candidates),
        hold=tally[FactCheck.HOLD],
        refuted=tally[FactCheck.REFUTED],
        parse_fail=tally[FactCheck.PARSE_FAIL],
    )


async def _check(panel: Panel, case: Case, checkout: Checkout, text: Text) -> None:
    facts = check_facts(case.finding, checkout, text)
    case.finding = finding = facts.finding
    if facts.refuted:
        case.fact_check, case.evidence = FactCheck.REFUTED, facts.refuted
        return
    file = checkout.diff.file(finding.path)
    asked = await panel.ask(
        "fact_check",
        0,
        digest(finding.path, finding.title, finding.body),
        FactCheckAnswer,
        checkout=checkout,
        finding=finding,
        diff=Part(file, file.hunks).text() if file else "",
        excerpt=excerpt(checkout, finding.path, finding.side, finding.line_start),
    )
    if asked.answer is None:
        case.fact_check, case.evidence = FactCheck.PARSE_FAIL, asked.lost
    else:
        case.fact_check, case.evidence = asked.answer.verdict, asked.answer.evidence
