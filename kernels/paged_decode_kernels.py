"""The kernels behind `paged_decode_attention`: Triton for every shape, CUDA C++ (`csrc/`) for the usual ones.

Both take one `Launch`, split by the same rule, and use the same workspace; their bits differ.
"""

import ctypes
from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl

from kernels import contract, cuda, launch, target

GRANULE = tl.constexpr(64)
"""Chunks are multiples of this many tokens."""

LONGEST_CHUNK = 2048
"""Tokens of a chunk at the plan's longest sequence, short enough to balance 132 multiprocessors at the end. What cannot
be longer than two of them is not split for balance."""

_INTERPRETING = tl.constexpr(contract.INTERPRETING)


@dataclass(frozen=True)
class Launch:
    """Checked arguments of one launch, and the workspace of its plan.

    Attributes:
        pages: padded tables `[batch, max_pages]`, or all lanes' pages one after another if `indptr` is given.
        qk_scale: of scores, log2(e) included: weights are powers of two.
        splits, min_chunk: see the contract of the operation.
    """

    q: torch.Tensor
    kv_cache: torch.Tensor
    pages: torch.Tensor
    indptr: torch.Tensor | None
    kv_lengths: torch.Tensor
    out: torch.Tensor
    logsumexp: torch.Tensor | None
    partial: torch.Tensor
    stats: torch.Tensor
    arrivals: torch.Tensor
    qk_scale: float
    v_scale: float
    splits: int
    min_chunk: int

    @property
    def group(self) -> int:
        return self.q.shape[1] // self.kv_cache.shape[2]

    @property
    def integers(self) -> tuple[int, ...]:
        """Sizes and strides, in the order in which both kernels take them."""
        batch, _, kv_heads, page_size = self.q.shape[0], *self.kv_cache.shape[1:4]
        return (
            *(batch, kv_heads, self.group, page_size.bit_length() - 1, self.splits, self.min_chunk),
            *(self.q.stride(0), self.q.stride(1), self.out.stride(0), self.out.stride(1)),
            self.pages.stride(0) if self.indptr is None else 0,
        )

    def blocks(self, per_multiprocessor: int) -> int:
        """As many as run at once, or as there can be items."""
        items = self.q.shape[0] * self.kv_cache.shape[2] * self.splits
        return min(items, target.current().multiprocessors * per_multiprocessor)


