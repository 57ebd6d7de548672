"""The checklist after all reps answered it, and the strengths that more than one of them named."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from reviewer.answers import ItemAnswer
from reviewer.checklist import Item
from reviewer.cluster import cluster
from reviewer.discover import Discovery
from reviewer.model import Answer, ChecklistKpi, ChecklistResult, Finding, Language, ReportedFinding, Severity

_MOST_STRENGTHS = 8
_NAMED_BY = 2
_WORST_FIRST = (Answer.FAIL, Answer.UNSURE, Answer.PASS)


def answer_items(
    items: Sequence[Item],
    discovery: Discovery,
    reported: Iterable[ReportedFinding],
    detected: frozenset[str],
    quorum: int,
    language: Language,
) -> tuple[ChecklistResult, ...]:
    """One answer an item. A reported finding under an item fails it, and so does a quorum of reps.

    It passes where at least half of the reps that answered say so, or where its detector (`detected` holds
    the items whose detector ran) looked and no rep did; anything else is unsure.
    """
    by_rep = _votes(discovery)
    failing: dict[str, list[str]] = defaultdict(list)
    for finding in reported:
        for id_ in finding.checklist_ids:
            failing[id_].append(finding.id)
    results = []
    for item in items:
        answers = [rep[item.id] for rep in by_rep.values() if item.id in rep]
        votes = Counter(answer.answer for answer in answers)
        answer = Answer.UNSURE
        if failing[item.id] or votes[Answer.FAIL] >= quorum:
            answer = Answer.FAIL
        elif (answers and votes[Answer.PASS] * 2 >= len(answers)) or (not answers and item.id in detected):
            answer = Answer.PASS
        results.append(
            ChecklistResult(
                id=item.id,
                checklist=item.checklist.say(language),
                section=item.section.say(language),
                text=item.text.say(language),
                answer=answer,
                votes={vote: votes[vote] for vote in _WORST_FIRST if votes[vote]},
                findings=tuple(failing[item.id]),
                evidence=next((one.evidence for one in answers if one.answer is answer and one.evidence), ""),
            )
        )
    return tuple(results)


def count(results: Sequence[ChecklistResult]) -> ChecklistKpi:
    answers = Counter(result.answer for result in results)
    return ChecklistKpi(total=len(results), fail=answers[Answer.FAIL], unsure=answers[Answer.UNSURE])


def name_strengths(discovery: Discovery) -> tuple[str, ...]:
    """What at least two reps praised, in the words nearest to all of theirs, the most named first."""
    said = tuple(
        Finding(path="", severity=Severity.P3, title=text.strip(), rep=one.rep)
        for one in discovery.passes
        if one.asked.answer is not None
        for text in one.asked.answer.strengths
        if text.strip()
    )
    shared = [group for group in cluster(said) if group.support >= _NAMED_BY]
    shared.sort(key=lambda group: -group.support)
    return tuple(said[group.medoid].title for group in shared[:_MOST_STRENGTHS])


def _votes(discovery: Discovery) -> Mapping[int, Mapping[str, ItemAnswer]]:
    """Each rep's worst answer to each item, over all the shards that it read."""
    votes: dict[int, dict[str, ItemAnswer]] = defaultdict(dict)
    for one in discovery.passes:
        for answer in one.asked.answer.checklist if one.asked.answer else ():
            before = votes[one.rep].get(answer.id)
            if before is None or _WORST_FIRST.index(answer.answer) < _WORST_FIRST.index(before.answer):
                votes[one.rep][answer.id] = answer
    return votes
