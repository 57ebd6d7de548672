"""Benchmark of fp8_block_gemm at N = K = 7168, from one token to a prefill."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch

from kernels.bench.harness import Figures, Inputs, Row
from kernels.fp8_block_gemm import BACKENDS, fp8_block_gemm

SIZE = 7168
GOALS: dict[int, tuple[str, Callable[[Figures], bool]]] = {
    64: ("at most 18 us", lambda figures: figures.us <= 18),
    4096: (
        "within 3 % of torch._scaled_mm, blockwise",
        lambda figures: figures.ratio("torch._scaled_mm") >= 1 / 1.03,
    ),
}


def rows() -> Iterator[Row]:
    """The rows of this operation."""
    for tokens in (1, 16, 64, 128, 256, 1024, 4096):
        yield _row(tokens, "column_major")
    yield _row(64, "row_major")
    yield _row(4096, "row_major")


def _row(tokens: int, layout: str) -> Row:
    target, met = GOALS.get(tokens, ("", None)) if layout == "column_major" else ("", None)
    scales = 4 * (tokens + SIZE // 128) * SIZE // 128
    return Row(
        operation="fp8_block_gemm",
        shape=f"M {tokens}, N = K = {SIZE}, {layout} scales",
        make_inputs=partial(_inputs, tokens, layout),
        run=partial(_run, None),
        bytes_moved=(tokens + SIZE) * SIZE + scales + 2 * tokens * SIZE,
        input_bytes=(tokens + SIZE) * SIZE + scales,
        flops=2 * tokens * SIZE * SIZE,
        peers=_peers(tokens) if layout == "column_major" else {},
        target=target,
        met=met,
    )


def _inputs(tokens: int, layout: str, seed: int) -> Inputs:
    generator = torch.Generator("cuda").manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=generator)

    a, b = ((random(rows, SIZE) * 100).clamp(-448, 448).to(torch.float8_e4m3fn) for rows in (tokens, SIZE))
    a_scale, b_scale = (random(rows, SIZE // 128).abs() * 1e-3 for rows in (tokens, SIZE // 128))
    if layout == "column_major":
        a_scale = a_scale.mT.contiguous().mT
    out = torch.empty(tokens, SIZE, dtype=torch.bfloat16, device="cuda")
    # For the bf16 peer: the same product as a user without fp8 would compute it.
    return a, a_scale, b, b_scale, out, a.bfloat16(), b.bfloat16()


def _peers(tokens: int) -> Mapping[str, Callable[[Inputs], object] | str]:
    compiled: list[Callable[..., torch.Tensor]] = []

    def compile_first(inputs: Inputs) -> torch.Tensor:
        if not compiled:
            compiled.append(torch.compile(_scaled_mm, mode="default", dynamic=False))
        return compiled[0](*inputs[:4])

    return {
        "torch._scaled_mm": lambda inputs: _scaled_mm(*inputs[:4]),
        "torch.compile": compile_first,
        "torch eager, bf16": lambda inputs: inputs[5] @ inputs[6].mT,
        **{f"ours, {backend}": partial(_run, backend) for backend in BACKENDS if tokens <= 128},
    }


def _run(backend: str | None, inputs: Inputs) -> torch.Tensor:
    return fp8_block_gemm(*inputs[:4], out=inputs[4], backend=backend)


def _scaled_mm(
    a: torch.Tensor, a_scale: torch.Tensor, b: torch.Tensor, b_scale: torch.Tensor
) -> torch.Tensor:
    return torch._scaled_mm(a, b.mT, a_scale, b_scale.mT, out_dtype=torch.bfloat16)
