"""Quantize activations to 8 bits with one scale for each group of neighbours in a row.

`per_token_group_quant_8bit` reads bfloat16, float16 or float32 `[rows, columns]` and writes e4m3 or int8 of that shape
and the scales of the groups. The arithmetic, the scale layouts and what becomes of NaN, infinities and zero groups
are those of `kernels.quantize`. Memory is read once.

With `fuse_silu_and_mul` the input is `[rows, 2 * columns]`, gate columns then up columns, and silu(gate) * up is
quantized; as in torch the SiLU rounds to the input dtype before the multiplication, and so does the product.

With `masked_m` the input is `[experts, rows, columns]`, as mixture-of-experts buffers are: of expert e only the first
`masked_m[e]` rows are read and written. The counts stay on the device, so the call can be captured.

The method is the per-token-group quantization of DeepSeek-V3 (arXiv 2412.19437, 3.3); the names follow SGLang's.
"""

import ctypes
from collections.abc import Iterator
from itertools import product

import torch
import triton
import triton.language as tl

from kernels import contract, quantize, target
from kernels.cuda import Library
from kernels.cuda import available as cuda_available
from kernels.launch import BuildCase, launch, meta

INPUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
GROUP_SIZES = (16, 32, 64, 128, 256)
MAXIMUM_EXPERTS = 1024
BACKENDS = ("cuda", "triton")

_TILE = 4096
"""Elements a Triton program handles: 32 a thread."""

_LIBRARY = Library(
    "per_token_group_quant.cu",
    {
        "per_token_group_quant_8bit": [
            *(ctypes.c_void_p,) * 4,  # x, q, scales, counts
            ctypes.c_int,  # experts
            ctypes.c_int64,  # rows
            ctypes.c_int,  # columns
            *(ctypes.c_int64,) * 4,  # strides of rows; of the scales' experts, rows and columns
            ctypes.c_int,  # group size
            ctypes.c_float,  # eps
            *(ctypes.c_int,) * 6,  # input type, int8, UE8M0, SiLU, multiprocessors, overlap
        ]
    },
)


