"""Softmax over attention scores."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _softmax_kernel(x_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    x = tl.load(x_ptr + row * width + columns, mask=inside, other=-float("inf")).to(tl.float32)
    # Subtracting the maximum keeps exp() from overflowing and changes nothing else.
    exponentials = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * width + columns, exponentials / tl.sum(exponentials, axis=0), mask=inside)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Along the last dimension. x: contiguous [n, width]. Returns the same shape and type."""
    rows, width = x.shape
    out = torch.empty_like(x)
    _softmax_kernel[(rows,)](x, out, width, BLOCK=triton.next_power_of_2(width))
    return out
