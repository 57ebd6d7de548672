"""Quantization of groups of elements to 8 bits: what every kernel that quantizes shares, so that all agree to the bit.

A group is `group_size` neighbours of a row. With absmax its largest magnitude, in float32:

    s = max(absmax, eps) / qmax          qmax is 448 for e4m3 (finite, `float8_e4m3fn`), 127 for int8
    q = round(x / s)                     IEEE quotient, nearest even, saturating at +-qmax

The quotient divides; multiplying by the rounded 1 / s would differ in the last bit. int8 never holds -128. With layout
`ue8m0` s is first rounded up to a power of two, and the quotient divides by that one. A zero group has q = 0 and
s = eps / qmax. A group that holds a NaN or an infinity is wholly NaN, so that it cannot pass unnoticed: s is NaN
(UE8M0 byte 255), its e4m3 elements are NaN (0x7f), its int8 elements 0.

Scales of `rows` rows (per expert, where there are experts) and `groups` groups are float32 `[..., rows, groups]`, or
for `ue8m0` int32 `[..., rows, ceil(groups / 4)]`, with these strides of the last two dimensions:

    row_major             (groups, 1)
    column_major          (1, rows)
    column_major_aligned  (1, rows rounded up to 4): columns start on 16 bytes, as TMA asks
    ue8m0                 (1, rows rounded up to 4): byte g % 4 of word g // 4, little end first, is ceil(log2 s) + 127;
                          the bytes past the last group are 0

Sources: the group scaling of DeepSeek-V3 (arXiv 2412.19437, 3.3), the OCP Microscaling formats 1.0 (E8M0, E4M3).
"""

import math

import torch
import triton
import triton.language as tl

from kernels import contract

SCALE_LAYOUTS = ("row_major", "column_major", "column_major_aligned", "ue8m0")
QUANTIZED_DTYPES = (torch.float8_e4m3fn, torch.int8)
UE8M0_GROUP_SIZE = 128
ROW_ALIGNMENT = 4
MINIMUM_EPS = 1e-18
"""Below it the residual of the quotient (see `quotient`) could underflow."""

_INTERPRETING = tl.constexpr(contract.INTERPRETING)
_EXPONENT = tl.constexpr(0x7F800000)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)


def quantized_maximum(dtype: torch.dtype) -> float:
    """The largest magnitude that is used of `dtype`, qmax above."""
    contract.require_value("dtype", dtype, QUANTIZED_DTYPES)
    return 127.0 if dtype is torch.int8 else 448.0


