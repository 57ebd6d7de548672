"""Collectives over gloo: ranks on a CPU, of one machine."""

from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import FileStore, PrefixStore, ProcessGroupGloo, Work

from runtime.parallel.group import GroupError, require_contiguous, side_by_side

TIMEOUT = timedelta(seconds=60)
"""The most that one rank may be behind another inside a step."""


class GlooGroup:
    """See `Group`. Each call waits for the result.

    Args:
        meeting: a file that does not exist yet, on a disk that all ranks see.

    Raises:
        GroupError: not all ranks came within a minute.
    """

    def __init__(self, rank: int, size: int, meeting: Path) -> None:
        self.rank = rank
        self.size = size
        store = PrefixStore("runtime", FileStore(str(meeting), size))
        options = ProcessGroupGloo._Options()
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = TIMEOUT
        try:
            self._group = ProcessGroupGloo(store, rank, size, options)
        except RuntimeError as error:
            raise GroupError(f"gloo: {size} ranks do not come together: {error}") from error

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        require_contiguous(x)
        self._wait("all_reduce", self._group.allreduce([x]))
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        require_contiguous(x)
        parts = x.new_empty(self.size, *x.shape)
        self._wait("all_gather", self._group.allgather([list(parts)], [x]))
        return side_by_side(parts)

    def barrier(self) -> None:
        self._wait("barrier", self._group.barrier())

    def abort(self) -> None:
        """A rank that is gone has closed its connections; whoever waits for it has its error already."""

    def close(self) -> None:
        """Connections close with the last reference."""
        del self._group

    @staticmethod
    def _wait(what: str, work: Work) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            raise GroupError(f"{what}: {str(error).partition(chr(10))[0]}") from error
