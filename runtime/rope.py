"""The rotary operation, once a step bound to what it reads; for a decode it owns the lengths.

A captured graph reads lengths from one address for ever. So the decode's operation keeps a copy of its own, which is
refreshed before each replay, instead of trusting that whoever made the inputs keeps theirs.
"""

from collections.abc import Mapping
from typing import Protocol

import torch

from runtime.batch import StepInputs
from runtime.contract import require_not_capturing
from runtime.ops import Ops
from runtime.weights import Attention


class DecodeRopeContractError(RuntimeError):
    """The lengths or slots given to a decode's rotary operation are not what it was prepared for."""


class Rope(Protocol):
    """Norm and rotate one layer's queries and keys, write keys and values to the cache."""

    def run(self, qkv: torch.Tensor, cache: torch.Tensor, attention: Attention) -> torch.Tensor:
        """Packed projections [tokens, qkv] -> queries [tokens, q_heads, head_dim]."""
        ...


class PrefillRope:
    """Positions and slots of one step's inputs."""

    def __init__(self, ops: Ops, cos_sin: torch.Tensor, eps: float, inputs: StepInputs) -> None:
        self._ops = ops
        self._cos_sin = cos_sin
        self._eps = eps
        self._inputs = inputs

    def run(self, qkv: torch.Tensor, cache: torch.Tensor, attention: Attention) -> torch.Tensor:
        inputs = self._inputs
        return self._ops.rope_kv_write(
            qkv, inputs.positions, inputs.slots, cache, self._cos_sin, attention, self._eps
        )


class DecodeRope:
    """One new token a lane; positions are this operation's own copy of the lengths before the step.

    Args:
        ops: do the work.
        cos_sin: float32 [positions, head_dim].
        eps: of the head norms.
    """

    def __init__(self, ops: Ops, cos_sin: torch.Tensor, eps: float) -> None:
        self._ops = ops
        self._cos_sin = cos_sin
        self._eps = eps
        self._lengths: torch.Tensor | None = None
        self._slots: torch.Tensor | None = None

    @property
    def sequence_lengths(self) -> torch.Tensor:
        """The device copy, int32 [batch].

        Raises:
            DecodeRopeContractError: `prepare` was never called.
        """
        if self._lengths is None:
            raise DecodeRopeContractError("sequence_lengths: no device copy yet; call prepare first")
        return self._lengths

    @property
    def slots(self) -> torch.Tensor:
        """The bound slots, int64 [batch].

        Raises:
            DecodeRopeContractError: `prepare` was never called.
        """
        if self._slots is None:
            raise DecodeRopeContractError("slots: not bound yet; call prepare first")
        return self._slots

    def graph_buffers(self) -> Mapping[str, torch.Tensor]:
        """See `runtime.contract.BufferHolder`."""
        return {"sequence_lengths": self.sequence_lengths, "slots": self.slots, "cos_sin": self._cos_sin}

    def prepare(self, inputs: StepInputs, *, forbid_reallocation: bool = False) -> None:
        """Bind the inputs' slots and copy their lengths, into the copy that exists where it is large enough.

        Args:
            forbid_reallocation: as in a graph's path: no new copy, no other shape, no other slots.

        Raises:
            DecodeRopeContractError: naming what is off, expected and actual.
        """
        source = self._checked(inputs, graph_path=forbid_reallocation)
        if forbid_reallocation:
            self._require_bound(inputs)
        else:
            self._bind(inputs)
        self.sequence_lengths.copy_(source, non_blocking=True)

    def refresh_sequence_lengths(self, inputs: StepInputs) -> None:
        """Copy this step's lengths over the last one's, where they are.

        Raises:
            DecodeRopeContractError: there is no copy yet, or the inputs do not fit it.
        """
        source = self._checked(inputs, graph_path=True)
        self._require_bound(inputs)
        self.sequence_lengths.copy_(source, non_blocking=True)

    def run(self, qkv: torch.Tensor, cache: torch.Tensor, attention: Attention) -> torch.Tensor:
        return self._ops.rope_kv_write(
            qkv, self.sequence_lengths, self.slots, cache, self._cos_sin, attention, self._eps
        )

    def _checked(self, inputs: StepInputs, *, graph_path: bool) -> torch.Tensor:
        lengths, slots = inputs.sequence_lengths, inputs.slots
        if lengths.dtype != torch.int32:
            raise DecodeRopeContractError(f"sequence_lengths: expected int32, got {lengths.dtype}")
        if lengths.dim() != 1 or not lengths.numel():
            raise DecodeRopeContractError(
                f"sequence_lengths: expected a non-empty vector, got shape {list(lengths.shape)}"
            )
        if lengths.shape != slots.shape:
            raise DecodeRopeContractError(
                f"sequence_lengths: expected one for each of {slots.shape[0]} slots, got {lengths.shape[0]}"
            )
        if graph_path and slots.is_cuda and not lengths.is_cuda and not lengths.is_pinned():
            raise DecodeRopeContractError(
                "sequence_lengths: expected device or pinned host memory in a graph's path, got pageable memory"
            )
        return lengths

    def _bind(self, inputs: StepInputs) -> None:
        batch, device = inputs.slots.shape[0], inputs.slots.device
        self._slots = inputs.slots
        if self._lengths is None or self._lengths.device != device or self._lengths.shape[0] != batch:
            storage = None if self._lengths is None else self._lengths.untyped_storage()
            if storage is None or storage.device != device or storage.nbytes() < 4 * batch:
                require_not_capturing("sequence_lengths", device)
                self._lengths = torch.empty(batch, dtype=torch.int32, device=device)
            else:
                self._lengths = torch.empty(0, dtype=torch.int32, device=device).set_(storage, 0, (batch,))

    def _require_bound(self, inputs: StepInputs) -> None:
        bound = self.sequence_lengths
        if bound.shape != inputs.slots.shape or bound.device != inputs.slots.device:
            raise DecodeRopeContractError(
                f"sequence_lengths: expected shape {list(bound.shape)} on {bound.device}, since reallocation is"
                f" forbidden, got {list(inputs.slots.shape)} on {inputs.slots.device}"
            )
        if self.slots.data_ptr() != inputs.slots.data_ptr():
            raise DecodeRopeContractError(
                f"slots: expected the graph-bound buffer at {self.slots.data_ptr():#x},"
                f" got {inputs.slots.data_ptr():#x}"
            )
