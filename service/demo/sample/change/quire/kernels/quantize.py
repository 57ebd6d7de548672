"""Quantisation to int8, a scale a row; `quire.numerics` is the reference."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from quire import numerics

SMALLEST_SCALE = tl.constexpr(numerics.SMALLEST_SCALE)


@triton.jit
def _quantize_rows_kernel(x_ptr, codes_ptr, scales_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    x = tl.load(x_ptr + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=0) / 127.0, SMALLEST_SCALE)
    codes = tl.floor(x / scale + 0.5).to(tl.int8)
    tl.store(codes_ptr + row * width + columns, codes, mask=inside)
    tl.store(scales_ptr + row, scale)


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x: contiguous [n, width]. Returns int8 codes [n, width] and float32 scales [n]."""
    rows, width = x.shape
    codes = torch.empty(rows, width, dtype=torch.int8, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    _quantize_rows_kernel[(rows,)](x, codes, scales, width, BLOCK=triton.next_power_of_2(width))
    return codes, scales


@triton.jit
def _scatter_rows_kernel(x_ptr, slots_ptr, codes_ptr, scales_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + columns).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=0) / 127.0, SMALLEST_SCALE)
    codes = tl.floor(x / scale + 0.5).to(tl.int8)
    tl.store(codes_ptr + slot * width + columns, codes)
    tl.store(scales_ptr + slot, scale)


def scatter_rows(x: torch.Tensor, slots: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
    """Quantises row i of x into token slots[i] of a pool of pages, in place.

    x: contiguous [n, width]. slots: int32 [n], all different. codes: int8 [num_pages, page_size, width].
    scales: float32 [num_pages, page_size].
    """
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    _scatter_rows_kernel[(rows,)](x, slots, codes, scales, width, BLOCK=block)
