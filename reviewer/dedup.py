"""Deduplication: blocking candidates with the same root cause become one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from reviewer.answers import DedupAnswer
from reviewer.ask import Panel
from reviewer.case import Case
from reviewer.plan import digest


async def fold_same_causes(panel: Panel, candidates: Sequence[Case]) -> dict[int, Case]:
    """Which candidates fold into which other, by `id()` of the case folded away; `folded` of the other grows.

    Only cases that no earlier round knows are folded away: known ones keep their ids. An answer that is lost,
    or that is no grouping of the candidates, folds nothing.
    """
    if len(candidates) < 2:
        return {}
    findings = [case.finding for case in candidates]
    subject = digest(*(f"{one.path}\n{one.title}" for one in findings))
    asked = await panel.ask("dedup", 0, subject, DedupAnswer, findings=findings)
    if asked.answer is None or not _is_grouping(asked.answer.groups, len(candidates)):
        return {}
    into: dict[int, Case] = {}
    for group in asked.answer.groups:
        chief, *others = sorted(
            (candidates[index] for index in group),
            key=lambda case: (case.known is None, case.severity.rank, -case.support),
        )
        for case in others:
            if case.known is None:
                into[id(case)] = chief
                chief.folded.append(case.finding)
    return into


def _is_grouping(groups: Sequence[Sequence[int]], count: int) -> bool:
    named = list(chain.from_iterable(groups))
    return (
        all(0 <= index < count for index in named)
        and len(named) == len(set(named))
        and all(len(group) > 1 for group in groups)
    )
