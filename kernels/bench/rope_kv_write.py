"""Rows of rope_kv_write: decode steps over bf16 and e4m3 caches, with and without the norms, and a prefill."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from kernels.bench.harness import Row
from kernels.rope_kv_write import rope_kv_write

QUERY_HEADS, KV_HEADS, HEAD_DIM, PAGE = 32, 8, 128, 16
LONGEST = 8192
TARGET_US = 3.2
E4M3 = torch.float8_e4m3fn

Inputs = dict[str, Any]


def rows() -> Iterator[Row]:
    """The issue's shape, and what a Qwen3 engine calls around it."""
    for tokens, cache_dtype, norm in (
        (128, torch.bfloat16, False),
        (128, E4M3, False),
        (128, torch.bfloat16, True),
        (128, E4M3, True),
        (8192, torch.bfloat16, True),
        (8192, E4M3, True),
    ):
        decode = tokens == 128
        written = cache_dtype.itemsize
        heads = QUERY_HEADS + 2 * KV_HEADS
        qkv_bytes = tokens * heads * HEAD_DIM * 2
        moved = qkv_bytes + tokens * HEAD_DIM * (2 * QUERY_HEADS + 2 * KV_HEADS * written + 4) + 12 * tokens
        yield Row(
            "rope_kv_write",
            f"{tokens} tokens, {'e4m3' if cache_dtype == E4M3 else 'bf16'} cache{', q/k norm' if norm else ''}",
            lambda seed, t=tokens, c=cache_dtype, n=norm: _inputs(seed, t, c, n),
            _run,
            bytes_moved=moved,
            input_bytes=moved,
            peers=_peers(cache_dtype, norm),
            hot=decode,
            target=f"at most {TARGET_US} us" if decode else "",
            met=(lambda figures: figures.us <= TARGET_US) if decode else None,
        )


def _inputs(seed: int, tokens: int, cache_dtype: torch.dtype, norm: bool) -> Inputs:
    generator = torch.Generator("cuda").manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", generator=generator).bfloat16()

    pages = 2 * tokens // PAGE + 1
    slots = torch.randperm((pages - 1) * PAGE, device="cuda", generator=generator)[:tokens] + PAGE
    angles = torch.rand(LONGEST, HEAD_DIM // 2, device="cuda", generator=generator) * 6.3
    return {
        "qkv": random(tokens, (QUERY_HEADS + 2 * KV_HEADS) * HEAD_DIM),
        "positions": torch.randint(0, LONGEST, (tokens,), device="cuda", generator=generator).int(),
        "slots": slots,
        "cache": torch.empty(pages, 2, KV_HEADS, PAGE, HEAD_DIM, dtype=cache_dtype, device="cuda"),
        "cos_sin": torch.cat([angles.cos(), angles.sin()], 1),
        "out": torch.empty(tokens, QUERY_HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
        "norms": (random(HEAD_DIM), random(HEAD_DIM)) if norm else (None, None),
    }


def _run(inputs: Inputs) -> None:
    query_norm, key_norm = inputs["norms"]
    rope_kv_write(
        inputs["qkv"],
        inputs["positions"],
        inputs["slots"],
        inputs["cache"],
        inputs["cos_sin"],
        query_heads=QUERY_HEADS,
        query_norm=query_norm,
        key_norm=key_norm,
        out=inputs["out"],
    )


def _eager(inputs: Inputs) -> torch.Tensor:
    heads = inputs["qkv"].view(-1, QUERY_HEADS + 2 * KV_HEADS, HEAD_DIM)
    queries, keys, values = heads.split([QUERY_HEADS, KV_HEADS, KV_HEADS], dim=1)
    cosines, sines = inputs["cos_sin"][inputs["positions"].long()][:, None].bfloat16().chunk(2, dim=-1)

    def rotated(x: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        if norm is not None:
            x = torch.nn.functional.rms_norm(x, (HEAD_DIM,), norm, 1e-6)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cosines - b * sines, b * cosines + a * sines], -1)

    query_norm, key_norm = inputs["norms"]
    cache, page, offset = inputs["cache"], inputs["slots"] // PAGE, inputs["slots"] % PAGE
    cache[page, 0, :, offset] = rotated(keys, key_norm).to(cache.dtype)
    cache[page, 1, :, offset] = values.to(cache.dtype)
    return inputs["out"].copy_(rotated(queries, query_norm))


def _peers(cache_dtype: torch.dtype, norm: bool) -> dict[str, Callable[[Inputs], object] | str]:
    compiled: list[Callable[[Inputs], object]] = []

    def compile_once(inputs: Inputs) -> object:
        if not compiled:
            compiled.append(torch.compile(_eager, mode="default", dynamic=False))
        return compiled[0](inputs)

    peers: dict[str, Callable[[Inputs], object] | str] = {
        "torch eager": _eager,
        "torch.compile": compile_once,
    }
    if norm or cache_dtype == E4M3:
        return peers
    peers["flashinfer rope, append"] = _flashinfer()
    return peers


def _flashinfer() -> Callable[[Inputs], object] | str:
    """The rotation in place, then the append into a paged cache of the same layout; its plan is made beforehand."""
    try:
        import flashinfer
    except ImportError:
        return "not installed"

    def run(inputs: Inputs) -> None:
        tokens = inputs["qkv"].shape[0]
        if "append" not in inputs:
            lanes = torch.arange(tokens + 1, dtype=torch.int32, device="cuda")
            inputs["append"] = (
                lanes[:-1],
                inputs["slots"].int() % PAGE,
                (inputs["slots"] // PAGE).int(),
                lanes,
                (inputs["slots"].int() % PAGE) + 1,
            )
        lane, offset, pages, pointers, last = inputs["append"]
        q_width, k_width = QUERY_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        queries, keys, values = inputs["qkv"].split([q_width, k_width, k_width], dim=1)
        flashinfer.rope.apply_rope_with_cos_sin_cache_inplace(
            inputs["positions"], queries, keys, HEAD_DIM, inputs["cos_sin"], is_neox=True
        )
        # One page of table a lane: a position is its slot's offset there.
        flashinfer.page.append_paged_kv_cache(
            keys.view(tokens, KV_HEADS, HEAD_DIM),
            values.view(tokens, KV_HEADS, HEAD_DIM),
            lane,
            offset,
            inputs["cache"],
            pages,
            pointers,
            last,
            kv_layout="HND",
        )

    return run
