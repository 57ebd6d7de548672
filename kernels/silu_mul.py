"""SiLU of a gate times an up projection that lie side by side, alone and followed by group quantization.

    silu_mul        out = round(silu(gate)) * up, where gate_up = [gate | up] along the last dimension
    silu_mul_quant  quantized, scales = quantize(silu_mul(gate_up)), by groups along the last dimension

Shapes: gate_up [rows, 2 * width], out [rows, width]; `width` is a multiple of 8. Rows may be strided; the last
dimension is contiguous; rows start on 16 bytes. The output may not overlap the input.

Types: bfloat16 or float16 throughout. Arithmetic is float32; as in torch, where the activation is a call of its own,
the SiLU rounds to the input type before the multiplication, and the product rounds again.

The quantized form rounds the same way first and then quantizes as `kernels.quantize` says, so that it equals silu_mul
followed by per_token_group_quant_8bit bit for bit. Its backend is `cuda` for large inputs in groups of 128 where there
is nvcc, else `triton`; the two agree to the bit.

NaN gives NaN; a gate of -inf gives NaN, as -inf / inf does, and so does torch. Zero rows return at once. Offsets are
64-bit.

Source: Shazeer, "GLU Variants Improve Transformer", 2020.

Errors: ValueError naming the argument, the expected and the actual property; nothing is launched.
"""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl

from kernels import contract, target
from kernels.cuda import Library
from kernels.cuda import available as cuda_available
from kernels.launch import BuildCase, launch, meta
from kernels.quantize import (
    QUANTIZED_DTYPES,
    SCALE_LAYOUTS,
    UE8M0_GROUP_SIZE,
    allocate_scales,
    quantize_groups,
    quantize_reference,
    require_eps,
    require_scales,
    silu_multiply,
    store_scales,
)
from kernels.rounding import FLOAT32_ERROR, share_outside

DTYPES = (torch.bfloat16, torch.float16)
GROUP_SIZES = (32, 64, 128)
CUDA_GROUP_SIZE = 128
"""The one size of groups that the CUDA kernel quantizes."""

ELEMENTS_TO_FILL = 16384
"""Elements a multiprocessor that the CUDA kernel needs: 1024 threads of 16."""

BACKENDS = ("cuda", "triton")
VECTOR = 8
"""Elements of 16 bytes: widths and strides are multiples of it, and the kernel counts them in it."""

_LIBRARY = Library(
    "silu_mul.cu",
    {
        "silu_mul_quant": [
            *(ctypes.c_void_p,) * 3,  # gate_up, q, scales
            ctypes.c_int64,  # rows
            *(ctypes.c_int64,) * 2,  # strides of gate_up in vectors of 8 elements, of q in units of 16
            *(ctypes.c_int64,) * 2,  # strides of the scales' rows and columns
            ctypes.c_float,  # eps of the scales
            *(ctypes.c_int,) * 5,  # units of 16 elements in a row of q, UE8M0, float16, int8, overlap
        ]
    },
)

# Sizes and strides that make no other kernel: one variant serves all.
_PLAIN = [
    "gate_up_stride",
    "out_stride",
    "scale_row_stride",
    "scale_group_stride",
    "rows",
    "width_vectors",
    "scale_eps",
]


@dataclass(frozen=True)
class Tile:
    """What a program covers: `block_rows` rows of `block_columns` columns."""

    block_rows: int
    block_columns: int
    warps: int


