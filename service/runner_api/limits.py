"""How much runners may send, and how often."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes, times in seconds, rates a second.

    `patience` is how long a client may take for the next piece of a body. `memory` bounds all bodies held at a time.
    """

    small_body: int = 256 * 1024
    log_chunk: int = 4 << 20
    report: int = 32 << 20
    memory: int = 256 << 20
    log_bytes: int = 64 << 20
    artifact_bytes: int = 512 << 20
    uploads: int = 16
    longest_wait: float = 30.0
    patience: float = 15.0
    rate: float = 100.0
    burst: float = 400.0
    refusals: float = 0.5
    refused_burst: float = 30.0


class Buckets:
    """One token bucket for each caller; the callers seen longest ago are forgotten."""

    def __init__(self, rate: float, burst: float, callers: int = 4096) -> None:
        self._rate = rate
        self._burst = burst
        self._callers = callers
        self._levels: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def take(self, caller: Hashable, now: float) -> float:
        """0 where the caller may go on, else the seconds until it may; `now` is of a clock that never goes back."""
        level, since = self._levels.pop(caller, (self._burst, now))
        level = min(self._burst, level + (now - since) * self._rate)
        wait = 0.0 if level >= 1 else (1 - level) / self._rate
        self._levels[caller] = (level if wait else level - 1, now)
        if len(self._levels) > self._callers:
            self._levels.popitem(last=False)
        return wait
