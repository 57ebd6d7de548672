"""What replay may rely on: every pointer that a captured step holds is still where it was, shaped as it was."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch


class GraphContractError(RuntimeError):
    """A buffer that a captured graph reads has moved or changed; replaying would read what is no longer there."""


class BufferHolder(Protocol):
    """Whoever holds tensors that a captured step reads or writes."""

    def graph_buffers(self) -> Mapping[str, torch.Tensor]:
        """The tensors it holds now, by name; asked anew before each replay."""
        ...


@dataclass(frozen=True)
class Binding:
    """Where a buffer was when a graph was captured."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Binding":
        return cls(tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"{dtype} {list(self.shape)} strides {list(self.strides)} at {self.address:#x} on {self.device}"
        )


class Fingerprint:
    """The bindings of several holders at capture, to be compared before each replay.

    Args:
        holders: by name; the name is part of what an error says.
    """

    def __init__(self, holders: Mapping[str, BufferHolder]) -> None:
        self._holders = dict(holders)
        self._bound = {
            f"{owner}.{name}": Binding.of(tensor)
            for owner, holder in self._holders.items()
            for name, tensor in holder.graph_buffers().items()
        }

    def require_unchanged(self) -> None:
        """Compare what the holders hold now.

        Raises:
            GraphContractError: naming the buffer, where it was expected and where it is.
        """
        seen = 0
        for owner, holder in self._holders.items():
            for name, tensor in holder.graph_buffers().items():
                full = f"{owner}.{name}"
                bound = self._bound.get(full)
                if bound is None:
                    raise GraphContractError(f"{full}: appeared after the capture, {Binding.of(tensor)}")
                # The address first: most of what goes wrong shows there, and the rest costs more to compare.
                if tensor.data_ptr() != bound.address or Binding.of(tensor) != bound:
                    raise GraphContractError(f"{full}: expected {bound}, got {Binding.of(tensor)}")
                seen += 1
        if seen != len(self._bound):
            present = {f"{o}.{n}" for o, holder in self._holders.items() for n in holder.graph_buffers()}
            raise GraphContractError(f"{min(self._bound.keys() - present)}: bound at the capture, gone now")