def schedule(batch: int, kv_heads: int, max_length: int) -> tuple[int, int]:
    """(splits, min_chunk): the most chunks of a lane and the fewest tokens of one."""
    rows = batch * kv_heads
    by_length = -(-max_length // LONGEST_CHUNK) if max_length > 2 * LONGEST_CHUNK else 1
    splits = max(target.current().multiprocessors // rows, by_length)
    # Every chunk costs a merge: the more rows keep the GPU busy, the longer a chunk is worth while.
    min_chunk = min(max(rows // 16, 1), LONGEST_CHUNK // GRANULE.value) * GRANULE.value
    return splits, min_chunk


@triton.jit
def _dot(left, right, accumulator):
    # The interpreter multiplies the bit patterns of bf16; float32 holds the same values and products.
    if _INTERPRETING:
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, accumulator)


@triton.jit(
    do_not_specialize=[
        "batch",
        "kv_heads",
        "group",
        "page_shift",
        "splits",
        "min_chunk",
        "pages_stride",
    ]
)
def _decode_kernel(
    q,
    cache,
    pages,
    indptr,
    lengths,
    out,
    logsumexp,
    partial,
    stats,
    arrivals,
    qk_scale,
    v_scale,
    batch,
    kv_heads,
    group,
    page_shift,
    splits,
    min_chunk,
    q_lane_stride,
    q_head_stride,
    out_lane_stride,
    out_head_stride,
    pages_stride,
    RAGGED: tl.constexpr,
    LOGSUMEXP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
    BATCH_BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
):
    lanes = tl.arange(0, BATCH_BLOCK)
    all_lengths = tl.load(lengths + lanes, mask=lanes < batch, other=0)
    all_chunks = tl.maximum(min_chunk, tl.cdiv(tl.cdiv(all_lengths, splits), GRANULE) * GRANULE)
    # A lane of length 0 is one item without tokens: it writes its zeros.
    counts = tl.where(lanes < batch, tl.maximum(1, tl.cdiv(all_lengths, all_chunks)), 0)
    ends = tl.cumsum(counts, 0)
    total = tl.sum(counts, 0) * kv_heads

    heads = tl.arange(0, GROUP_BLOCK)
    dims = tl.arange(0, HEAD_DIM)
    head_mask = heads < group
    row_mask = head_mask[:, None]
    page_size = 1 << page_shift
    head_stride = page_size * HEAD_DIM
    value_offset = kv_heads.to(tl.int64) * head_stride
    page_stride = 2 * value_offset

    item = tl.program_id(0)
    while item < total:
        kv_head = item % kv_heads
        column = item // kv_heads
        lane = tl.sum((ends <= column).to(tl.int32), 0)
        chunks = tl.sum(tl.where(lanes == lane, counts, 0), 0)
        part = column - (tl.sum(tl.where(lanes == lane, ends, 0), 0) - chunks)
        length = tl.load(lengths + lane)
        chunk = tl.maximum(min_chunk, tl.cdiv(tl.cdiv(length, splits), GRANULE) * GRANULE)
        start = part * chunk
        stop = tl.minimum(length, start + chunk)
        lane_pages = pages + (tl.load(indptr + lane) if RAGGED else lane.to(tl.int64) * pages_stride)
        first_head = kv_head * group
        lane64 = lane.to(tl.int64)
        q_rows = q + lane64 * q_lane_stride + (first_head + heads[:, None]).to(tl.int64) * q_head_stride
        query = tl.load(q_rows + dims[None, :], mask=row_mask, other=0.0)
        head_base = cache + kv_head.to(tl.int64) * head_stride

        maximum = tl.full((GROUP_BLOCK,), float("-inf"), tl.float32)
        total_weight = tl.zeros((GROUP_BLOCK,), tl.float32)
        accumulator = tl.zeros((GROUP_BLOCK, HEAD_DIM), tl.float32)
        for tile in tl.range(start, stop, TILE, num_stages=STAGES):
            tokens = tile + tl.arange(0, TILE)
            live = tokens < stop
            page = tl.load(lane_pages + (tokens >> page_shift), mask=live, other=0)
            offsets = page.to(tl.int64) * page_stride + (tokens & (page_size - 1)) * HEAD_DIM
            rows = head_base + offsets[:, None] + dims[None, :]
            keys = tl.load(rows, mask=live[:, None], other=0.0)
            values = tl.load(rows + value_offset, mask=live[:, None], other=0.0)
            scores = (
                _dot(query, tl.trans(keys.to(query.dtype)), tl.zeros((GROUP_BLOCK, TILE), tl.float32))
                * qk_scale
            )
            scores = tl.where(live[None, :], scores, float("-inf"))
            new_maximum = tl.maximum(maximum, tl.max(scores, 1))
            decay = tl.exp2(maximum - new_maximum)
            weights = tl.exp2(scores - new_maximum[:, None])
            total_weight = total_weight * decay + tl.sum(weights, 1)
            accumulator = accumulator * decay[:, None]
            accumulator = _dot(weights.to(query.dtype), values.to(query.dtype), accumulator)
            maximum = new_maximum

        last = True
        if chunks > 1:
            slot = (lane64 * kv_heads + kv_head) * splits
            mine = (slot + part) * group + heads
            tl.store(partial + mine[:, None] * HEAD_DIM + dims[None, :], accumulator, mask=row_mask)
            tl.store(stats + mine * 2, maximum, mask=head_mask)
            tl.store(stats + mine * 2 + 1, total_weight, mask=head_mask)
            tl.debug_barrier()  # every thread's part is written before the arrival is counted
            arrival = arrivals + lane * kv_heads + kv_head
            last = tl.atomic_add(arrival, 1, sem="acq_rel") == chunks - 1
            if last:
                tl.store(arrival, 0)
                maximum = tl.full((GROUP_BLOCK,), float("-inf"), tl.float32)
                total_weight = tl.zeros((GROUP_BLOCK,), tl.float32)
                accumulator = tl.zeros((GROUP_BLOCK, HEAD_DIM), tl.float32)
                for other in range(chunks):
                    theirs = (slot + other) * group + heads
                    their_rows = partial + theirs[:, None] * HEAD_DIM + dims[None, :]
                    their_values = tl.load(their_rows, mask=row_mask, other=0.0, cache_modifier=".cg")
                    their_maximum = tl.load(
                        stats + theirs * 2, mask=head_mask, other=0.0, cache_modifier=".cg"
                    )
                    their_weight = tl.load(
                        stats + theirs * 2 + 1, mask=head_mask, other=0.0, cache_modifier=".cg"
                    )
                    new_maximum = tl.maximum(maximum, their_maximum)
                    decay = tl.exp2(maximum - new_maximum)
                    gain = tl.exp2(their_maximum - new_maximum)
                    total_weight = total_weight * decay + their_weight * gain
                    accumulator = accumulator * decay[:, None] + their_values * gain[:, None]
                    maximum = new_maximum
        if last:
            empty = total_weight == 0.0
            result = accumulator * (v_scale / tl.where(empty, 1.0, total_weight))[:, None]
            out_rows = (
                out + lane64 * out_lane_stride + (first_head + heads[:, None]).to(tl.int64) * out_head_stride
            )
            tl.store(out_rows + dims[None, :], result.to(out.dtype.element_ty), mask=row_mask)
            if LOGSUMEXP:
                natural = tl.where(
                    empty,
                    float("-inf"),
                    (maximum + tl.log2(tl.where(empty, 1.0, total_weight))) * 0.6931471805599453,
                )
                tl.store(logsumexp + lane64 * kv_heads * group + first_head + heads, natural, mask=head_mask)
        item += tl.num_programs(0)


def launch_triton(call: Launch) -> None:
    """Any group, any power-of-two page size."""
    tile, stages, warps, per_multiprocessor = _pipeline(call)
    launch.launch(
        _decode_kernel,
        (call.blocks(per_multiprocessor),),
        *(call.q, call.kv_cache, call.pages, call.pages if call.indptr is None else call.indptr),
        *(call.kv_lengths, call.out, call.stats if call.logsumexp is None else call.logsumexp),
        *(call.partial, call.stats, call.arrivals, call.qk_scale, call.v_scale),
        *call.integers,
        RAGGED=call.indptr is not None,
        LOGSUMEXP=call.logsumexp is not None,
        HEAD_DIM=call.q.shape[2],
        GROUP_BLOCK=max(16, triton.next_power_of_2(call.group)),
        BATCH_BLOCK=max(256, triton.next_power_of_2(call.q.shape[0])),
        TILE=tile,
        STAGES=stages,
        num_warps=warps,
    )


def _pipeline(call: Launch) -> tuple[int, int, int, int]:
    """Tokens of a tile, stages, warps, blocks a multiprocessor.

    Five stages leave two buffers of keys and values: the others hold page numbers, which are loaded further ahead.
    """
    row_bytes = call.q.shape[2] * call.kv_cache.element_size()
    buffers = 4 * 64 * row_bytes + 16 * target.KIB
    return (64 if buffers <= target.current().shared_memory else 32), 5, 4, 2


_POINTER, _INT, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
_SIGNATURE = (*[_POINTER] * 10, *[_FLOAT] * 2, *[_INT] * 6, *[_LONG] * 5, *[_INT] * 2)
_CUDA_TILE = 16
MAX_CUDA_GROUP = 16
MAX_CUDA_BATCH = 1024
"""Its prefix sum lies in shared memory, beside the ring."""


@dataclass(frozen=True)
class _Block:
    """Shape of a thread block: warps, stages of each one's ring, and how many blocks share a multiprocessor."""

    warps: int
    stages: int
    per_multiprocessor: int


def _block(head_dim: int, e4m3: bool, columns: int, shared_memory: int) -> _Block:
    """Rings of about 128 KiB a multiprocessor, 64 KiB where that is all there is, beside the warps' outputs."""
    if shared_memory < 200 * target.KIB:
        warps, room, per_multiprocessor = (4 if columns == 1 and head_dim < 256 else 2), 64, 1
    elif e4m3:
        # Widening takes so many instructions that it wants more warps than the bytes alone would.
        warps, room, per_multiprocessor = (12, 144, 1) if columns == 1 and head_dim < 256 else (8, 128, 1)
    else:
        warps, room, per_multiprocessor = (4, 96, 2) if head_dim < 256 else (4, 128, 1)
    stage = 2 * _CUDA_TILE * head_dim * (1 if e4m3 else 2)
    return _Block(warps, min(8, room * target.KIB // (stage * warps)), per_multiprocessor)


@lru_cache
def _library(head_dim: int, half: bool, e4m3: bool, columns: int, block: _Block) -> cuda.Library:
    defines = {"HEAD_DIM": head_dim, "HALF": int(half), "E4M3": int(e4m3), "COLUMNS": columns}
    defines |= {"WARPS": block.warps, "STAGES": block.stages, "BLOCKS": block.per_multiprocessor}
    return cuda.Library("paged_decode_attention.cu", {"paged_decode_attention": _SIGNATURE}, defines)


def cuda_takes(q: torch.Tensor, kv_cache: torch.Tensor) -> bool:
    """Whether the CUDA C++ version has these shapes on the current target."""
    group = q.shape[1] // kv_cache.shape[2]
    return (
        not contract.INTERPRETING
        and "pdl" in target.current().features
        and kv_cache.shape[3] >= 16
        and group <= (8 if q.shape[2] == 256 else MAX_CUDA_GROUP)
        and q.shape[0] <= MAX_CUDA_BATCH
    )


def launch_cuda(call: Launch) -> None:
    """Groups of at most 16 and pages of at least 16 tokens (see `cuda_takes`)."""
    head_dim, half, e4m3 = call.q.shape[2], call.q.dtype == torch.float16, call.kv_cache.element_size() == 1
    columns = 1 if call.group <= 8 else 2
    limits = target.current()
    block = _block(head_dim, e4m3, columns, limits.shared_memory)
    ring_bytes = block.warps * block.stages * 2 * _CUDA_TILE * head_dim * call.kv_cache.element_size()
    shared_bytes = ring_bytes + block.warps * call.group * (head_dim + 2) * 4 + (16 + call.q.shape[0]) * 4
    # The driver keeps one KiB of every block's shared memory for itself.
    fitting = (limits.shared_memory + target.KIB) // (shared_bytes + target.KIB)
    _library(head_dim, half, e4m3, columns, block)(
        "paged_decode_attention",
        *(call.q.data_ptr(), call.kv_cache.data_ptr(), call.pages.data_ptr()),
        *(None if call.indptr is None else call.indptr.data_ptr(), call.kv_lengths.data_ptr()),
        *(call.out.data_ptr(), None if call.logsumexp is None else call.logsumexp.data_ptr()),
        *(call.partial.data_ptr(), call.stats.data_ptr(), call.arrivals.data_ptr()),
        *(call.qk_scale, call.v_scale, *call.integers),
        *(shared_bytes, call.blocks(min(fitting, block.per_multiprocessor))),
    )
