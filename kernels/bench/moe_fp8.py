"""moe_fp8 at Qwen3-30B-A3B's shape, from router logits to output, beside torch.

Routing is random and differs between input sets. Weights are shared by the sets of one row, and are far beyond the
cache; one token's experts are not, which the sets' different experts make up for.

Peers get bf16 weights (`moe_bf16`'s) unless said otherwise:
- torch eager: every expert over all tokens, weighted by a dense matrix of routing weights; the usual loop over the
  experts that were hit reads their list on the host, so that no graph can hold it.
- torch grouped_mm: pairs sorted by expert, then `torch._grouped_mm`, twice.
- torch.compile: of the same (of the loop it would make the loop's 256 library calls again).
- torch scaled_grouped_mm: the same on e4m3 with one scale a row of either operand (it has no 128 x 128 blocks).
"""

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import torch

from kernels import moe_fp8
from kernels.bench.harness import Row

HIDDEN, INTER, EXPERTS, TOP_K = 2048, 768, 128, 8
TARGETS = {1: 20.0, 64: 215.0}
E4M3 = torch.float8_e4m3fn

Inputs = dict[str, Any]


def rows() -> Iterator[Row]:
    """One token and few, where weights bound the time; prefill, where arithmetic does."""
    for tokens in (1, 8, 64, 256, 4096):
        yield _row(tokens, moe_fp8.moe_fp8, 1)
    for tokens in (64, 4096):
        yield _row(tokens, moe_fp8.moe_bf16, 2)


def _row(tokens: int, function: Callable[..., torch.Tensor], weight_bytes: int) -> Row:
    hit = EXPERTS * (1 - (1 - TOP_K / EXPERTS) ** tokens)  # expected, of uniform routing
    read = hit * 3 * INTER * HIDDEN * weight_bytes
    bound = TARGETS.get(tokens) if weight_bytes == 1 else None
    fp8 = weight_bytes == 1
    peers: dict[str, Callable[[Inputs], object]] = {
        "torch eager": _dense,
        "torch.compile": _compiled,
        "torch grouped_mm": _grouped,
    }
    if fp8:
        peers["torch scaled_grouped_mm"] = _scaled_grouped
    return Row(
        operation=function.__name__,
        shape=f"{tokens} tokens, {HIDDEN} hidden, {INTER} inter, top {TOP_K} of {EXPERTS}",
        make_inputs=partial(_inputs, tokens),
        run=_run_fp8 if fp8 else _run_bf16,
        bytes_moved=round(read) + 2 * tokens * HIDDEN * 2 + tokens * EXPERTS * 2,
        input_bytes=round(read),
        flops=2 * 3 * tokens * TOP_K * HIDDEN * INTER,
        peers=peers,
        target=f"at most {bound:.0f} us" if bound else "",
        met=(lambda figures, bound=bound: figures.us <= bound) if bound else None,
    )


def _run_fp8(inputs: Inputs) -> torch.Tensor:
    w = _weights_fp8()
    return moe_fp8.moe_fp8(inputs["x"], inputs["logits"], *w, top_k=TOP_K, out=inputs["out"])


def _run_bf16(inputs: Inputs) -> torch.Tensor:
    return moe_fp8.moe_bf16(inputs["x"], inputs["logits"], *_weights_bf16(), top_k=TOP_K, out=inputs["out"])


def _inputs(tokens: int, seed: int) -> Inputs:
    generator = torch.Generator("cuda").manual_seed(seed)
    random = partial(torch.randn, generator=generator, device="cuda", dtype=torch.bfloat16)
    return {
        "x": random(tokens, HIDDEN),
        "logits": random(tokens, EXPERTS),
        "out": torch.empty(tokens, HIDDEN, dtype=torch.bfloat16, device="cuda"),
    }


