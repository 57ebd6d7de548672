"""Benchmark of per_token_group_quant_8bit: sizes of prefill and decode, layouts, SiLU, masked rows, and the plain way."""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial

import torch

from kernels import cuda, quantize
from kernels.bench.harness import Figures, Inputs, Row
from kernels.per_token_group_quant import per_token_group_quant_8bit

COLUMNS = 7168
GROUP_SIZE = 128

_PLAIN = cuda.Library(
    "../bench/two_reads.cu",
    {"quantize_plainly": [*(ctypes.c_void_p,) * 3, ctypes.c_int64, ctypes.c_int, ctypes.c_int]},
)
_PLAIN_WAYS = {
    "two reads, byte stores": (False, False),
    "one read, byte stores": (True, False),
    "two reads, packed stores": (False, True),
    "one read, packed stores": (True, True),
}


def rows() -> Iterator[Row]:
    """The rows of this operation."""
    for count in (1, 64, 1024, 16384, 65536):
        yield _row(count, **_goal(count))
    for layout in ("column_major_aligned", "ue8m0"):
        yield _row(16384, layout=layout)
    yield _row(16384, dtype=torch.int8)
    yield _row(16384, silu=True, target="at least 95 % of copy", met=lambda figures: figures.of_copy >= 0.95)
    yield _masked_row()


def _goal(count: int) -> Mapping[str, object]:
    if count == 64:
        return {
            "target": "hot under 3 us, not slower than torch.compile",
            "met": lambda figures: (figures.hot_us or 0.0) < 3.0 and _not_slower(figures),
        }
    if count >= 16384:
        return {
            "target": "at least 95 % of copy, not slower than torch.compile",
            "met": lambda figures: figures.of_copy >= 0.95 and _not_slower(figures),
        }
    return {"target": "not slower than torch.compile", "met": _not_slower}


def _not_slower(figures: Figures) -> bool:
    return figures.ratio("torch.compile") >= 1.0


def _row(
    count: int,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    layout: str = "row_major",
    silu: bool = False,
    target: str = "",
    met: Callable[[Figures], bool] | None = None,
) -> Row:
    width = COLUMNS * (2 if silu else 1)
    plain = dtype is torch.float8_e4m3fn and layout == "row_major" and not silu
    return Row(
        operation="per_token_group_quant_8bit",
        shape=f"[{count}, {width}] bf16 -> {str(dtype).removeprefix('torch.')}, group {GROUP_SIZE}, {layout}"
        + (", SiLU and multiply" if silu else ""),
        make_inputs=partial(_inputs, count, width, dtype, layout, silu),
        run=partial(_run, layout=layout, silu=silu),
        bytes_moved=count * (2 * width + COLUMNS + _scale_bytes(layout)),
        input_bytes=count * 2 * width,
        peers=_peers(dtype, silu, plain and count >= 64) if layout == "row_major" else {},
        hot=count <= 1024,
        target=target,
        met=met,
    )


def _masked_row() -> Row:
    experts, capacity = 128, 256
    live = sum(_live_rows(experts, capacity))
    return Row(
        operation="per_token_group_quant_8bit",
        shape=f"[{experts}, {capacity}, {COLUMNS}] bf16 -> float8_e4m3fn, {live} live rows, ue8m0",
        make_inputs=partial(_masked_inputs, experts, capacity),
        run=lambda inputs: per_token_group_quant_8bit(
            inputs[0], scale_layout="ue8m0", masked_m=inputs[3], out_q=inputs[1], out_scales=inputs[2]
        ),
        bytes_moved=live * (3 * COLUMNS + _scale_bytes("ue8m0")),
        input_bytes=live * 2 * COLUMNS,
    )


def _live_rows(experts: int, capacity: int) -> list[int]:
    """Uneven counts, as a router gives: from none to all, an eighth on average."""
    return [capacity * (expert % 9 == 0) or (7 * expert) % 11 for expert in range(experts)]


def _scale_bytes(layout: str) -> int:
    """Of one row."""
    return COLUMNS // GROUP_SIZE * (1 if layout == "ue8m0" else 4)


def _inputs(count: int, width: int, dtype: torch.dtype, layout: str, silu: bool, seed: int) -> Inputs:
    x = _random(count, width, seed=seed)
    q = torch.empty(count, COLUMNS, dtype=dtype, device=x.device)
    return x, q, quantize.allocate_scales(count, COLUMNS // GROUP_SIZE, layout, x.device)


def _masked_inputs(experts: int, capacity: int, seed: int) -> Inputs:
    x = _random(experts, capacity, COLUMNS, seed=seed)
    q = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    scales = quantize.allocate_scales(capacity, COLUMNS // GROUP_SIZE, "ue8m0", x.device, experts)
    counts = torch.tensor(_live_rows(experts, capacity), dtype=torch.int32, device=x.device)
    return x, q, scales, counts


def _random(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=generator)


def _run(inputs: Inputs, layout: str, silu: bool) -> None:
    x, q, scales = inputs
    per_token_group_quant_8bit(
        x,
        GROUP_SIZE,
        dtype=q.dtype,
        scale_layout=layout,
        fuse_silu_and_mul=silu,
        out_q=q,
        out_scales=scales,
    )


def _peers(
    dtype: torch.dtype, silu: bool, with_plain_ways: bool
) -> dict[str, Callable[[Inputs], object] | str]:
    peers: dict[str, Callable[[Inputs], object] | str] = {
        "torch eager": lambda inputs: _quantize_with_torch(inputs[0], dtype, silu),
        "torch.compile": lambda inputs: _compiled()(inputs[0], dtype, silu),
        "triton": lambda inputs: per_token_group_quant_8bit(
            inputs[0],
            dtype=dtype,
            fuse_silu_and_mul=silu,
            out_q=inputs[1],
            out_scales=inputs[2],
            backend="triton",
        ),
    }
    if dtype is torch.float8_e4m3fn and not silu:
        peers["flag_gems"] = _flag_gems()
    if with_plain_ways:
        for name, (read_once, packed) in _PLAIN_WAYS.items():
            peers[name] = partial(_run_plainly, read_once=read_once, packed=packed)
    return peers


def _quantize_with_torch(
    x: torch.Tensor, dtype: torch.dtype, silu: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """As its users write it."""
    if silu:
        gate, up = x.chunk(2, dim=-1)
        x = torch.nn.functional.silu(gate) * up
    grouped = x.unflatten(-1, (-1, GROUP_SIZE)).float()
    qmax = quantize.quantized_maximum(dtype)
    scale = grouped.abs().amax(-1, keepdim=True).clamp(min=1e-10) / qmax
    quotient = grouped / scale
    if dtype is torch.int8:
        quotient = quotient.round()
    return quotient.clamp(-qmax, qmax).to(dtype).flatten(-2), scale.squeeze(-1)


@lru_cache
def _compiled() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    return torch.compile(_quantize_with_torch, mode="default", dynamic=False)


def _flag_gems() -> Callable[[Inputs], object] | str:
    try:
        from flag_gems import per_token_group_quant_fp8
    except ImportError:
        return "not installed"
    return lambda inputs: per_token_group_quant_fp8(inputs[0], GROUP_SIZE)


def _run_plainly(inputs: Inputs, read_once: bool, packed: bool) -> None:
    x, q, scales = inputs
    _PLAIN("quantize_plainly", x.data_ptr(), q.data_ptr(), scales.data_ptr(), x.numel(), read_once, packed)
