"""Where a step's host time goes: the engine marks its parts, whoever wants to know listens."""

from typing import Protocol


class Clock(Protocol):
    """Hears of each step's parts: "schedule", "lay out", "copy", "check", "replay", "read back", "collect", "deliver"."""

    def begin(self) -> None:
        """A step starts."""
        ...

    def mark(self, part: str) -> None:
        """A part ended, and the next one starts."""
        ...


class _NoClock:
    def begin(self) -> None:
        """Nobody listens."""

    def mark(self, part: str) -> None:
        """Nobody listens."""


NO_CLOCK: Clock = _NoClock()
