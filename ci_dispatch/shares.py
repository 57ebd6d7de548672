"""Who has used how much of the GPUs lately: the measure by which waiting jobs take turns."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import fsum

from ci_dispatch.model import Arch

MEMORY_SECONDS = 1800.0
"""What ended longer ago is forgotten."""


@dataclass(frozen=True, slots=True)
class Used:
    """A lease that ended; one without GPUs held a slot."""

    arch: Arch
    gpus: int
    pull: str
    user: str
    started_at: float
    ended_at: float


class Shares:
    """Shares of one pool, by user and by pull request: what each holds, and what it held on average of late.

    A share is half of each of the two, as a part of the pool, between 0 and 1: to hold everything counts at once, and some of it
    stays for a while.
    """

    def __init__(self, total: int, now: float) -> None:
        self._total = max(total, 1)
        self._now = now
        self._held: dict[str, int] = defaultdict(int)
        self._past: dict[str, list[float]] = defaultdict(list)
        self._average: dict[str, float] = {}

    def hold(self, name: str, width: int, started_at: float) -> None:
        """It holds so much, since then."""
        self._held[name] += width
        if started_at < self._now:
            self.held(name, width, started_at, self._now)

    def held(self, name: str, width: int, started_at: float, ended_at: float) -> None:
        """It held so much, from when to when."""
        seconds = min(ended_at, self._now) - max(started_at, self._now - MEMORY_SECONDS)
        if seconds > 0:
            self._past[name].append(width * seconds)
            self._average.pop(name, None)

    def share(self, name: str) -> float:
        average = self._average.get(name)
        if average is None:
            # Exactly rounded, so that the order of the leases changes nothing.
            average = self._average[name] = fsum(self._past.get(name, ())) / MEMORY_SECONDS
        return min(1.0, (self._held.get(name, 0) + average) / (2 * self._total))


def names(user: str, pull: str) -> tuple[str, str]:
    """Under which names a job counts."""
    return f"user {user}", f"pull {pull}"
