"""What replay may rely on: every pointer that a captured step holds is still where it was, shaped as it was."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch


class GraphContractError(RuntimeError):
    """A buffer that a captured graph reads has moved or changed; replaying would read what is no longer there."""


def require_not_capturing(what: str, device: torch.device) -> None:
    """Refuse what a capture would forget or forbid: memory made in it is gone, or moves, when it is replayed.

    Raises:
        GraphContractError: the device's current stream is being captured.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise GraphContractError(
            f"{what}: asked for inside a capture; make it before, and let the capture find it"
        )


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
            owner: {name: (tensor, Binding.of(tensor)) for name, tensor in holder.graph_buffers().items()}
            for owner, holder in self._holders.items()
        }

    def require_unchanged(self) -> None:
        """Compare what the holders hold now.

        Raises:
            GraphContractError: naming the buffer, where it was expected and where it is.
        """
        for owner, holder in self._holders.items():
            bound = self._bound[owner]
            held = holder.graph_buffers()
            for name, tensor in held.items():
                if name not in bound:
                    raise GraphContractError(
                        f"{owner}.{name}: appeared after the capture, {Binding.of(tensor)}"
                    )
                was, binding = bound[name]
                # The very same object can only have been given other memory. What replaced it is looked at closely.
                if tensor is was and tensor.data_ptr() == binding.address:
                    continue
                if not isinstance(tensor, torch.Tensor):
                    raise GraphContractError(f"{owner}.{name}: bound at the capture, {tensor} now")
                if (now := Binding.of(tensor)) != binding:
                    raise GraphContractError(f"{owner}.{name}: expected {binding}, got {now}")
            if len(held) != len(bound):
                gone = min(bound.keys() - held.keys())
                raise GraphContractError(f"{owner}.{gone}: bound at the capture, gone now")
