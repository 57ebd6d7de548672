"""The Triton kernel of paged_prefill_attention, which has the contract: blocks of queries against blocks of keys."""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels import contract, launch, target

_INTERPRETING = tl.constexpr(contract.INTERPRETING)


class Tiles(NamedTuple):
    """How a launch is cut: (token, head of a group) rows and keys of a block, warps, and key blocks in flight."""

    rows: int
    keys: int
    warps: int
    stages: int


def attend(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_indptr: torch.Tensor,
    kv_lengths: torch.Tensor,
    max_query_length: int,
    scale: float,
    v_scale: float,
    out: torch.Tensor,
    logsumexp: torch.Tensor | None,
    tiles: Tiles | None = None,
) -> None:
    """Launch the kernel on checked arguments; `scale` is of scores of stored keys."""
    _, query_heads, head_dim = query.shape
    batch = kv_lengths.shape[0]
    kv_heads, page_size = kv_cache.shape[2:4]
    group = query_heads // kv_heads
    tiles = tiles or _tiles(head_dim)
    launch.launch(
        _paged_prefill_kernel,
        (triton.cdiv(max_query_length * group, tiles.rows) * kv_heads * batch,),
        *(query, kv_cache, block_tables, query_indptr, kv_lengths, out, logsumexp),
        *(scale * math.log2(math.e), v_scale),
        *(query.stride(0), query.stride(1), out.stride(0), out.stride(1), block_tables.stride(0)),
        *(batch, kv_heads, group, page_size.bit_length() - 1),
        HEAD_DIM=head_dim,
        ROWS=tiles.rows,
        KEYS=tiles.keys,
        STAGES=tiles.stages,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )


def _tiles(head_dim: int) -> Tiles:
    # Large blocks that neither spill registers nor pass the shared memory, of which small parts have 99 KiB.
    if target.current().shared_memory >= 200 * target.KIB:
        return {64: Tiles(128, 128, 8, 2), 128: Tiles(128, 128, 8, 2), 256: Tiles(64, 64, 8, 2)}[head_dim]
    return {64: Tiles(128, 64, 8, 2), 128: Tiles(128, 32, 8, 2), 256: Tiles(64, 32, 8, 2)}[head_dim]


@triton.jit
def _dot(a, b, accumulator):
    if _INTERPRETING:  # which multiplies the bit patterns of bf16
        return tl.dot(a.to(tl.float32), b.to(tl.float32), accumulator)
    return tl.dot(a, b, accumulator)


@triton.jit
def _widen(stored, dtype: tl.constexpr):
    # Through float32, since sm89 has no instruction from e4m3 or fp16 to bf16.
    return stored if stored.dtype == dtype else stored.to(tl.float32).to(dtype)


@triton.jit
def _attend(
    weighted,
    total,
    highest,
    query,
    keys,
    table,
    position,
    begin,
    end,
    scale,
    page_stride,
    kv_stride,
    page_shift,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Go on over the positions from `begin` to `end`, in blocks of KEYS; MASKED where a query may not see them all."""
    element = tl.arange(0, HEAD_DIM)
    for start in tl.range(begin, end, KEYS, num_stages=STAGES):
        at = start + tl.arange(0, KEYS)
        in_page = (at & ((1 << page_shift) - 1)) * HEAD_DIM
        if MASKED:
            page = tl.load(table + (at >> page_shift), mask=at < end, other=0)
        else:
            page = tl.load(table + (at >> page_shift))
        where = keys + (page.to(tl.int64) * page_stride + in_page)[:, None] + element[None, :]
        key = tl.load(where, mask=at[:, None] < end, other=0.0) if MASKED else tl.load(where)
        score = _dot(query, tl.trans(_widen(key, query.dtype)), tl.zeros([ROWS, KEYS], tl.float32))
        if MASKED:
            score = tl.where(at[None, :] <= position[:, None], score, float("-inf"))
        peak = tl.maximum(highest, tl.max(score, 1) * scale)
        share = tl.exp2(score * scale - peak[:, None])
        fade = tl.exp2(highest - peak)
        total = total * fade + tl.sum(share, 1)
        weighted = weighted * fade[:, None]
        highest = peak
        if MASKED:
            value = tl.load(where + kv_stride, mask=at[:, None] < end, other=0.0)
        else:
            value = tl.load(where + kv_stride)
        weighted = _dot(share.to(query.dtype), _widen(value, query.dtype), weighted)
    return weighted, total, highest


@triton.jit(do_not_specialize=["table_stride", "batch", "kv_heads", "group", "page_shift"])
def _paged_prefill_kernel(
    query,
    kv_cache,
    block_tables,
    query_indptr,
    kv_lengths,
    out,
    logsumexp,
    scale,
    v_scale,
    query_token_stride,
    query_head_stride,
    out_token_stride,
    out_head_stride,
    table_stride,
    batch,
    kv_heads,
    group,
    page_shift,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
):
    # Blocks of a sequence differ in work: the last sees the most keys. They start first, so that short ones fill the end.
    program = tl.program_id(0)
    lanes = batch * kv_heads
    block = tl.num_programs(0) // lanes - 1 - program // lanes
    sequence = (program % lanes) // kv_heads
    kv_head = (program % lanes) % kv_heads
    first_token = tl.load(query_indptr + sequence)
    queries = tl.load(query_indptr + sequence + 1) - first_token
    first_row = block * ROWS
    if first_row >= queries * group:
        return
    prefix = tl.load(kv_lengths + sequence) - queries
    # A block's rows are (token, head of the group) pairs: the group shares each key that is loaded.
    row = first_row + tl.arange(0, ROWS)
    token = row // group
    head = (kv_head * group + row % group).to(tl.int64)
    live = (token < queries)[:, None]
    position = prefix + token
    element = tl.arange(0, HEAD_DIM)
    from_token = (first_token + token).to(tl.int64)
    rows = tl.load(
        query + (from_token * query_token_stride + head * query_head_stride)[:, None] + element[None, :],
        mask=live,
        other=0.0,
    )
    seen_by_all = tl.maximum(prefix + first_row // group + 1, 0) // KEYS * KEYS
    seen_by_any = prefix + tl.minimum((first_row + ROWS - 1) // group, queries - 1) + 1
    kv_stride = kv_heads.to(tl.int64) * HEAD_DIM << page_shift
    keys = kv_cache + (kv_head.to(tl.int64) * HEAD_DIM << page_shift)
    table = block_tables + sequence.to(tl.int64) * table_stride
    # A finite start keeps the differences of maxima finite where a query has seen nothing yet.
    highest = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    weighted, total, highest = _attend(
        weighted, total, highest, rows, keys, table, position, 0, seen_by_all, scale,
        2 * kv_stride, kv_stride, page_shift, HEAD_DIM, ROWS, KEYS, STAGES, False,
    )  # fmt: skip
    weighted, total, highest = _attend(
        weighted, total, highest, rows, keys, table, position, seen_by_all, seen_by_any, scale,
        2 * kv_stride, kv_stride, page_shift, HEAD_DIM, ROWS, KEYS, STAGES, True,
    )  # fmt: skip
    weighted = weighted * (v_scale / tl.where(total > 0, total, 1.0))[:, None]
    tl.store(
        out + (from_token * out_token_stride + head * out_head_stride)[:, None] + element[None, :],
        weighted.to(out.dtype.element_ty),
        mask=live,
    )
    if logsumexp is not None:
        tl.store(
            logsumexp + from_token * (kv_heads * group) + head,
            tl.where(total > 0, (highest + tl.log2(total)) / 1.4426950408889634, float("-inf")),
            mask=token < queries,
        )
