"""A case: one suspected fault on its way through a round, from cluster to verdict."""

from __future__ import annotations

from dataclasses import dataclass, field

from reviewer.model import FactCheck, Finding, ReportedFinding, Severity, State


@dataclass(slots=True, eq=False)
class Case:
    """`members` index the round's raw findings; `finding` is the text that stands for them all.

    `reps` said it, of those that `looked`; those `missing` could have said it but gave no answer. `known` is the
    finding of an earlier round that this is. `certain` marks a deterministic detector's finding under an
    item that blocks. `late` cases were seen in passing, by reps asked about something else, and have no vote.
    `folded` holds other cases' findings with the same root cause.
    """

    members: list[int]
    finding: Finding
    severity: Severity
    reps: set[int] = field(default_factory=set)
    looked: set[int] = field(default_factory=set)
    missing: set[int] = field(default_factory=set)
    known: ReportedFinding | None = None
    certain: bool = False
    fact_check: FactCheck | None = None
    evidence: str = ""
    late: bool = False
    folded: list[Finding] = field(default_factory=list)

    @property
    def support(self) -> int:
        return len(self.reps)

    @property
    def of(self) -> int:
        return len(self.looked | self.reps)

    @property
    def lost(self) -> int:
        return len(self.missing - self.reps)

    @property
    def dismissed(self) -> bool:
        return self.known is not None and self.known.state is State.DISMISSED

    @property
    def already_blocking(self) -> bool:
        """A blocker of an earlier round that was said again."""
        return self.known is not None and self.known.blocking and self.known.state is State.OPEN

    @property
    def may_block(self) -> bool:
        """Severe enough to block by votes, and not decided by an earlier round, a maintainer or a detector."""
        return (
            self.severity.can_block
            and bool(self.reps)
            and not (self.late or self.dismissed or self.already_blocking or self.certain)
        )


def median_severity(votes: list[Severity]) -> Severity:
    """The median vote; on a tie between two, the milder."""
    ranked = sorted(votes, key=lambda severity: severity.rank)
    return ranked[len(ranked) // 2]