def scale_shape(rows: int, groups: int, layout: str) -> tuple[tuple[int, int], tuple[int, int], torch.dtype]:
    """Shape, strides and dtype of the scales of one matrix."""
    contract.require_value("scale_layout", layout, SCALE_LAYOUTS)
    if layout == "row_major":
        return (rows, groups), (groups, 1), torch.float32
    if layout == "column_major":
        return (rows, groups), (1, rows), torch.float32
    padded_rows = -(-rows // ROW_ALIGNMENT) * ROW_ALIGNMENT
    if layout == "column_major_aligned":
        return (rows, groups), (1, padded_rows), torch.float32
    return (rows, -(-groups // 4)), (1, padded_rows), torch.int32


def allocate_scales(
    rows: int, groups: int, layout: str, device: torch.device, experts: int | None = None
) -> torch.Tensor:
    """Uninitialised scales of `rows` rows (of each of `experts` matrices) in `layout`."""
    (rows, columns), (row_stride, column_stride), dtype = scale_shape(rows, groups, layout)
    matrix = row_stride * rows if layout == "row_major" else column_stride * columns
    storage = torch.empty((experts or 1) * matrix, dtype=dtype, device=device)
    if experts is None:
        return storage.as_strided((rows, columns), (row_stride, column_stride))
    return storage.as_strided((experts, rows, columns), (matrix, row_stride, column_stride))


def require_scales(
    name: str, scales: torch.Tensor, rows: int, groups: int, layout: str, device: torch.device
) -> None:
    """Check scales that a caller gives: `[rows, groups]` of `layout`, or `[experts, rows, groups]`.

    Raises:
        ValueError: naming the expected and the actual dtype, shape or strides.
    """
    (_, columns), strides, dtype = scale_shape(rows, groups, layout)
    lead = [None] * (scales.dim() - 2) if isinstance(scales, torch.Tensor) else []
    contract.require(name, scales, dtype=dtype, shape=[*lead, rows, columns], device=device)
    for size, stride, expected in zip(scales.shape[-2:], scales.stride()[-2:], strides, strict=True):
        if size > 1 and stride != expected:
            raise ValueError(
                f"{name}: expected strides {list(strides)} for {layout} scales, got {list(scales.stride()[-2:])}"
            )


def require_eps(eps: float) -> None:
    """Check the floor of the group maximum.

    Raises:
        ValueError: it is too small for the arithmetic, or not finite.
    """
    if not MINIMUM_EPS <= eps < math.inf:
        raise ValueError(f"eps: expected a finite number of at least {MINIMUM_EPS}, got {eps}")


def quantize_reference(
    x: torch.Tensor, group_size: int, dtype: torch.dtype, layout: str = "row_major", eps: float = 1e-10
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize `x` `[..., rows, columns]` with torch; returns q of x's shape and the scales in `layout`.

    Each step is computed in float64 and rounded once to float32, which is the IEEE float32 result: a quotient of
    float32 numbers survives rounding twice (53 bits are at least 2 * 24 + 2).
    """
    qmax = quantized_maximum(dtype)
    groups = x.shape[-1] // group_size
    grouped = x.double().unflatten(-1, (groups, group_size))
    absmax = grouped.abs().amax(-1)
    floor = torch.tensor(eps, dtype=torch.float32).item()  # as the kernels are given it
    scale = (absmax.clamp_min(floor) / qmax).float()
    if layout == "ue8m0":
        mantissa, exponent = torch.frexp(scale)  # mantissa in [0.5, 1): a power of two has 0.5
        scale = torch.ldexp(torch.ones_like(scale), exponent - (mantissa == 0.5).int())
    scale = torch.where(absmax.isfinite(), scale, torch.nan)
    quotient = (grouped / scale.double().unsqueeze(-1)).float().clamp(-qmax, qmax)
    if dtype is torch.int8:
        quantized = quotient.round().nan_to_num(0.0).to(dtype)
    else:
        quantized = quotient.to(dtype)
        quantized.view(torch.uint8).masked_fill_(quotient.isnan(), 0x7F)
    experts = x.shape[0] if x.dim() == 3 else None
    scales = allocate_scales(x.shape[-2], groups, layout, x.device, experts)
    scales.copy_(_pack_exponents(scale) if layout == "ue8m0" else scale)
    return quantized.flatten(-2), scales


def _pack_exponents(scale: torch.Tensor) -> torch.Tensor:
    """Powers of two (or NaN) `[..., groups]` -> UE8M0 words `[..., ceil(groups / 4)]`."""
    exponent = (scale.view(torch.int32) >> 23) & 0xFF
    padded = torch.nn.functional.pad(exponent, (0, -exponent.shape[-1] % 4)).to(torch.uint8)
    return padded.contiguous().view(torch.int32)


def unpack_scales(scales: torch.Tensor, groups: int) -> torch.Tensor:
    """Scales of any layout -> contiguous float32 `[..., rows, groups]`."""
    if scales.dtype is not torch.int32:
        return scales.contiguous()
    words = scales.clone(memory_format=torch.contiguous_format)
    exponent = words.view(torch.uint8)[..., :groups].int()
    scale = (exponent << 23).view(torch.float32)
    return torch.where(exponent == 0xFF, torch.nan, scale)


def dequantize_reference(q: torch.Tensor, scales: torch.Tensor, group_size: int) -> torch.Tensor:
    """q times its group's scale, in float32."""
    groups = q.shape[-1] // group_size
    scale = unpack_scales(scales, groups).unsqueeze(-1)
    return (q.float().unflatten(-1, (groups, group_size)) * scale).flatten(-2)


@triton.jit
def group_scale(x, eps, QMAX: tl.constexpr, POWER_OF_TWO: tl.constexpr):
    """Scales of groups that are `x`'s last axis: float32 `[..., group]` -> float32 `[...]`, NaN where not finite."""
    # Magnitudes order as their bit patterns do, and NaN is above infinity: an integer maximum loses no NaN.
    magnitude = tl.max(x.to(tl.int32, bitcast=True) & _MAGNITUDE, axis=-1)
    scale = tl.div_rn(tl.maximum(magnitude.to(tl.float32, bitcast=True), eps), QMAX)
    if POWER_OF_TWO:
        scale = ((scale.to(tl.int32, bitcast=True) + 0x7FFFFF) & _EXPONENT).to(tl.float32, bitcast=True)
    return tl.where(magnitude >= _EXPONENT, float("nan"), scale)


@triton.jit
def quotient(x, scale):
    """The IEEE float32 quotient x / scale, where it matters: of magnitudes from 2^-11 to 2^9.

    `scale` `[..., 1]` or of x's shape. One division a group: from r = 1 / scale correctly rounded and y = x * r, which
    is within an ulp, one step with the exact residual gives the correctly rounded quotient (Markstein 1990, theorem
    8.1; no step underflows while eps >= MINIMUM_EPS).
    """
    if _INTERPRETING:  # its fma rounds twice
        return x / scale
    reciprocal = tl.div_rn(1.0, scale)
    estimate = x * reciprocal
    # estimate * scale - x, in this order: it keeps the sign of a quotient that is -0. (-x would subtract from 0.)
    residual = tl.fma(estimate, scale + tl.zeros_like(x), x * -1.0)
    return tl.fma(residual, -reciprocal + tl.zeros_like(x), estimate)


@triton.jit
def round_to(y, DTYPE: tl.constexpr):
    """float32 -> `tl.float8e4nv` or `tl.int8`, to nearest even; |y| at most qmax and an ulp, or NaN."""
    if DTYPE.is_int8():
        # Adding 1.5 * 2^23 leaves no bit for fractions: the addition itself rounds to nearest even.
        rounded = (y + 12582912.0) - 12582912.0
        return tl.where(y == y, rounded, 0.0).to(tl.int8)
    if _INTERPRETING:  # it cuts off when it converts, and knows no NaN; so round to the e4m3 grid first
        sign = y.to(tl.int32, bitcast=True) & ~_MAGNITUDE
        size = tl.abs(y)
        bits = size.to(tl.int32, bitcast=True)
        normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
        subnormal = (size + 24576.0) - 24576.0  # 1.5 * 2^14 leaves multiples of 2^-9
        size = tl.where(size < 0.015625, subnormal, normal)
        signed = (size.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True).to(DTYPE)
        return tl.where(y == y, signed.to(tl.uint8, bitcast=True), 0x7F).to(tl.uint8).to(DTYPE, bitcast=True)
    return y.to(DTYPE)


@triton.jit
def quantize_groups(x, eps, DTYPE: tl.constexpr, POWER_OF_TWO: tl.constexpr):
    """Quantize groups that are `x`'s last axis: float32 `[..., group]` -> (q `[..., group]`, scales `[...]`).

    `DTYPE` is the output pointer's `dtype.element_ty`. Two dimensions at least.
    """
    QMAX: tl.constexpr = 127.0 if DTYPE.is_int8() else 448.0
    scale = group_scale(x, eps, QMAX, POWER_OF_TWO)
    return round_to(quotient(x, tl.expand_dims(scale, -1)), DTYPE), scale


@triton.jit
def store_scales(scales_ptr, scale, row, group, row_stride, column_stride, rows, groups, UE8M0: tl.constexpr):
    """Store scales of `row` (int64) and `group`, tensors that broadcast to `scale`'s shape, in any layout.

    Strides in elements of the scales tensor. Rows or groups past the end are not stored; with UE8M0 the groups that
    fill up the last word are, as 0, so a tile has to cover `groups` rounded up to 4.
    """
    if UE8M0:
        bytes_ptr = scales_ptr.to(tl.pointer_type(tl.uint8))
        offset = (row * row_stride + (group // 4).to(tl.int64) * column_stride) * 4 + group % 4
        exponent = (scale.to(tl.int32, bitcast=True) >> 23) & 0xFF
        padded_groups = (groups + 3) // 4 * 4
        value = tl.where(group < groups, exponent, 0).to(tl.uint8)
        tl.store(bytes_ptr + offset, value, mask=(row < rows) & (group < padded_groups))
    else:
        offset = row * row_stride + group.to(tl.int64) * column_stride
        tl.store(scales_ptr + offset, scale, mask=(row < rows) & (group < groups))


@triton.jit
def rounded(x, DTYPE: tl.constexpr):
    """float32 -> the nearest value of `DTYPE`, a floating-point type, as float32."""
    if _INTERPRETING and DTYPE.is_bf16():  # its conversion cuts off
        bits = x.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
        return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)
    return x.to(DTYPE).to(tl.float32)


@triton.jit
def silu_multiply(gate, up, DTYPE: tl.constexpr):
    """silu(gate) * up as torch computes it in `DTYPE`: float32 arithmetic, both the SiLU and the product rounded.

    Inputs float32, output float32 that holds values of `DTYPE`.
    """
    activated = rounded(gate / (1.0 + tl.exp(-gate)), DTYPE)
    return rounded(activated * up, DTYPE)
