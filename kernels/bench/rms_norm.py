"""Benchmark of the RMS norms: a prefill's size, where bytes count, and decode sizes, where launches do."""

from collections.abc import Callable, Iterator
from functools import lru_cache, partial

import torch

from kernels.bench.harness import Figures, Inputs, Row
from kernels.rms_norm import add_rms_norm, add_rms_norm_quant, rms_norm, rms_norm_quant

EPS = 1e-6
GROUP_SIZE = 128
SHAPES = ((16384, 7168), (64, 7168), (1, 4096))
SHARE_OF_COPY = {
    "rms_norm": 0.975,
    "add_rms_norm": 0.95,
    "rms_norm_quant": 0.95,
    "add_rms_norm_quant": 0.95,
}


def rows() -> Iterator[Row]:
    """The rows of these operations."""
    for shape in SHAPES:
        for operation in _RUNS:
            yield _row(operation, *shape)


def _row(operation: str, count: int, width: int) -> Row:
    least = SHARE_OF_COPY[operation] if count > 1000 else 0.0
    adds, quantizes = operation.startswith("add"), operation.endswith("quant")
    read, written = 2 + 2 * adds, 2 * adds + (1 + 4 / GROUP_SIZE if quantizes else 2)
    return Row(
        operation=operation,
        shape=f"[{count}, {width}] bf16" + (f" -> float8_e4m3fn, group {GROUP_SIZE}" if quantizes else ""),
        make_inputs=partial(_inputs, count, width, adds, quantizes),
        run=_RUNS[operation],
        bytes_moved=int(count * width * (read + written)) + 2 * width,
        input_bytes=count * width * (2 + 2 * adds),
        peers=_peers(operation),
        hot=count <= 1000,
        target=(f"at least {least:.1%} of copy, " if least else "") + "not slower than torch.compile",
        met=partial(_is_met, least),
    )


def _is_met(least: float, figures: Figures) -> bool:
    return figures.of_copy >= least and figures.ratio("torch.compile") >= 1.0


def _inputs(count: int, width: int, adds: bool, quantizes: bool, seed: int) -> Inputs:
    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=generator)

    x, weight = normal(count, width), normal(width)
    inputs = {"x": x, "weight": weight, "eps": EPS}
    if adds:
        inputs |= {"residual": normal(count, width), "residual_out": torch.empty_like(x)}
    if quantizes:
        inputs["scales"] = torch.empty(count, width // GROUP_SIZE, device="cuda")
    return inputs | {"out": torch.empty_like(x, dtype=torch.float8_e4m3fn if quantizes else x.dtype)}


_RUNS: dict[str, Callable[[Inputs], object]] = {
    "rms_norm": lambda inputs: rms_norm(**inputs),
    "add_rms_norm": lambda inputs: add_rms_norm(**inputs),
    "rms_norm_quant": lambda inputs: rms_norm_quant(**inputs),
    "add_rms_norm_quant": lambda inputs: add_rms_norm_quant(**inputs),
}


def _peers(operation: str) -> dict[str, Callable[[Inputs], object] | str]:
    """Peers that allocate their outputs, or work in place, as their users have them do."""
    adds, quantizes = operation.startswith("add"), operation.endswith("quant")
    peers: dict[str, Callable[[Inputs], object] | str] = {
        "torch eager": lambda inputs: _norm_with_torch(*_tensors(inputs), quantizes),
        "torch.compile": lambda inputs: _compiled(operation, inputs["x"].shape)(*_tensors(inputs), quantizes),
    }
    if not quantizes:
        peers |= {"flashinfer": _flashinfer(adds), "flag_gems": _flag_gems(adds)}
    return peers


def _tensors(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    return inputs["x"], inputs.get("residual"), inputs["weight"]


def _norm_with_torch(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, quantizes: bool
) -> tuple[torch.Tensor, ...]:
    """As its users write it."""
    total = x if residual is None else x + residual
    wide = total.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    normed = weight * wide.to(x.dtype)
    if not quantizes:
        return normed, total
    grouped = normed.unflatten(-1, (-1, GROUP_SIZE)).float()
    scale = grouped.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448.0
    quantized = (grouped / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return quantized.flatten(-2), scale.squeeze(-1), total


@lru_cache
def _compiled(_operation: str, _shape: torch.Size) -> Callable[..., tuple[torch.Tensor, ...]]:
    # Each row anew: after eight variants of one function torch.compile would run the next ones eagerly, and not say so.
    torch.compiler.reset()
    return torch.compile(_norm_with_torch, mode="default", dynamic=False)


def _flashinfer(adds: bool) -> Callable[[Inputs], object] | str:
    try:
        from flashinfer.norm import fused_add_rmsnorm, rmsnorm
    except ImportError:
        return "not installed"
    if adds:  # in place on both
        return lambda inputs: fused_add_rmsnorm(inputs["x"], inputs["residual"], inputs["weight"], EPS)
    return lambda inputs: rmsnorm(inputs["x"], inputs["weight"], EPS, out=inputs["out"])


def _flag_gems(adds: bool) -> Callable[[Inputs], object] | str:
    try:
        from flag_gems import fused_add_rms_norm
        from flag_gems import rms_norm as gems_rms_norm
    except ImportError:
        return "not installed"
    if adds:
        return lambda inputs: fused_add_rms_norm(
            inputs["x"], inputs["residual"], list(inputs["weight"].shape), inputs["weight"], EPS
        )
    return lambda inputs: gems_rms_norm(inputs["x"], list(inputs["weight"].shape), inputs["weight"], EPS)
