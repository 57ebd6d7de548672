"""How the ranks of one machine find each other: GPUs over NCCL, CPUs over gloo."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from runtime.parallel import nccl
from runtime.parallel.gloo import GlooGroup
from runtime.parallel.group import Group


class DevicesError(ValueError):
    """There are fewer GPUs than ranks."""


@dataclass(frozen=True)
class Meeting:
    """Where ranks meet.

    Attributes:
        device: "cuda" or "cpu".
        place: NCCL's identity, or the path of a file.
    """

    device: str
    size: int
    place: bytes | Path

    def join(self, rank: int) -> tuple[Group, torch.device]:
        """Wait for the others; returns the group and the rank's device.

        Raises:
            GroupError: they do not come together.
        """
        if isinstance(self.place, Path):
            return GlooGroup(rank, self.size, self.place), torch.device("cpu")
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        return nccl.NcclGroup(rank, self.size, device, self.place), device


def require_devices(device: str, size: int) -> None:
    """Check that each rank can have a device of its own.

    Raises:
        DevicesError: there are fewer GPUs than ranks.
    """
    if device == "cuda" and (there := torch.cuda.device_count()) < size:
        raise DevicesError(f"{size} ranks: expected {size} GPUs, there are {there}; ask for fewer ranks")


@contextmanager
def meeting(device: str, size: int) -> Iterator[Meeting]:
    """A place to meet, there until all have joined."""
    if device == "cuda":
        yield Meeting(device, size, nccl.unique_id())
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Meeting(device, size, Path(folder) / "meeting")
