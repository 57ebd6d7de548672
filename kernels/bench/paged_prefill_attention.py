"""Benchmark of paged_prefill_attention: whole prompts, a chunk after a long prefix, and an e4m3 cache."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from kernels.bench.harness import Figures, Row
from kernels.paged_prefill_attention import paged_prefill_attention

QUERY_HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 32, 8, 128, 16
TARGET_TFLOPS = 350


@dataclass(frozen=True)
class Inputs:
    """One call's tensors; all sequences are equally long."""

    query: torch.Tensor
    kv_cache: torch.Tensor
    block_tables: torch.Tensor
    query_indptr: torch.Tensor
    kv_lengths: torch.Tensor
    new: int
    out: torch.Tensor


def rows() -> Iterator[Row]:
    """The rows of this operation."""
    yield _row(1, 8192, 0, met=_fast_enough)
    yield _row(4, 2048, 0, met=_fast_enough)
    yield _row(1, 512, 16384)
    yield _row(1, 8192, 0, cache=torch.float8_e4m3fn)


def _fast_enough(figures: Figures) -> bool:
    return figures.tflops >= TARGET_TFLOPS


def _row(
    batch: int,
    new: int,
    prefix: int,
    *,
    cache: torch.dtype = torch.bfloat16,
    met: Callable[[Figures], bool] | None = None,
) -> Row:
    length = prefix + new
    pairs = batch * new * (2 * prefix + new + 1) // 2
    queries = batch * new * QUERY_HEADS * HEAD_DIM * 2
    cached = batch * length * 2 * KV_HEADS * HEAD_DIM * cache.itemsize
    return Row(
        operation="paged_prefill_attention",
        shape=f"{batch} x {new} new tokens after {prefix}, {QUERY_HEADS}/{KV_HEADS} heads of {HEAD_DIM}, page {PAGE_SIZE}, "
        f"{str(cache).removeprefix('torch.')} cache",
        make_inputs=partial(_inputs, batch, new, prefix, cache),
        run=_run,
        bytes_moved=2 * queries + cached,
        input_bytes=queries + cached,
        flops=4 * QUERY_HEADS * HEAD_DIM * pairs,
        peers=_peers(prefix, cache),
        target=f"at least {TARGET_TFLOPS} TFLOP/s" if met else "",
        met=met,
    )


def _inputs(batch: int, new: int, prefix: int, cache: torch.dtype, seed: int) -> Inputs:
    generator = torch.Generator("cuda").manual_seed(seed)
    options = {"device": "cuda", "generator": generator}
    pages = batch * (prefix + new) // PAGE_SIZE
    kv_cache = torch.randn(pages + 1, 2, KV_HEADS, PAGE_SIZE, HEAD_DIM, dtype=torch.bfloat16, **options)
    query = torch.randn(batch * new, QUERY_HEADS, HEAD_DIM, dtype=torch.bfloat16, **options)
    return Inputs(
        query,
        kv_cache.to(cache),
        (torch.randperm(pages, **options) + 1).int().view(batch, -1),
        torch.arange(0, batch * new + 1, new, dtype=torch.int32, device="cuda"),
        torch.full((batch,), prefix + new, dtype=torch.int32, device="cuda"),
        new,
        torch.empty_like(query),
    )


def _run(inputs: Inputs) -> torch.Tensor:
    return paged_prefill_attention(
        inputs.query,
        inputs.kv_cache,
        inputs.block_tables,
        inputs.query_indptr,
        inputs.kv_lengths,
        inputs.new,
        out=inputs.out,
    )


def _peers(prefix: int, cache: torch.dtype) -> Mapping[str, Callable[[Inputs], object] | str]:
    if cache != torch.bfloat16:
        return {}
    compiled: list[Callable[..., torch.Tensor]] = []

    def compile_first(inputs: Inputs) -> torch.Tensor:
        if not compiled:
            compiled.append(torch.compile(_gather_and_attend, mode="default", dynamic=False))
        return compiled[0](inputs.query, inputs.kv_cache, inputs.block_tables)

    whole = prefix == 0
    reason = "its causal mask has no prefix"
    return {
        "torch eager": (lambda i: _gather_and_attend(i.query, i.kv_cache, i.block_tables))
        if whole
        else reason,
        "torch.compile": compile_first if whole else reason,
        "flashinfer": _flashinfer(),
    }


def _gather_and_attend(query: torch.Tensor, cache: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    batch = tables.shape[0]
    # [batch, pages, 2, heads, page_size, head_dim] -> 2 of [batch, heads, length, head_dim]
    keys, values = cache[tables].permute(2, 0, 3, 1, 4, 5).flatten(3, 4)
    queries = query.view(batch, -1, QUERY_HEADS, HEAD_DIM).transpose(1, 2)
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)


def _flashinfer() -> Callable[[Inputs], object] | str:
    try:
        import flashinfer
    except ImportError:
        return "not installed"
    planned: dict[int, object] = {}

    def run(inputs: Inputs) -> object:
        key = inputs.query.data_ptr()
        if key not in planned:
            pages = inputs.block_tables.shape[1]
            wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
                torch.empty(256 << 20, dtype=torch.uint8, device="cuda"), "HND"
            )
            wrapper.plan(
                inputs.query_indptr,
                torch.arange(0, inputs.block_tables.numel() + 1, pages, dtype=torch.int32, device="cuda"),
                inputs.block_tables.flatten(),
                torch.full_like(inputs.kv_lengths, PAGE_SIZE),
                QUERY_HEADS,
                KV_HEADS,
                HEAD_DIM,
                PAGE_SIZE,
                causal=True,
                q_data_type=torch.bfloat16,
            )
            planned[key] = wrapper
        return planned[key].run(inputs.query, inputs.kv_cache)

    return run