def per_token_group_quant_8bit(
    x: torch.Tensor,
    group_size: int = 128,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_layout: str = "row_major",
    eps: float = 1e-10,
    fuse_silu_and_mul: bool = False,
    masked_m: torch.Tensor | None = None,
    out_q: torch.Tensor | None = None,
    out_scales: torch.Tensor | None = None,
    backend: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize groups of `group_size` neighbours in each row of `x`.

    Args:
        x: `[rows, columns]`, or `[experts, rows, columns]` with `masked_m`; twice the columns with
            `fuse_silu_and_mul`. Rows contiguous and starting on 16 bytes; experts follow one another.
        group_size: 16, 32, 64, 128 or 256; divides the columns of q.
        dtype: `torch.float8_e4m3fn` or `torch.int8`.
        scale_layout: one of `quantize.SCALE_LAYOUTS`; `ue8m0` for groups of 128 alone.
        eps: smallest group maximum that counts; keeps scales of zero groups above 0.
        masked_m: int32 `[experts]`, live rows of each expert, on the device; at most 1024 experts.
        out_q: contiguous tensor for q, else a new one.
        out_scales: tensor for the scales, with the strides of `scale_layout`, else a new one.
        backend: `cuda` (the default where there is nvcc) or `triton`.

    Returns:
        q, and the scales in `scale_layout`. Rows that are not live are left as they were.

    Raises:
        ValueError: an argument breaks the contract; nothing was launched.
    """
    columns = _require_input(x, group_size, dtype, scale_layout, eps, fuse_silu_and_mul, masked_m)
    rows = x.shape[-2]
    groups = columns // group_size
    experts = x.shape[0] if masked_m is not None else None
    shape = (*x.shape[:-1], columns)
    if out_q is None:
        out_q = torch.empty(shape, dtype=dtype, device=x.device)
    else:
        contract.require(
            "out_q", out_q, dtype=dtype, shape=shape, device=x.device, contiguous=True, aligned=16
        )
    if out_scales is None:
        out_scales = quantize.allocate_scales(rows, groups, scale_layout, x.device, experts)
    else:
        quantize.require_scales("out_scales", out_scales, rows, groups, scale_layout, x.device)
        if out_scales.dim() != x.dim():
            raise ValueError(
                f"out_scales: expected {x.dim()} dimensions as x has, got shape {list(out_scales.shape)}"
            )
    if out_q.numel() == 0:
        return out_q, out_scales
    backend = backend or ("cuda" if cuda_available() and not contract.INTERPRETING else "triton")
    contract.require_value("backend", backend, BACKENDS)
    run = _launch_cuda if backend == "cuda" else _launch_triton
    run(x, out_q, out_scales, group_size, scale_layout == "ue8m0", eps, fuse_silu_and_mul, masked_m)
    return out_q, out_scales


def per_token_group_quant_8bit_reference(
    x: torch.Tensor,
    group_size: int = 128,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_layout: str = "row_major",
    eps: float = 1e-10,
    fuse_silu_and_mul: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with torch, in float64 rounded where the contract says so; without `masked_m`: all rows are live."""
    if fuse_silu_and_mul:
        gate, up = x.double().chunk(2, dim=-1)
        activated = (gate * torch.sigmoid(gate)).to(x.dtype).double()
        x = (activated * up).to(x.dtype)
    return quantize.quantize_reference(x, group_size, dtype, scale_layout, eps)


def _require_input(
    x: torch.Tensor,
    group_size: int,
    dtype: torch.dtype,
    scale_layout: str,
    eps: float,
    fuse_silu_and_mul: bool,
    masked_m: torch.Tensor | None,
) -> int:
    """Check what concerns the input; returns the columns of q."""
    contract.require("x", x, dtype=INPUT_DTYPES, rows_contiguous=True, aligned=contract.VECTOR_BYTES)
    contract.require_value("dtype", dtype, quantize.QUANTIZED_DTYPES)
    contract.require_value("group_size", group_size, GROUP_SIZES)
    contract.require_value("scale_layout", scale_layout, quantize.SCALE_LAYOUTS)
    quantize.require_eps(eps)
    if scale_layout == "ue8m0" and group_size != quantize.UE8M0_GROUP_SIZE:
        raise ValueError(
            f"group_size: expected {quantize.UE8M0_GROUP_SIZE} for ue8m0 scales, got {group_size}"
        )
    if dtype is torch.float8_e4m3fn and "fp8" not in target.current().features:
        raise ValueError(f"dtype: expected int8 on {target.current().arch}, got {dtype}")
    if masked_m is None:
        contract.require("x", x, shape=(None, None))
    else:
        contract.require("x", x, shape=(None, None, None))
        contract.require("masked_m", masked_m, dtype=torch.int32, shape=(x.shape[0],), device=x.device)
        contract.require("masked_m", masked_m, contiguous=True)
        if x.shape[0] > MAXIMUM_EXPERTS:
            raise ValueError(f"x: expected at most {MAXIMUM_EXPERTS} experts, got {x.shape[0]}")
        if x.shape[0] > 1 and x.stride(0) != x.shape[1] * x.stride(1):
            raise ValueError(
                f"x: expected experts that follow one another (stride {x.shape[1] * x.stride(1)}), "
                f"got strides {list(x.stride())}"
            )
        contract.require_range("masked_m", masked_m, 0, x.shape[1] + 1)
    halves = 2 if fuse_silu_and_mul else 1
    if x.shape[-1] % (halves * group_size):
        raise ValueError(
            f"x: expected columns in multiples of {halves * group_size} "
            f"(group size {group_size}{', gate and up' if fuse_silu_and_mul else ''}), got {x.shape[-1]}"
        )
    if x.numel() and x.shape[-2] > 1 and x.stride(-2) * x.element_size() % contract.VECTOR_BYTES:
        raise ValueError(
            f"x: expected rows that start on {contract.VECTOR_BYTES} bytes, got a stride of {x.stride(-2)} elements"
        )
    return x.shape[-1] // halves


def _launch_cuda(
    x: torch.Tensor,
    q: torch.Tensor,
    scales: torch.Tensor,
    group_size: int,
    ue8m0: bool,
    eps: float,
    silu: bool,
    masked_m: torch.Tensor | None,
) -> None:
    now = target.current()
    _LIBRARY(
        "per_token_group_quant_8bit",
        x.data_ptr(),
        q.data_ptr(),
        scales.data_ptr(),
        None if masked_m is None else masked_m.data_ptr(),
        1 if masked_m is None else x.shape[0],
        x.shape[-2],
        q.shape[-1],
        x.stride(-2),
        0 if masked_m is None else scales.stride(0),
        scales.stride(-2),
        scales.stride(-1),
        group_size,
        eps,
        INPUT_DTYPES.index(x.dtype),
        q.dtype is torch.int8,
        ue8m0,
        silu,
        now.multiprocessors,
        "pdl" in now.features,
    )


def _launch_triton(
    x: torch.Tensor,
    q: torch.Tensor,
    scales: torch.Tensor,
    group_size: int,
    ue8m0: bool,
    eps: float,
    silu: bool,
    masked_m: torch.Tensor | None,
) -> None:
    rows, groups = x.shape[-2], q.shape[-1] // group_size
    experts = 1 if masked_m is None else x.shape[0]
    padded_groups = -(-groups // 4) * 4 if ue8m0 else groups
    vector = contract.VECTOR_BYTES // x.element_size()
    tile = _TILE // (2 if silu else 1) // group_size
    launch(
        _per_token_group_quant_kernel,
        (triton.cdiv(experts * rows * padded_groups, tile),),
        x,
        q,
        scales,
        masked_m,
        eps,
        experts * rows,
        rows,
        groups,
        padded_groups,
        x.stride(-2) // vector,
        0 if masked_m is None else scales.stride(0),
        scales.stride(-2),
        scales.stride(-1),
        VECTOR=vector,
        GROUP_SIZE=group_size,
        TILE=tile,
        UE8M0=ue8m0,
        SILU=silu,
        num_warps=4,
    )


_SIZES = (
    "all_rows",
    "rows",
    "groups",
    "padded_groups",
    "row_vectors",
    "scale_expert_stride",
    "scale_row_stride",
    "scale_column_stride",
)


@triton.jit(do_not_specialize=_SIZES)
def _per_token_group_quant_kernel(
    x_ptr,
    q_ptr,
    scales_ptr,
    counts_ptr,
    eps,
    all_rows,
    rows,
    groups,
    padded_groups,
    row_vectors,
    scale_expert_stride,
    scale_row_stride,
    scale_column_stride,
    VECTOR: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    UE8M0: tl.constexpr,
    SILU: tl.constexpr,
):
    """TILE groups, which run on from row to row; `all_rows` are those of all experts together.

    Rows of x start every `row_vectors` vectors of VECTOR elements, 16 bytes.
    """
    first = tl.program_id(0).to(tl.int64) * TILE
    first_row = first // padded_groups
    tile_group = (first - first_row * padded_groups).to(tl.int32) + tl.arange(0, TILE)
    row = first_row + tile_group // padded_groups
    group = tile_group % padded_groups
    live = row < all_rows
    expert = row // rows
    expert_row = row - expert * rows
    if counts_ptr is not None:
        live &= expert_row < tl.load(counts_ptr + expert, mask=live, other=0)
    column = group[:, None] * GROUP_SIZE + tl.arange(0, GROUP_SIZE)[None, :]
    mask = (live & (group < groups))[:, None]
    source = x_ptr + row[:, None] * row_vectors * VECTOR + column
    x = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    if SILU:
        up = tl.load(source + groups.to(tl.int64) * GROUP_SIZE, mask=mask, other=0.0).to(tl.float32)
        x = quantize.silu_multiply(x, up, x_ptr.dtype.element_ty)
    q, scale = quantize.quantize_groups(x, eps, q_ptr.dtype.element_ty, UE8M0)
    tl.store(q_ptr + row[:, None] * (groups.to(tl.int64) * GROUP_SIZE) + column, q, mask=mask)
    quantize.store_scales(
        scales_ptr + expert * scale_expert_stride,
        scale,
        expert_row,
        group,
        scale_row_stride,
        scale_column_stride,
        tl.where(live, rows, 0),
        groups,
        UE8M0,
    )


def build_cases() -> Iterator[BuildCase]:
    """The CUDA library, one for all; of the Triton fallback what activations come as (layouts share variants)."""

    def case(
        name: str,
        x: torch.dtype = torch.bfloat16,
        dtype: torch.dtype = torch.float8_e4m3fn,
        group_size: int = 128,
        ue8m0: bool = False,
        silu: bool = False,
        masked: bool = False,
        backend: str = "triton",
    ) -> BuildCase:
        def call() -> None:
            columns = 1024 * (2 if silu else 1)
            per_token_group_quant_8bit(
                meta(8, 64, columns, dtype=x) if masked else meta(64, columns, dtype=x),
                group_size,
                dtype=dtype,
                scale_layout="ue8m0" if ue8m0 else "row_major",
                fuse_silu_and_mul=silu,
                masked_m=meta(8, dtype=torch.int32) if masked else None,
                backend=backend,
            )

        needs = frozenset({"fp8"}) if dtype is torch.float8_e4m3fn else frozenset[str]()
        return BuildCase(f"per_token_group_quant/{backend}-{name}", call, needs)

    yield case("all", dtype=torch.int8, backend="cuda")
    for dtype in quantize.QUANTIZED_DTYPES:
        kind = "int8" if dtype is torch.int8 else "e4m3"
        for group_size in GROUP_SIZES:
            yield case(f"bf16-{kind}-{group_size}", dtype=dtype, group_size=group_size)
        yield case(f"fp16-{kind}-128", torch.float16, dtype)
        yield case(f"fp32-{kind}-128", torch.float32, dtype)
        yield case(f"bf16-{kind}-silu", dtype=dtype, silu=True)
        yield case(f"bf16-{kind}-silu-masked", dtype=dtype, silu=True, masked=True)
    for silu, masked in product((False, True), repeat=2):
        name = "bf16-e4m3-ue8m0" + ("-silu" if silu else "") + ("-masked" if masked else "")
        yield case(name, ue8m0=True, silu=silu, masked=masked)


def check(device: torch.device) -> tuple[float, float]:
    """Mismatching bytes of a small random call, as a share, and the bound: none."""
    generator = torch.Generator(device).manual_seed(1)
    x = torch.randn(48, 1024, device=device, generator=generator).bfloat16()
    q, scales = per_token_group_quant_8bit(x)
    wanted_q, wanted_scales = per_token_group_quant_8bit_reference(x)
    wrong = (q.view(torch.uint8) != wanted_q.view(torch.uint8)).sum() + (scales != wanted_scales).sum()
    return int(wrong) / (q.numel() + scales.numel()), 0.0
