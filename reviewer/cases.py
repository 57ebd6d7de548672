"""From raw findings to cases: clusters of what reps said, with detectors as evidence, known ones by their id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from reviewer.case import Case, median_severity
from reviewer.checklist import Item
from reviewer.checkout.base import Checkout
from reviewer.cluster import cluster, match
from reviewer.diff import Diff
from reviewer.discover import Discovery
from reviewer.ledger import Ledger
from reviewer.model import Finding, ReportedFinding, Severity, State
from reviewer.place import read_lines, relocate
from reviewer.plan import FileMark

_Named: TypeAlias = tuple[Finding | ReportedFinding, ReportedFinding]
"""A wording under which an earlier finding is known, and that finding."""


@dataclass(slots=True)
class Docket:
    """All cases of a round, and the raw findings that they are made of.

    `clusters` counts them before those about one known finding became one case; `merged` of them are known.
    """

    raws: list[Finding] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)
    clusters: int = 0
    merged: int = 0

    def add(
        self, findings: Sequence[Finding], discovery: Discovery, *, fresh: frozenset[int] = frozenset()
    ) -> list[Case]:
        """Clusters what reps said into new cases. `fresh` are the reps of the confirmation in which the
        findings were made, if they were: such findings cannot block."""
        start = len(self.raws)
        self.raws += findings
        cases = []
        for group in cluster(findings):
            members = [start + index for index in group.members]
            said = [self.raws[index] for index in members]
            answered, lost = discovery.voters(findings[group.medoid].path)
            cases.append(
                Case(
                    members=members,
                    finding=findings[group.medoid],
                    severity=median_severity(_votes(said)),
                    reps={one.rep for one in said},
                    looked=answered | fresh,
                    missing=lost,
                    late=bool(fresh),
                )
            )
        self.clusters += len(cases)
        self.cases += cases
        return cases

    def attach(self, case: Case, finding: Finding) -> None:
        """Files one more wording under a case."""
        case.members.append(len(self.raws))
        self.raws.append(finding)

    def add_detected(self, findings: Sequence[Finding], items: dict[str, Item]) -> None:
        """A detector's finding is evidence for the case that says the same, else a case of its own."""
        voted = [case for case in self.cases if case.reps]
        same = match(findings, [case.finding for case in voted])
        for finding, (found, _) in zip(findings, same, strict=True):
            case = next((case for case in voted if _same_item(case.finding, finding)), None)
            if case is None and found is not None:
                case = voted[found]
            if case is None:
                case = Case([], finding, finding.severity)
                self.cases.append(case)
                self.clusters += 1
            self.attach(case, finding)
            case.certain |= any(items[id_].blocking for id_ in finding.checklist_ids)

    def recognise(self, cases: Sequence[Case], earlier: Sequence[ReportedFinding], ledger: Ledger) -> None:
        """Gives the cases that an earlier round knows their finding; several about one become one case."""
        names = [(one, one) for one in earlier] + [
            (folded, one) for one in earlier for folded in ledger.folded.get(one.id, ())
        ]
        said = [pair for pair in names if pair[1].source == "model"]
        detected = [pair for pair in names if pair[1].source != "model"]
        owners = self._same_words([case for case in cases if case.reps], said)
        owners |= _same_rule([case for case in cases if not case.reps], detected)
        by_id = {case.known.id: case for case in self.cases if case.known is not None}
        for case in cases:
            known = owners.get(id(case))
            if known is None:
                continue
            self.merged += 1
            first = by_id.setdefault(known.id, case)
            if first is case:
                case.known = known
            else:
                _join(first, case)
                self.cases.remove(case)

    def _same_words(self, cases: Sequence[Case], names: Sequence[_Named]) -> dict[int, ReportedFinding]:
        """The earlier finding nearest to any wording of each case, by `id()` of the case."""
        worded = [(case, self.raws[index]) for case in cases for index in case.members]
        worded += [(case, case.finding) for case in cases]
        best: dict[int, tuple[float, ReportedFinding]] = {}
        pairs = match([text for _, text in worded], [name for name, _ in names])
        for (case, _), (found, score) in zip(worded, pairs, strict=True):
            if found is not None and score > best.get(id(case), (0.0,))[0]:
                best[id(case)] = (score, names[found][1])
        return {key: known for key, (_, known) in best.items()}


def refresh(
    findings: Sequence[ReportedFinding], checkout: Checkout, marks: Mapping[str, FileMark]
) -> list[ReportedFinding]:
    """Earlier findings where their code stands now, without the last round's own remarks. `marks` are the files
    as last reviewed: they tell a file that the pull request has renamed since."""
    refreshed = []
    for finding in findings:
        lines = read_lines(checkout, finding.path, finding.side)
        if lines is None and (path := _new_name(finding.path, checkout.diff, marks)):
            finding = finding.model_copy(update={"path": path})
            lines = read_lines(checkout, path, finding.side)
        moved = relocate(finding, lines) if lines is not None else None
        update = {"recheck": None} if finding.state is State.OPEN else {}
        refreshed.append((moved or finding).model_copy(update=update))
    return refreshed


def _new_name(path: str, diff: Diff, marks: Mapping[str, FileMark]) -> str | None:
    """What a file of an earlier head is called in this one: the file that comes from the same blob of the base,
    or that is the same blob itself."""
    before = marks.get(path)
    for file in diff.files:
        if file.path == path or file.path in marks:
            continue
        if file.old_path == path or (
            before is not None
            and (file.old_blob, file.new_blob) != ("", "")
            and (file.old_blob == before.base_blob != "" or file.new_blob == before.head_blob)
        ):
            return file.path
    return None


def _votes(said: Sequence[Finding]) -> list[Severity]:
    """One severity a rep: the worst of what it said."""
    worst: dict[int, Severity] = {}
    for finding in said:
        before = worst.get(finding.rep, finding.severity)
        worst[finding.rep] = min(before, finding.severity, key=lambda one: one.rank)
    return list(worst.values())


def _same_item(said: Finding, detected: Finding) -> bool:
    """Whether a rep fails the same checklist item on the same lines as a detector."""
    return (
        said.path == detected.path
        and said.line_start <= detected.line_end
        and detected.line_start <= said.line_end
        and not set(said.checklist_ids).isdisjoint(detected.checklist_ids)
    )


def _join(first: Case, other: Case) -> None:
    first.members = sorted((*first.members, *other.members))
    if other.late and not first.late:
        return
    first.reps |= other.reps
    first.looked |= other.looked
    first.missing |= other.missing
    first.severity = min(first.severity, other.severity, key=lambda one: one.rank)
    first.certain |= other.certain


def _same_rule(cases: Sequence[Case], names: Sequence[_Named]) -> dict[int, ReportedFinding]:
    """A detector's finding is known by its rule, file and code; each earlier one is recognised once."""
    free = list(names)
    owners: dict[int, ReportedFinding] = {}
    for case in cases:
        same = [pair for pair in free if _rule(pair[0]) == _rule(case.finding)]
        if same:
            near = min(same, key=lambda pair: abs(pair[0].line_start - case.finding.line_start))
            free.remove(near)
            owners[id(case)] = near[1]
    return owners


def _rule(finding: Finding | ReportedFinding) -> tuple[str, str, str]:
    return finding.source, finding.path, finding.quoted_code.strip()
