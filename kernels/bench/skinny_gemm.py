"""Benchmark rows of the products of few rows: the projections of a decode step, and larger ones."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.nn.functional import linear, silu

from kernels.bench.harness import Row
from kernels.skinny_gemm import skinny_gemm

ROWS = (1, 16, 64)
SHAPES = (
    (4096, 1024, False),
    (6144, 1024, True),
    (1024, 3072, False),
    (7168, 7168, False),
    (151936, 1024, False),
)


def _inputs(rows: int, features: int, width: int, fused: bool, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    weight = (
        torch.randn(features, width, generator=generator, device="cuda", dtype=torch.bfloat16) / width**0.5
    )
    x = torch.randn(rows, width, generator=generator, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(rows, features // 2 if fused else features, device="cuda", dtype=torch.bfloat16)
    return {"x": x, "weight": weight, "out": out}


def _ours(inputs: dict[str, torch.Tensor], fused: bool) -> torch.Tensor:
    return skinny_gemm(inputs["x"], inputs["weight"], silu_mul=fused, out=inputs["out"])


def _eager(inputs: dict[str, torch.Tensor], fused: bool) -> torch.Tensor:
    y = linear(inputs["x"], inputs["weight"])
    if not fused:
        return y
    gate, up = y.chunk(2, -1)
    return silu(gate) * up


def _compiled(fused: bool) -> Callable[[dict[str, torch.Tensor]], torch.Tensor]:
    """Compiled when first called, which is after the harness has cleared what earlier rows compiled."""
    return torch.compile(partial(_eager, fused=fused), mode="default", dynamic=False)


def rows() -> Iterator[Row]:
    for count in ROWS:
        for features, width, fused in SHAPES:
            moved = 2 * (features * width + count * width + count * features // (2 if fused else 1))
            yield Row(
                operation="skinny_gemm",
                shape=f"M={count} N={features} K={width} bf16" + (" +SiLU" if fused else ""),
                make_inputs=partial(_inputs, count, features, width, fused),
                run=partial(_ours, fused=fused),
                bytes_moved=moved,
                input_bytes=moved,
                flops=2 * count * features * width,
                peers={
                    "cuBLAS (F.linear)": partial(_eager, fused=fused),
                    "torch.compile": _compiled(fused),
                },
            )
