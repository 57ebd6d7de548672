"""What has gathered in a line, for a thread that writes it down together."""

from __future__ import annotations

from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")


def batches(line: SimpleQueue[T | None], most: int) -> Iterator[list[T]]:
    """Waits for something and gives what is there, up to `most`; ends at a None, after what came before it."""
    open_ = True
    while open_:
        batch: list[T] = []
        entry = line.get()
        try:
            while entry is not None:
                batch.append(entry)
                if len(batch) == most:
                    break
                entry = line.get_nowait()
            else:
                open_ = False
        except Empty:
            pass
        if batch:
            yield batch
