"""RMS normalisation over the last dimension, alone, after a residual addition, and followed by group quantization.

    rms_norm            out = weight * round(x / sqrt(mean(x^2) + eps))
    add_rms_norm        residual' = round(x + residual); out = rms_norm(residual')
    rms_norm_quant      quantized, scales = quantize(rms_norm(x)), by groups along the last dimension
    add_rms_norm_quant  the same of add_rms_norm, and residual'

Shapes: x, residual and every output of their kind [..., width], whose leading dimensions collapse to one stride;
weight [width]. `width` is a multiple of 8 from 64 to 16384. Rows may be strided; the last dimension is contiguous;
rows start on 16 bytes. Outputs may be the inputs themselves, not parts of them.

Types: bfloat16 or float16 throughout, one type in a call. Arithmetic is float32. As Hugging Face's Llama and Qwen
norms do, the normalised value rounds to the input type before the weight multiplies it, and the product rounds again;
the sum with the residual rounds to the input type before it is normalised.

The quantized forms round like the others first and then quantize as `kernels.quantize` says, so that they equal the
norm followed by per_token_group_quant_8bit bit for bit.

The backend is `cuda` where there is nvcc, and `triton` elsewhere and for groups other than 128. The two sum in different
orders, so that a value may round to a neighbour. The order depends on the width alone: a row's results are the same
whatever the number of rows.

A row holding NaN or an infinite sum of squares gives what the formula gives: NaN, or zeros beside NaN for infinite
inputs. Zero rows return at once. Offsets are 64-bit.

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.

Errors: ValueError naming the argument, the expected and the actual property; nothing is launched.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from kernels import contract, target
from kernels.cuda import available as cuda_available
from kernels.launch import BuildCase, meta
from kernels.quantize import (
    QUANTIZED_DTYPES,
    SCALE_LAYOUTS,
    UE8M0_GROUP_SIZE,
    allocate_scales,
    quantize_reference,
    require_eps,
    require_scales,
)
from kernels.rms_norm_launch import CUDA_GROUP_SIZE, VECTOR, Problem, run_cuda, run_triton
from kernels.rounding import FLOAT32_ERROR, share_outside

DTYPES = (torch.bfloat16, torch.float16)
MIN_WIDTH, MAX_WIDTH = 64, 16384
GROUP_SIZES = (32, 64, 128)
BACKENDS = ("cuda", "triton")


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    out: torch.Tensor | None = None,
    backend: str | None = None,
) -> torch.Tensor:
    """`weight * round(x / rms(x))`, of x's shape and type; `out` may be `x`."""
    problem, out, _ = _checked(x, None, weight, eps, out, None)
    _run(problem, backend)
    return out


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    out: torch.Tensor | None = None,
    residual_out: torch.Tensor | None = None,
    backend: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`(rms_norm(x + residual), x + residual)`; `out` may be `x`, `residual_out` may be `residual`."""
    problem, out, residual_out = _checked(x, residual, weight, eps, out, residual_out)
    _run(problem, backend)
    return out, residual_out


def rms_norm_quant(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group_size: int = 128,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_layout: str = "row_major",
    scale_eps: float = 1e-10,
    out: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    backend: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`rms_norm(x)` quantized: (q of x's shape and `dtype`, scales of `kernels.quantize` for all rows of x).

    Args:
        group_size: 32, 64 or 128; divides the width.
        dtype: float8_e4m3fn or int8.
        scale_layout: one of `SCALE_LAYOUTS`; ue8m0 asks for groups of 128.
        scale_eps: the least group maximum.
    """
    _require_quantization(group_size, dtype, scale_layout, scale_eps)
    problem, out, _ = _checked(x, None, weight, eps, out, None, dtype)
    problem, scales = _with_scales(problem, group_size, scale_layout, scale_eps, scales)
    _run(problem, backend)
    return out, scales


