"""Benchmark of SiLU-and-multiply: a prefill's size, where bytes count, and decode sizes, where launches do."""

from collections.abc import Callable, Iterator
from functools import lru_cache, partial

import torch

from kernels.bench.harness import Figures, Inputs, Row
from kernels.silu_mul import silu_mul, silu_mul_quant

GROUP_SIZE = 128
SHAPES = ((16384, 7168), (64, 7168), (1, 4096))
SHARE_OF_COPY = {"silu_mul": 0.98, "silu_mul_quant": 0.95}


def rows() -> Iterator[Row]:
    """The rows of these operations."""
    for shape in SHAPES:
        for operation in _RUNS:
            yield _row(operation, *shape)


def _row(operation: str, count: int, width: int) -> Row:
    least = SHARE_OF_COPY[operation] if count > 1000 else 0.0
    quantizes = operation.endswith("quant")
    return Row(
        operation=operation,
        shape=f"[{count}, {2 * width}] bf16"
        + (f" -> float8_e4m3fn, group {GROUP_SIZE}" if quantizes else ""),
        make_inputs=partial(_inputs, count, width, quantizes),
        run=_RUNS[operation],
        bytes_moved=int(count * width * (4 + (1 + 4 / GROUP_SIZE if quantizes else 2))),
        input_bytes=count * width * 4,
        peers=_peers(quantizes),
        hot=count <= 1000,
        target=(f"at least {least:.1%} of copy, " if least else "") + "not slower than torch.compile",
        met=partial(_is_met, least),
    )


def _is_met(least: float, figures: Figures) -> bool:
    return figures.of_copy >= least and figures.ratio("torch.compile") >= 1.0


def _inputs(count: int, width: int, quantizes: bool, seed: int) -> Inputs:
    generator = torch.Generator("cuda").manual_seed(seed)
    gate_up = torch.randn(count, 2 * width, device="cuda", dtype=torch.bfloat16, generator=generator)
    dtype = torch.float8_e4m3fn if quantizes else gate_up.dtype
    inputs = {"gate_up": gate_up, "out": torch.empty(count, width, dtype=dtype, device="cuda")}
    if quantizes:
        inputs["scales"] = torch.empty(count, width // GROUP_SIZE, device="cuda")
    return inputs


_RUNS: dict[str, Callable[[Inputs], object]] = {
    "silu_mul": lambda inputs: silu_mul(**inputs),
    "silu_mul_quant": lambda inputs: silu_mul_quant(**inputs),
}


def _peers(quantizes: bool) -> dict[str, Callable[[Inputs], object] | str]:
    peers: dict[str, Callable[[Inputs], object] | str] = {
        "torch eager": lambda inputs: _with_torch(inputs["gate_up"], quantizes),
        "torch.compile": lambda inputs: _compiled(quantizes, inputs["gate_up"].shape)(
            inputs["gate_up"], quantizes
        ),
    }
    if not quantizes:
        peers |= {"flashinfer": _flashinfer(), "flag_gems": _flag_gems()}
    return peers


def _with_torch(gate_up: torch.Tensor, quantizes: bool) -> tuple[torch.Tensor, ...]:
    """As its users write it."""
    gate, up = gate_up.chunk(2, dim=-1)
    product = torch.nn.functional.silu(gate) * up
    if not quantizes:
        return (product,)
    grouped = product.unflatten(-1, (-1, GROUP_SIZE)).float()
    scale = grouped.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448.0
    quantized = (grouped / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return quantized.flatten(-2), scale.squeeze(-1)


@lru_cache
def _compiled(_quantizes: bool, _shape: torch.Size) -> Callable[..., tuple[torch.Tensor, ...]]:
    # Each row anew: after eight variants of one function torch.compile would run the next ones eagerly, and not say so.
    torch.compiler.reset()
    return torch.compile(_with_torch, mode="default", dynamic=False)


def _flashinfer() -> Callable[[Inputs], object] | str:
    try:
        from flashinfer.activation import silu_and_mul
    except ImportError:
        return "not installed"
    return lambda inputs: silu_and_mul(inputs["gate_up"], out=inputs["out"])


def _flag_gems() -> Callable[[Inputs], object] | str:
    try:
        from flag_gems import silu_and_mul
    except ImportError:
        return "not installed"
    return lambda inputs: silu_and_mul(*inputs["gate_up"].chunk(2, dim=-1))