@lru_cache(1)
def _weights_bf16() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    made = []
    for rows, columns in ((2 * INTER, HIDDEN), (HIDDEN, INTER)):
        weight = torch.empty(EXPERTS, rows, columns, dtype=torch.bfloat16, device="cuda")
        made.append(weight.normal_(0, columns**-0.5, generator=generator))
    return made[0], made[1]


@lru_cache(1)
def _weights_fp8() -> tuple[torch.Tensor, ...]:
    made: list[torch.Tensor] = []
    for weight in _weights_bf16():
        experts, rows, columns = weight.shape
        blocks = weight.view(experts, rows // 128, 128, columns // 128, 128)
        scale = blocks.abs().amax((2, 4)).float() / 448
        made.append((blocks / scale[:, :, None, :, None]).view_as(weight).to(E4M3))
        made.append(scale)
    return tuple(made)


@lru_cache(1)
def _weights_rowwise() -> tuple[torch.Tensor, ...]:
    made: list[torch.Tensor] = []
    for weight in _weights_bf16():
        made.extend(_by_row(weight))
    return tuple(made)


def _by_row(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float().clamp_min(1e-10) / 448
    return (x / scale).to(E4M3), scale.squeeze(-1)


def _routing(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weights, ids = logits.float().softmax(-1).topk(TOP_K, dim=-1)
    return weights / weights.sum(-1, keepdim=True), ids


def _dense(inputs: Inputs) -> torch.Tensor:
    return _dense_loop(inputs["x"], inputs["logits"], *_weights_bf16())


def _dense_loop(x: torch.Tensor, logits: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
    weights, ids = _routing(logits)
    share = torch.zeros_like(logits, dtype=torch.float32).scatter(1, ids, weights).to(x.dtype)
    out = torch.zeros_like(x)
    for expert in range(EXPERTS):
        gate, up = torch.nn.functional.linear(x, w13[expert]).chunk(2, -1)
        y = torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, w2[expert])
        out = out + y * share[:, expert, None]
    return out


def _sorted(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights, the order of pairs by expert, their tokens, and where each expert's end."""
    weights, ids = _routing(logits)
    flat, order = ids.flatten().sort(stable=True)
    ends = torch.searchsorted(flat, torch.arange(EXPERTS, device=flat.device), right=True, out_int32=True)
    return weights, order, order // TOP_K, ends


def _summed(y: torch.Tensor, order: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    by_pair = torch.empty_like(y).index_copy_(0, order, y)
    return (by_pair.view(-1, TOP_K, HIDDEN) * weights.to(y.dtype)[..., None]).sum(1)


def _grouped(inputs: Inputs) -> torch.Tensor:
    return _grouped_experts(inputs["x"], inputs["logits"], *_weights_bf16())


@lru_cache(1)
def _compiled_experts() -> Callable[..., torch.Tensor]:
    return torch.compile(_grouped_experts, mode="default", dynamic=False)


def _compiled(inputs: Inputs) -> torch.Tensor:
    return _compiled_experts()(inputs["x"], inputs["logits"], *_weights_bf16())


def _grouped_experts(
    x: torch.Tensor, logits: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor
) -> torch.Tensor:
    weights, order, tokens, ends = _sorted(logits)
    gate, up = torch._grouped_mm(x[tokens], w13.transpose(1, 2), offs=ends).chunk(2, -1)
    y = torch._grouped_mm(torch.nn.functional.silu(gate) * up, w2.transpose(1, 2), offs=ends)
    return _summed(y, order, weights)


def _scaled_grouped(inputs: Inputs) -> torch.Tensor:
    w13, s13, w2, s2 = _weights_rowwise()
    weights, order, tokens, ends = _sorted(inputs["logits"])

    def product(a: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        q, a_scale = _by_row(a)
        return torch._scaled_grouped_mm(
            q, w.transpose(1, 2), a_scale, scale, offs=ends, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    gate, up = product(inputs["x"][tokens], w13, s13).chunk(2, -1)
    return _summed(product(torch.nn.functional.silu(gate) * up, w2, s2), order, weights)
