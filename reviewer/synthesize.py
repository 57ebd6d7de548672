"""Synthesis: one text for each case, written from all that was said; the medoid stands where that fails."""

from __future__ import annotations

from collections.abc import Sequence

from reviewer.answers import MergeAnswer
from reviewer.ask import Panel, gather
from reviewer.case import Case
from reviewer.model import Finding
from reviewer.plan import digest


async def synthesize(panel: Panel, cases: Sequence[Case], raws: Sequence[Finding]) -> int:
    """Rewrites the finding of every case that more than one rep worded. Returns how many failed."""
    worded = [
        (case, said) for case in cases if len(said := [raws[i] for i in case.members if raws[i].rep >= 0]) > 1
    ]
    return sum(await gather(_merge(panel, case, said) for case, said in worded))


async def _merge(panel: Panel, case: Case, said: list[Finding]) -> bool:
    subject = digest(*(f"{one.title}\n{one.body}" for one in said))
    asked = await panel.ask("synthesize", 0, subject, MergeAnswer, findings=said)
    if asked.answer is None:
        return True
    suggestion = asked.answer.suggestion or case.finding.suggestion
    case.finding = case.finding.model_copy(
        update={"title": asked.answer.title, "body": asked.answer.body, "suggestion": suggestion}
    )
    return False