def add_rms_norm_quant(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group_size: int = 128,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_layout: str = "row_major",
    scale_eps: float = 1e-10,
    out: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    residual_out: torch.Tensor | None = None,
    backend: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`add_rms_norm` quantized as `rms_norm_quant` does: (q, scales, x + residual)."""
    _require_quantization(group_size, dtype, scale_layout, scale_eps)
    problem, out, residual_out = _checked(x, residual, weight, eps, out, residual_out, dtype)
    problem, scales = _with_scales(problem, group_size, scale_layout, scale_eps, scales)
    _run(problem, backend)
    return out, scales, residual_out


def _checked(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor | None,
    residual_out: torch.Tensor | None,
    dtype: torch.dtype | None = None,
) -> tuple[Problem, torch.Tensor, torch.Tensor]:
    """The call without scales, and its outputs in x's shape; the second is x where no residual is added."""
    rows = _require_rows("x", x, None)
    contract.require(
        "weight",
        weight,
        dtype=x.dtype,
        shape=[x.shape[-1]],
        device=x.device,
        contiguous=True,
        aligned=contract.VECTOR_BYTES,
    )
    if not 0 <= eps < float("inf"):
        raise ValueError(f"eps: expected a finite number of at least 0, got {eps}")
    out = torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device) if out is None else out
    out_rows = _require_rows("out", out, x, dtype)
    if residual is None:
        return Problem(rows, None, weight, eps, out_rows, None), out, x
    residual_rows = _require_rows("residual", residual, x)
    residual_out = (
        torch.empty(x.shape, dtype=x.dtype, device=x.device) if residual_out is None else residual_out
    )
    sum_rows = _require_rows("residual_out", residual_out, x)
    return Problem(rows, residual_rows, weight, eps, out_rows, sum_rows), out, residual_out


