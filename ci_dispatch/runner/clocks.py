"""The clocks that a job's GPUs ran at, as samples: a slow run on a GPU that was held down is seen to be that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ci_dispatch.runner.nvml import GpuState


@dataclass(slots=True)
class _Range:
    lowest: int
    highest: int

    def add(self, value: int) -> None:
        self.lowest, self.highest = min(self.lowest, value), max(self.highest, value)

    def __str__(self) -> str:
        return f"{self.lowest}-{self.highest}" if self.lowest < self.highest else str(self.lowest)


@dataclass(slots=True)
class Clocks:
    """Gathers readings of a lease's GPUs. One thread adds, one asks when the first is done."""

    _ranges: dict[str, _Range] = field(default_factory=dict)
    _throttles: dict[int, set[str]] = field(default_factory=dict)
    _facts: dict[str, str] = field(default_factory=dict)

    def add(self, states: Sequence[GpuState]) -> None:
        for state in states:
            self._facts["driver"] = state.driver
            self._facts[f"gpu{state.index}"] = state.name
            self._throttles.setdefault(state.index, set()).update(state.throttles)
            for name, value in (("sm", state.sm_mhz), ("memory", state.memory_mhz)):
                if value is None:
                    continue
                key = f"gpu{state.index}.{name}_mhz"
                self._ranges.setdefault(key, _Range(value, value)).add(value)

    def facts(self) -> dict[str, str]:
        """Driver, names, ranges of clocks in MHz and what held them down, by GPU index."""
        held = {
            f"gpu{index}.throttled": ", ".join(sorted(why)) or "no" for index, why in self._throttles.items()
        }
        return {**self._facts, **{key: str(value) for key, value in self._ranges.items()}, **held}
