"""The GPUs and slots of this host that no job of ours uses now."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence


class Capacity:
    """GPUs by UUID, and slots for jobs without one. A GPU is taken while its job runs and until it was examined afterwards."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._taken: set[str] = set()
        self._changed = threading.Condition()

    def take(self, gpus: Sequence[str], seconds: float) -> bool:
        """All of them at once, or a slot where none are asked for; False where that is not possible in time."""
        with self._changed:
            free = self._changed.wait_for(
                lambda: self._slots > 0 if not gpus else self._taken.isdisjoint(gpus), seconds
            )
            if free and gpus:
                self._taken.update(gpus)
            elif free:
                self._slots -= 1
            return free

    def give(self, gpus: Sequence[str]) -> None:
        with self._changed:
            if gpus:
                self._taken.difference_update(gpus)
            else:
                self._slots += 1
            self._changed.notify_all()

    def wait_for_any(self, usable: Collection[str], seconds: float) -> bool:
        """Whether a slot or one of the usable GPUs is free, within some seconds."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._slots > 0 or not self._taken.issuperset(usable), seconds
            )

    def taken(self) -> frozenset[str]:
        with self._changed:
            return frozenset(self._taken)
