"""Who may run which command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from reviewer.model import ReportedFinding
from service.events.commands import Command, Dismiss, Review
from service.events.policy import Level, Rights, permission_of
from service.forge.base import Permission, User


@dataclass(frozen=True, slots=True)
class Allowed:
    pass


@dataclass(frozen=True, slots=True)
class Refused:
    """`level`: the author lacks the permission `needed`. `own_blocker`: nobody dismisses those."""

    reason: Literal["level", "own_blocker"]
    needed: Level


def allowed(
    command: Command,
    author: User,
    pull_author: User,
    permission: Permission,
    rights: Rights,
    finding: ReportedFinding | None = None,
) -> Allowed | Refused:
    """Whether `author`, who has `permission` in the repository now, may run the command.

    `rights` are those of `policy.resolve`; `finding` is the one that a command names, None where there is none.
    """
    own = author.login.casefold() == pull_author.login.casefold()
    needed = rights.needed(right_of(command))
    excused = own and command == Review() and rights.author_may_review
    if permission < permission_of(needed) and not excused:
        return Refused("level", needed)
    if own and isinstance(command, Dismiss) and finding is not None and _grave(finding):
        return Refused("own_blocker", needed)
    return Allowed()


def right_of(command: Command) -> str:
    """The field of `Rights` that says who may run the command."""
    return "review_full" if command == Review(full=True) else command.kind


def _grave(finding: ReportedFinding) -> bool:
    """What blocks or could: a dismissal holds for good, so a P1 one vote short must not be talked away in time."""
    return finding.blocking or finding.severity.can_block
