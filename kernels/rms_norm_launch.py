"""How the RMS norms of `kernels.rms_norm` are launched: CUDA C++, and Triton where that is not built or not wanted.

Both keep a row in registers from the load to the store, so memory is read once.
"""

import ctypes
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels import target
from kernels.cuda import Library
from kernels.launch import launch
from kernels.quantize import UE8M0_GROUP_SIZE, quantize_groups, rounded, store_scales

CUDA_GROUP_SIZE = 128
"""The one size of groups that the CUDA kernel quantizes."""

VECTOR = 8
"""Elements of 16 bytes: widths and strides are multiples of it, and the kernels count them in it."""

_LIBRARY = Library(
    "norms.cu",
    {
        "rms_norm": [
            *(ctypes.c_void_p,) * 6,  # x, residual, weight, out, residual_out, scales
            ctypes.c_int64,  # rows
            *(ctypes.c_int64,) * 4,  # strides of the rows of x, residual, out, residual_out, in vectors
            *(ctypes.c_int64,) * 2,  # strides of the scales' rows and columns
            *(ctypes.c_float,) * 2,  # eps, eps of the scales
            *(ctypes.c_int,)
            * 6,  # vectors of a row, UE8M0, float16, quantized type, vectors a thread, overlap
        ]
    },
)
_QUANTIZED_TYPES = {torch.float8_e4m3fn: 1, torch.int8: 2}


@dataclass(frozen=True)
class Problem:
    """A checked call.

    Attributes:
        x: `[rows, width]`, as are residual, out and residual_out; at least one row.
        residual: None adds nothing, and residual_out is None too.
        scales: None quantizes nothing, and what follows does not count.
    """

    x: torch.Tensor
    residual: torch.Tensor | None
    weight: torch.Tensor
    eps: float
    out: torch.Tensor
    residual_out: torch.Tensor | None
    scales: torch.Tensor | None = None
    group_size: int = 0
    ue8m0: bool = False
    scale_eps: float = 0.0


def run_cuda(p: Problem) -> None:
    """Launch the kernel of `csrc/norms.cu`."""
    rows, width = p.x.shape
    _LIBRARY(
        "rms_norm",
        p.x.data_ptr(),
        None if p.residual is None else p.residual.data_ptr(),
        p.weight.data_ptr(),
        p.out.data_ptr(),
        None if p.residual_out is None else p.residual_out.data_ptr(),
        None if p.scales is None else p.scales.data_ptr(),
        rows,
        p.x.stride(0) // VECTOR,
        _stride(p.residual),
        p.out.stride(0) // VECTOR,
        _stride(p.residual_out),
        *_scale_strides(p.scales),
        p.eps,
        p.scale_eps,
        width // VECTOR,
        p.ue8m0,
        p.x.dtype is torch.float16,
        0 if p.scales is None else _QUANTIZED_TYPES[p.out.dtype],
        vectors_per_thread(rows, width, p.scales is not None),
        "pdl" in target.current().features,
    )


def vectors_per_thread(rows: int, width: int, quantizes: bool) -> int:
    """Few while there are too few rows to fill the GPU, so that each is done soon, and in rows that a warp covers.

    Else more, to have more loads in flight. A block has at most 1024 threads.
    """
    vectors = width // VECTOR
    if rows <= 2 * target.current().multiprocessors:
        return 1 if quantizes and vectors <= 1024 else 2
    return next((count for count in (1, 2) if vectors <= 32 * count), 4)


def _stride(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.stride(0) // VECTOR


def _scale_strides(scales: torch.Tensor | None) -> tuple[int, int]:
    return (0, 0) if scales is None else (scales.stride(0), scales.stride(1))


# Sizes and strides that make no other kernel: one variant serves all.
_PLAIN = [
    "x_stride",
    "residual_stride",
    "out_stride",
    "residual_out_stride",
    "scale_row_stride",
    "scale_group_stride",
    "rows",
    "width_vectors",
    "eps",
    "scale_eps",
]


@triton.jit(do_not_specialize=_PLAIN)
def _rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    residual_out,
    scales,
    x_stride,
    residual_stride,
    out_stride,
    residual_out_stride,
    scale_row_stride,
    scale_group_stride,
    rows,
    width_vectors,
    eps,
    scale_eps,
    ADD: tl.constexpr,
    GROUP: tl.constexpr,
    UE8M0: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    PDL: tl.constexpr,
):
    """Strides and width count vectors of 8 elements, so that the compiler knows every row to be aligned."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    column = tl.arange(0, BLOCK_WIDTH)[None, :]
    width = width_vectors * 8
    mask = (row < rows) & (column < width)
    dtype = x.dtype.element_ty
    if PDL:
        tl.extra.cuda.gdc_wait()
    value = tl.load(x + row * (x_stride * 8) + column, mask=mask, other=0.0).to(tl.float32)
    factor = tl.load(weight + column, mask=column < width).to(tl.float32)
    if ADD:
        other = tl.load(residual + row * (residual_stride * 8) + column, mask=mask, other=0.0)
        value = rounded(value + other.to(tl.float32), dtype)
        tl.store(residual_out + row * (residual_out_stride * 8) + column, value.to(dtype), mask=mask)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    inverse = tl.rsqrt(tl.sum(value * value, axis=1, keep_dims=True) / width + eps)
    result = rounded(rounded(value * inverse, dtype) * factor, dtype)
    place = out + row * (out_stride * 8) + column
    if GROUP:
        GROUPS: tl.constexpr = BLOCK_WIDTH // GROUP
        grouped = result.reshape(BLOCK_ROWS, GROUPS, GROUP)
        q, scale = quantize_groups(grouped, scale_eps, out.dtype.element_ty, UE8M0)
        tl.store(place, q.reshape(BLOCK_ROWS, BLOCK_WIDTH), mask=mask)
        group = tl.arange(0, GROUPS)[None, :]
        store_scales(
            scales, scale, row, group, scale_row_stride, scale_group_stride, rows, width // GROUP, UE8M0
        )
    else:
        tl.store(place, result.to(dtype), mask=mask)


def run_triton(p: Problem) -> None:
    """Launch the Triton kernel."""
    rows, width = p.x.shape
    # Scales in UE8M0 are written in words of four groups, which one program covers.
    block_width = max(triton.next_power_of_2(width), 4 * UE8M0_GROUP_SIZE if p.ue8m0 else 0)
    block_rows = max(1, 1024 // block_width)
    overlap = "pdl" in target.current().features
    launch(
        _rms_norm_kernel,
        (triton.cdiv(rows, block_rows),),
        p.x,
        p.residual,
        p.weight,
        p.out,
        p.residual_out,
        p.scales,
        p.x.stride(0) // VECTOR,
        _stride(p.residual),
        p.out.stride(0) // VECTOR,
        _stride(p.residual_out),
        *_scale_strides(p.scales),
        rows,
        width // VECTOR,
        p.eps,
        p.scale_eps,
        ADD=p.residual is not None,
        GROUP=p.group_size,
        UE8M0=p.ue8m0,
        BLOCK_ROWS=block_rows,
        BLOCK_WIDTH=block_width,
        PDL=overlap,
        num_warps=max(4, block_width // 1024),
        launch_pdl=overlap,
    )