def _require_rows(
    name: str, tensor: torch.Tensor, like: torch.Tensor | None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """`tensor` as `[rows, width]` without a copy; `like` gives shape, device and, without `dtype`, the type."""
    contract.require(
        name,
        tensor,
        dtype=DTYPES if like is None else dtype or like.dtype,
        shape=None if like is None else like.shape,
        device=None if like is None else like.device,
        rows_contiguous=True,
        aligned=contract.VECTOR_BYTES,
    )
    width = tensor.shape[-1] if tensor.dim() else 0
    if not MIN_WIDTH <= width <= MAX_WIDTH or width % VECTOR:
        raise ValueError(
            f"{name}: expected a width from {MIN_WIDTH} to {MAX_WIDTH}, a multiple of {VECTOR}, got {width}"
        )
    try:
        rows = tensor.view(-1, width) if tensor.numel() else tensor.new_empty(0, width)
    except RuntimeError as error:
        raise ValueError(
            f"{name}: expected leading dimensions of one stride, got strides {list(tensor.stride())}"
            f" for shape {list(tensor.shape)}"
        ) from error
    if rows.shape[0] > 1 and rows.stride(0) * rows.element_size() % contract.VECTOR_BYTES:
        raise ValueError(
            f"{name}: expected rows that start on {contract.VECTOR_BYTES} bytes,"
            f" got a stride of {rows.stride(0)} elements"
        )
    return rows


def _require_quantization(group_size: int, dtype: torch.dtype, scale_layout: str, scale_eps: float) -> None:
    contract.require_value("group_size", group_size, GROUP_SIZES)
    contract.require_value("dtype", dtype, QUANTIZED_DTYPES)
    contract.require_value("scale_layout", scale_layout, SCALE_LAYOUTS)
    require_eps(scale_eps)
    if scale_layout == "ue8m0" and group_size != UE8M0_GROUP_SIZE:
        raise ValueError(f"group_size: expected {UE8M0_GROUP_SIZE} for ue8m0 scales, got {group_size}")
    if dtype is torch.float8_e4m3fn and "fp8" not in target.current().features:
        raise ValueError(f"dtype: expected int8 on {target.current().arch}, got {dtype}")


def _with_scales(
    problem: Problem, group_size: int, scale_layout: str, scale_eps: float, scales: torch.Tensor | None
) -> tuple[Problem, torch.Tensor]:
    rows, width = problem.x.shape
    if width % group_size:
        raise ValueError(f"x: expected a width that group_size {group_size} divides, got {width}")
    if scales is None:
        scales = allocate_scales(rows, width // group_size, scale_layout, problem.x.device)
    require_scales("scales", scales, rows, width // group_size, scale_layout, problem.x.device)
    ue8m0 = scale_layout == "ue8m0"
    return replace(problem, scales=scales, group_size=group_size, ue8m0=ue8m0, scale_eps=scale_eps), scales


def _run(problem: Problem, backend: str | None) -> None:
    suits_cuda = problem.group_size in (0, CUDA_GROUP_SIZE)
    if backend is None:
        backend = "cuda" if suits_cuda and cuda_available() and not contract.INTERPRETING else "triton"
    contract.require_value("backend", backend, BACKENDS)
    if backend == "cuda" and not suits_cuda:
        raise ValueError(f"group_size: expected {CUDA_GROUP_SIZE} for backend cuda, got {problem.group_size}")
    if problem.x.shape[0]:
        (run_cuda if backend == "cuda" else run_triton)(problem)


def rms_norm_reference(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, error: float = 0.0
) -> torch.Tensor:
    """The contract in float64, rounded where it says so; the first rounding is of values off by the relative `error`."""
    wide = x.double()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (weight.double() * (normed * (1 + error)).to(x.dtype).double()).to(x.dtype)


def add_rms_norm_reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, *, error: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The contract in float64, rounded where it says so: (normed, sum); `error` as in `rms_norm_reference`."""
    total = (x.double() + residual.double()).to(x.dtype)
    return rms_norm_reference(total, weight, eps, error=error), total


def check(device: torch.device) -> tuple[float, float]:
    """One small pass of every form; (share of wrong values, its bound: none).

    The norm is wrong where float32's rounding does not explain it (see `kernels.rounding`). The sum, and what is made
    of the norm, are exact: the second rounding is of a product of two 16-bit floats, which float32 holds.
    """
    generator = torch.Generator(device).manual_seed(1)
    random = partial(torch.randn, generator=generator, device=device)
    x, residual, weight = (random(*shape).bfloat16() for shape in ((8, 1024), (8, 1024), (1024,)))
    normed, total = add_rms_norm(x, residual, weight, 1e-6)
    low, expected_total = add_rms_norm_reference(x, residual, weight, 1e-6, error=-FLOAT32_ERROR)
    high, _ = add_rms_norm_reference(x, residual, weight, 1e-6, error=FLOAT32_ERROR)
    pairs = [(total, expected_total), (rms_norm(total, weight, 1e-6), normed)]
    if "fp8" in target.current().features:
        expected_q, expected_scales = quantize_reference(normed, 128, torch.float8_e4m3fn)
        q, scales, _ = add_rms_norm_quant(x, residual, weight, 1e-6)
        pairs += [(q.view(torch.uint8), expected_q.view(torch.uint8)), (scales, expected_scales)]
    unequal = [(actual != wanted).double().mean().item() for actual, wanted in pairs]
    return max(share_outside(normed, low, high), *unequal), 0.0


def build_cases() -> Iterator[BuildCase]:
    """The CUDA library, one for all; of the Triton fallback the widths of the Qwen3 and DeepSeek-V3 models."""
    bf16, fp16 = torch.bfloat16, torch.float16
    head = meta(16, 128, dtype=bf16), meta(128, dtype=bf16)
    yield BuildCase("rms_norm/cuda-all", partial(rms_norm, *head, 1e-6, backend="cuda"))
    yield BuildCase("rms_norm/triton-128-bfloat16", partial(rms_norm, *head, 1e-6, backend="triton"))
    for width, dtype in [(1024, bf16), (2048, bf16), (4096, bf16), (7168, bf16), (4096, fp16)]:
        x, weight = meta(16, width, dtype=dtype), meta(width, dtype=dtype)
        name = f"triton-{width}-{str(dtype).removeprefix('torch.')}"
        yield BuildCase(f"rms_norm/{name}", partial(rms_norm, x, weight, 1e-6, backend="triton"))
        if dtype is bf16:
            yield BuildCase(
                f"add_rms_norm/{name}", partial(add_rms_norm, x, x, weight, 1e-6, backend="triton")
            )
    for width, layout in [(2048, "row_major"), (4096, "row_major"), (7168, "row_major"), (7168, "ue8m0")]:
        x, weight = meta(16, width, dtype=bf16), meta(width, dtype=bf16)
        yield BuildCase(
            f"rms_norm_quant/triton-{width}-{layout}",
            partial(rms_norm_quant, x, weight, 1e-6, scale_layout=layout, backend="triton"),
            frozenset({"fp8"}),
        )
        yield BuildCase(
            f"add_rms_norm_quant/triton-{width}-{layout}",
            partial(add_rms_norm_quant, x, x, weight, 1e-6, scale_layout=layout, backend="triton"),
            frozenset({"fp8"}),
        )