def _tile_of(width: int, ue8m0: bool) -> Tile:
    # Scales in UE8M0 are written in words of four groups, which one program covers.
    least = 4 * UE8M0_GROUP_SIZE if ue8m0 else 0
    columns = max(min(triton.next_power_of_2(width), 1024), least)
    return Tile(1024 // columns, columns, 4)


@triton.jit(do_not_specialize=_PLAIN)
def _silu_mul_kernel(
    gate_up,
    out,
    scales,
    gate_up_stride,
    out_stride,
    scale_row_stride,
    scale_group_stride,
    rows,
    width_vectors,
    scale_eps,
    GROUP: tl.constexpr,
    UE8M0: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Strides and width count vectors of 8 elements, so that the compiler knows every row to be aligned."""
    width = width_vectors * 8
    blocks = tl.cdiv(width, BLOCK_COLUMNS)
    row = (tl.program_id(0) // blocks).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    first = tl.program_id(0) % blocks * BLOCK_COLUMNS
    column = first + tl.arange(0, BLOCK_COLUMNS)[None, :]
    mask = (row < rows) & (column < width)
    dtype = gate_up.dtype.element_ty
    base = gate_up + row * (gate_up_stride * 8)
    if PDL:
        tl.extra.cuda.gdc_wait()
    gate = tl.load(base + column, mask=mask, other=0.0)
    up = tl.load(base + width_vectors * 8 + column, mask=mask, other=0.0)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    result = silu_multiply(gate.to(tl.float32), up.to(tl.float32), dtype)
    out_at = out + row * (out_stride * 8) + column
    if GROUP:
        grouped = result.reshape(BLOCK_ROWS, BLOCK_COLUMNS // GROUP, GROUP)
        q, scale = quantize_groups(grouped, scale_eps, out.dtype.element_ty, UE8M0)
        tl.store(out_at, q.reshape(BLOCK_ROWS, BLOCK_COLUMNS), mask=mask)
        group = first // GROUP + tl.arange(0, BLOCK_COLUMNS // GROUP)[None, :]
        store_scales(
            scales, scale, row, group, scale_row_stride, scale_group_stride, rows, width // GROUP, UE8M0
        )
    else:
        tl.store(out_at, result.to(dtype), mask=mask)


def silu_mul(gate_up: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """`round(silu(gate)) * up`, `[rows, width]` of gate_up's type, where gate_up is `[rows, 2 * width]`."""
    rows, width = _require_gate_up(gate_up)
    if out is None:
        out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    _require_rows("out", out, gate_up.dtype, [rows, width], gate_up.device)
    if rows:
        _launch(gate_up, out)
    return out


def silu_mul_quant(
    gate_up: torch.Tensor,
    group_size: int = 128,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_layout: str = "row_major",
    scale_eps: float = 1e-10,
    out: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    backend: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`silu_mul(gate_up)` quantized: (q `[rows, width]` of `dtype`, scales of `kernels.quantize`).

    Args:
        group_size: 32, 64 or 128; divides the width.
        dtype: float8_e4m3fn or int8.
        scale_layout: one of `SCALE_LAYOUTS`; ue8m0 asks for groups of 128.
        scale_eps: the least group maximum.
    """
    rows, width = _require_gate_up(gate_up)
    contract.require_value("group_size", group_size, GROUP_SIZES)
    contract.require_value("dtype", dtype, QUANTIZED_DTYPES)
    contract.require_value("scale_layout", scale_layout, SCALE_LAYOUTS)
    require_eps(scale_eps)
    if width % group_size:
        raise ValueError(
            f"gate_up: expected halves that group_size {group_size} divides, got {width} columns"
        )
    if scale_layout == "ue8m0" and group_size != UE8M0_GROUP_SIZE:
        raise ValueError(f"group_size: expected {UE8M0_GROUP_SIZE} for ue8m0 scales, got {group_size}")
    if dtype is torch.float8_e4m3fn and "fp8" not in target.current().features:
        raise ValueError(f"dtype: expected int8 on {target.current().arch}, got {dtype}")
    suits_cuda = group_size == CUDA_GROUP_SIZE
    if backend is None:
        # With too few elements to fill the GPU the Triton kernel, which has twice the threads, is done sooner.
        many = rows * width > ELEMENTS_TO_FILL * target.current().multiprocessors
        usable = suits_cuda and many and cuda_available() and not contract.INTERPRETING
        backend = "cuda" if usable else "triton"
    contract.require_value("backend", backend, BACKENDS)
    if backend == "cuda" and not suits_cuda:
        raise ValueError(f"group_size: expected {CUDA_GROUP_SIZE} for backend cuda, got {group_size}")
    if out is None:
        out = torch.empty(rows, width, dtype=dtype, device=gate_up.device)
    _require_rows("out", out, dtype, [rows, width], gate_up.device)
    if scales is None:
        scales = allocate_scales(rows, width // group_size, scale_layout, gate_up.device)
    require_scales("scales", scales, rows, width // group_size, scale_layout, gate_up.device)
    ue8m0 = scale_layout == "ue8m0"
    if not rows:
        return out, scales
    if backend == "cuda":
        _launch_cuda(gate_up, out, scales, ue8m0, scale_eps)
    else:
        _launch(gate_up, out, scales, group_size, ue8m0, scale_eps)
    return out, scales


def _require_gate_up(gate_up: torch.Tensor) -> tuple[int, int]:
    _require_rows("gate_up", gate_up, DTYPES, [None, None], None)
    rows, columns = gate_up.shape
    if not columns or columns % (2 * VECTOR):
        raise ValueError(
            f"gate_up: expected two halves of a multiple of {VECTOR} columns, got {columns} columns"
        )
    return rows, columns // 2


def _require_rows(
    name: str,
    tensor: torch.Tensor,
    dtype: torch.dtype | tuple[torch.dtype, ...],
    shape: Sequence[int | None],
    device: torch.device | None,
) -> None:
    contract.require(
        name,
        tensor,
        dtype=dtype,
        shape=shape,
        device=device,
        rows_contiguous=True,
        aligned=contract.VECTOR_BYTES,
    )
    if tensor.shape[0] > 1 and tensor.stride(0) * tensor.element_size() % contract.VECTOR_BYTES:
        raise ValueError(
            f"{name}: expected rows that start on {contract.VECTOR_BYTES} bytes,"
            f" got a stride of {tensor.stride(0)} elements"
        )


def _launch_cuda(
    gate_up: torch.Tensor, out: torch.Tensor, scales: torch.Tensor, ue8m0: bool, scale_eps: float
) -> None:
    rows, width = out.shape
    unit = 2 * VECTOR
    _LIBRARY(
        "silu_mul_quant",
        gate_up.data_ptr(),
        out.data_ptr(),
        scales.data_ptr(),
        rows,
        gate_up.stride(0) // VECTOR,
        out.stride(0) // unit,
        scales.stride(0),
        scales.stride(1),
        scale_eps,
        width // unit,
        ue8m0,
        gate_up.dtype is torch.float16,
        out.dtype is torch.int8,
        "pdl" in target.current().features,
    )


def _launch(
    gate_up: torch.Tensor,
    out: torch.Tensor,
    scales: torch.Tensor | None = None,
    group_size: int = 0,
    ue8m0: bool = False,
    scale_eps: float = 0.0,
) -> None:
    rows, width = out.shape
    tile = _tile_of(width, ue8m0)
    pdl = "pdl" in target.current().features
    launch(
        _silu_mul_kernel,
        (triton.cdiv(rows, tile.block_rows) * triton.cdiv(width, tile.block_columns),),
        gate_up,
        out,
        scales,
        gate_up.stride(0) // VECTOR,
        out.stride(0) // VECTOR,
        0 if scales is None else scales.stride(0),
        0 if scales is None else scales.stride(1),
        rows,
        width // VECTOR,
        scale_eps,
        GROUP=group_size,
        UE8M0=ue8m0,
        BLOCK_ROWS=tile.block_rows,
        BLOCK_COLUMNS=tile.block_columns,
        PDL=pdl,
        num_warps=tile.warps,
        launch_pdl=pdl,
    )


def silu_mul_reference(gate_up: torch.Tensor, *, error: float = 0.0) -> torch.Tensor:
    """The contract in float64, rounded where it says so; the first rounding is of values off by the relative `error`."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    activated = (gate / (1 + torch.exp(-gate)) * (1 + error)).to(gate_up.dtype)
    return (activated.double() * up).to(gate_up.dtype)


def check(device: torch.device) -> tuple[float, float]:
    """One small pass of both forms; (share of wrong values, its bound: none).

    The product is wrong where float32's rounding of the SiLU does not explain it (see `kernels.rounding`). What is made
    of the product is exact, as is the product of two 16-bit floats in float32.
    """
    generator = torch.Generator(device).manual_seed(1)
    gate_up = torch.randn(8, 2048, generator=generator, device=device).bfloat16()
    out = silu_mul(gate_up)
    low, high = (silu_mul_reference(gate_up, error=error) for error in (-FLOAT32_ERROR, FLOAT32_ERROR))
    wrong = [share_outside(out, low, high)]
    if "fp8" in target.current().features:
        expected_q, expected_scales = quantize_reference(out, 128, torch.float8_e4m3fn)
        q, scales = silu_mul_quant(gate_up)
        pairs = [(q.view(torch.uint8), expected_q.view(torch.uint8)), (scales, expected_scales)]
        wrong += [(actual != wanted).double().mean().item() for actual, wanted in pairs]
    return max(wrong), 0.0


def build_cases() -> Iterator[BuildCase]:
    """One tile serves every width from 513 on."""
    for dtype in DTYPES:
        gate_up = meta(16, 2 * 7168, dtype=dtype)
        yield BuildCase(f"silu_mul/{str(dtype).removeprefix('torch.')}", partial(silu_mul, gate_up))
    gate_up = meta(16, 2 * 7168, dtype=torch.bfloat16)
    yield BuildCase(
        "silu_mul_quant/cuda-all", partial(silu_mul_quant, gate_up, dtype=torch.int8, backend="cuda")
    )
    for layout in ("row_major", "ue8m0"):
        form = partial(silu_mul_quant, gate_up, scale_layout=layout, backend="triton")
        yield BuildCase(f"silu_mul_quant/triton-{layout}", form, frozenset({"fp8"}))
