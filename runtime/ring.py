"""The host's memory that steps in flight read and write: pinned slots, used in turn, each guarded by an event.

A slot is written again only when the event after its last use has happened. Without that, preparing a step would change
the lanes of one that still waits on the device.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from runtime.lanes import LaneBlock


class Event(Protocol):
    """A point in the order of a device's work."""

    def record(self) -> None:
        """Stand for all work given to the current stream so far."""
        ...

    def query(self) -> bool:
        """Whether that work has run; true before the first `record`."""
        ...

    def synchronize(self) -> None:
        """Wait for it."""
        ...


class Past:
    """The event of a device that has done everything as soon as it was told: of a CPU."""

    def record(self) -> None:
        """Nothing is ahead."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Nothing is ahead."""


class Slot:
    """One step's memory, on the host; the device reads and writes it where it is.

    Attributes:
        block: the step's lanes.
        drawn: int32 [2, max_batch]: ids, then status; `tokens` is its numpy view.
        done: recorded after the last work that uses the slot.
    """

    def __init__(self, index: int, max_batch: int, device: torch.device, done: Event) -> None:
        pinned = device.type == "cuda"
        self.index = index
        self.block = LaneBlock(max_batch, pinned=pinned)
        self.drawn = torch.zeros(2, max_batch, dtype=torch.int32, pin_memory=pinned)
        self.tokens: npt.NDArray[np.int32] = self.drawn.numpy()
        self.done = done

    def graph_buffers(self) -> Mapping[str, torch.Tensor]:
        """See `runtime.contract.BufferHolder`."""
        return {"lanes": self.block.memory, "drawn": self.drawn}


class Ring:
    """Slots in turn.

    Args:
        size: one more than the steps in flight, at least.
        make_event: by default that of the device.

    Attributes:
        waits: how often a slot was asked for that was still in use.
    """

    def __init__(
        self, size: int, max_batch: int, device: torch.device, make_event: Callable[[], Event] | None = None
    ) -> None:
        make_event = make_event or (torch.cuda.Event if device.type == "cuda" else Past)
        self.slots = [Slot(index, max_batch, device, make_event()) for index in range(size)]
        self.waits = 0
        self._next = 0

    def acquire(self) -> Slot:
        """The next slot; waits for the work that used it last."""
        slot = self.slots[self._next]
        self._next = (self._next + 1) % len(self.slots)
        if not slot.done.query():
            self.waits += 1
            slot.done.synchronize()
        return slot

    def put_back(self, slot: Slot) -> None:
        """Say that the slot asked for last was not used: the one after it may hold tokens that nobody has read yet."""
        self._next = slot.index
