"""Prompts given as embeddings, whole or at some positions (an image's tokens, say), written over those of token ids.

What such a prompt's cache pages hold does not follow from its token ids, so they are neither taken from earlier requests nor
offered to later ones.
"""

from bisect import bisect_left
from dataclasses import dataclass

import torch

from runtime.config import ModelConfig
from runtime.errors import RequestError


@dataclass(frozen=True, eq=False)
class InputEmbeddings:
    """Embeddings of prompt tokens, as a caller gives them; `prepare` checks them.

    Attributes:
        rows: [n, hidden_size] in the model's dtype, in host memory or on the model's kind of device.
        positions: each row's place in the prompt, in any order; None for a row for each token of the prompt.
    """

    rows: torch.Tensor
    positions: tuple[int, ...] | None = None

    def prepare(self, config: ModelConfig, prompt_length: int, device: torch.device) -> "PreparedEmbeddings":
        """Check the embeddings and copy them to `device`; what the caller writes into `rows` later changes nothing.

        On a GPU the copy is put on the current stream, through pinned memory, and is not waited for: `overlay` belongs on
        the same stream.

        Args:
            prompt_length: tokens of the prompt.

        Raises:
            RequestError: a shape, dtype or device is wrong, or a position is out of range or there twice.
        """
        self._check_rows(config, device)
        positions = self._checked_positions(prompt_length)
        rows = _copied(self.rows.detach(), device)
        order = sorted(range(len(positions)), key=positions.__getitem__)
        if order != list(range(len(positions))):
            rows = rows.index_select(0, _copied(torch.tensor(order), device))
        in_order = [positions[index] for index in order]
        return PreparedEmbeddings(
            rows, in_order, _copied(torch.tensor(in_order), device), is_whole=self.positions is None
        )

    def _check_rows(self, config: ModelConfig, device: torch.device) -> None:
        if not isinstance(self.rows, torch.Tensor):
            raise _error("rows", "a tensor", type(self.rows).__name__)
        shape = tuple(self.rows.shape)
        if len(shape) != 2 or shape[0] == 0 or shape[1] != config.hidden_size:
            raise _error("rows", f"at least one row of {config.hidden_size}", f"shape {list(shape)}")
        if self.rows.dtype != config.dtype:
            raise _error("rows", f"{config.dtype}, the model's", str(self.rows.dtype))
        kinds = {"cpu", device.type}
        if self.rows.device.type not in kinds:
            raise _error("rows", f"a tensor on {' or '.join(sorted(kinds))}", f"one on {self.rows.device}")

    def _checked_positions(self, prompt_length: int) -> list[int]:
        count = len(self.rows)
        if self.positions is None:
            if count != prompt_length:
                raise _error("rows", f"one for each of the prompt's {prompt_length} tokens", f"{count} rows")
            return list(range(prompt_length))
        if len(self.positions) != count:
            raise _error("positions", f"one for each of the {count} rows", str(len(self.positions)))
        seen: set[int] = set()
        for position in self.positions:
            if type(position) is not int or not 0 <= position < prompt_length:
                raise _error("positions", f"whole numbers from 0 to {prompt_length - 1}", repr(position))
            if position in seen:
                raise _error("positions", "each once", f"{position} twice")
            seen.add(position)
        return list(self.positions)


class PreparedEmbeddings:
    """A prompt's embeddings on the device, in order of position; made by `InputEmbeddings.prepare`, kept with the request.

    Args:
        rows: [n, hidden_size] on the device.
        positions: [n], ascending.
        device_positions: the same, int64 on the device.
        is_whole: the prompt has no ids of its own.
    """

    def __init__(
        self, rows: torch.Tensor, positions: list[int], device_positions: torch.Tensor, *, is_whole: bool
    ) -> None:
        self.is_whole = is_whole
        self._rows = rows
        self._positions = positions
        self._device_positions = device_positions

    def overlay(self, x: torch.Tensor, start: int, count: int) -> None:
        """Write the rows whose positions lie in a prefill's chunk over that chunk's embeddings, in place.

        Args:
            x: [count, hidden_size] of the model's dtype on the device: the embeddings of the sequence's tokens `start` to
                `start + count`. Tokens past the prompt (generated before a preemption) keep theirs.

        Raises:
            ValueError: x is of another shape.
        """
        if x.shape != (count, self._rows.shape[1]):
            raise ValueError(f"x: expected shape {[count, self._rows.shape[1]]}, got {list(x.shape)}")
        first = bisect_left(self._positions, start)
        end = bisect_left(self._positions, start + count, first)
        if first == end:
            return
        rows, low = self._rows[first:end], self._positions[first] - start
        if self._positions[end - 1] - start - low == end - first - 1:
            x[low : low + end - first].copy_(rows)
        else:
            x.index_copy_(0, self._device_positions[first:end] - start, rows)


def _copied(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A contiguous copy in new memory of `device`, whatever `tensor` lies on."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        # Pinned memory of our own: what the caller pinned may be written before the copy has read it. The allocator keeps
        # the block that long.
        staged = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)
        return staged.to(device, non_blocking=True)
    return tensor.to(device, copy=True, memory_format=torch.contiguous_format)


def _error(field: str, expected: str, actual: str) -> RequestError:
    return RequestError(f"embeddings.{field}: expected {expected}, got {actual}")
