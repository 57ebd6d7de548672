"""Attention of one query token a sequence over a paged key/value cache, split over the sequence.

    out[b, h] = softmax(scale * k_scale * q[b, h] . K[b]) . V[b] * v_scale

Arguments: q `[batch, q_heads, head_dim]` bf16 or fp16, rows contiguous, lanes and heads at any stride that keeps 16-byte
alignment (a slice of a fused qkv row serves). kv_cache `[pages, 2, kv_heads, page_size, head_dim]`, contiguous, of q's
dtype or float8_e4m3fn. q_heads is a multiple of kv_heads; head_dim 64, 128 or 256; page_size a power of two.
kv_lengths `[batch]` int32: cached tokens of each lane, this step's included; 0 marks a padding lane, whose row of the
output is 0 (log-sum-exp -inf) and for which no page is touched. Pages come in one of two manners:

- tables: block_tables `[batch, max_pages]` int32, entries past a lane's length never read as pages;
- ragged: kv_indptr `[batch + 1]` and kv_indices, int32; lane b's pages are kv_indices[kv_indptr[b] : kv_indptr[b + 1]].

Result: out `[batch, q_heads, head_dim]` of q's dtype; logsumexp, where asked for, `[batch, q_heads]` float32, natural
logarithm. Scores and sums are float32; probabilities are rounded to q's dtype before they meet V (in the CUDA version
to fp16 where V is e4m3).

Split: a lane of n tokens is cut into chunks of max(min_chunk, ceil(n / splits) rounded up to 64) tokens. `splits` and
`min_chunk` come from the batch and the plan's longest sequence, never from the lengths, so that the launch is the same
whatever the lengths are and may be captured; a lane's bits depend on its own length, not on its neighbours'. A grid
of about as many blocks as fit on the GPU walks the (lane, chunk, head) items found from a prefix sum of the lengths;
the block that finishes a (lane, head) last merges its chunks in their order, so that the result is always the same.
CUDA C++ (`csrc/paged_decode_attention.cu`) takes groups of at most 16 (8 for heads of 256), pages of at least 16 tokens
and batches up to 1024 from sm90 on; Triton takes the rest.

Errors: ValueError for any wrong argument, before a launch; page numbers and lengths are checked in debug mode only.
Source: FlashAttention's online softmax (Dao et al. 2022) with the sequence split of Flash-Decoding (Dao et al. 2023).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from kernels import contract, cuda
from kernels.launch import BuildCase, meta
from kernels.paged_decode_kernels import Launch, cuda_takes, launch_cuda, launch_triton, schedule

LOG2E = math.log2(math.e)


@dataclass(frozen=True)
class DecodePlan:
    """Workspace of `paged_decode_attention`, allocated once and shared by all calls on one stream.

    Attributes:
        max_batch: most lanes of a call.
        max_length: longest sequence, in tokens.
        q_heads, kv_heads, head_dim: of the model.
        partial: float32 `[items, group, head_dim]`, unnormalised outputs of chunks.
        stats: float32 `[items, group, 2]`, each chunk's maximum (base 2) and sum.
        arrivals: int32 `[max_batch * kv_heads]`, chunks finished; 0 between launches.
    """

    max_batch: int
    max_length: int
    q_heads: int
    kv_heads: int
    head_dim: int
    partial: torch.Tensor
    stats: torch.Tensor
    arrivals: torch.Tensor

    @classmethod
    def create(
        cls,
        max_batch: int,
        max_length: int,
        q_heads: int,
        kv_heads: int,
        head_dim: int,
        device: torch.device | str,
    ) -> "DecodePlan":
        """Allocate for batches up to `max_batch` of sequences up to `max_length` tokens.

        Raises:
            ValueError: a size is not positive, or q_heads is no multiple of kv_heads.
        """
        sizes = {"max_batch": max_batch, "max_length": max_length, "kv_heads": kv_heads}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name}: expected at least 1, got {size}")
        if q_heads < 1 or q_heads % kv_heads:
            raise ValueError(f"q_heads: expected a multiple of kv_heads ({kv_heads}), got {q_heads}")
        contract.require_value("head_dim", head_dim, (64, 128, 256))
        group = q_heads // kv_heads
        items = max(
            batch * kv_heads * schedule(batch, kv_heads, max_length)[0] for batch in range(1, max_batch + 1)
        )
        return cls(
            max_batch,
            max_length,
            q_heads,
            kv_heads,
            head_dim,
            torch.empty(items, group, head_dim, dtype=torch.float32, device=device),
            torch.empty(items, group, 2, dtype=torch.float32, device=device),
            torch.zeros(max_batch * kv_heads, dtype=torch.int32, device=device),
        )


def paged_decode_attention(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_tables: torch.Tensor,
    kv_lengths: torch.Tensor,
    scale: float,
    *,
    plan: DecodePlan | None = None,
    out: torch.Tensor | None = None,
    logsumexp: torch.Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    backend: str | None = None,
) -> torch.Tensor:
    """Decode attention over padded block tables; see the module's contract.

    Args:
        plan: workspace; without one this call allocates it, for sequences as long as the tables are wide.
        out: where to write; allocated if absent.
        logsumexp: `[batch, q_heads]` float32 to fill, or None.
        backend: one of `backends(q, kv_cache)`; by default the fastest.

    Raises:
        ValueError: an argument breaks the contract.
    """
    _require_inputs(q, kv_cache, kv_lengths)
    batch, page_size = q.shape[0], kv_cache.shape[3]
    contract.require(
        "block_tables",
        block_tables,
        dtype=torch.int32,
        shape=[batch, None],
        device=q.device,
        rows_contiguous=True,
    )
    capacity = block_tables.shape[1] * page_size
    if contract.DEBUG:
        contract.require_range("kv_lengths", kv_lengths, 0, capacity + 1)
        first_tokens = torch.arange(block_tables.shape[1], device=q.device) * page_size
        live = torch.where(first_tokens < kv_lengths[:, None], block_tables, 0)
        contract.require_range("block_tables", live, 0, kv_cache.shape[0])
    plan = plan or _plan_for(q, kv_cache, capacity)
    return _run(
        q, kv_cache, block_tables, None, kv_lengths, scale, plan, out, logsumexp, k_scale, v_scale, backend
    )


def paged_decode_attention_ragged(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_lengths: torch.Tensor,
    scale: float,
    *,
    plan: DecodePlan | None = None,
    out: torch.Tensor | None = None,
    logsumexp: torch.Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    backend: str | None = None,
) -> torch.Tensor:
    """Decode attention over page lists one after another; see the module's contract.

    Bits equal those of `paged_decode_attention` over tables that hold the same pages, given the same plan.

    Args:
        plan: workspace; without one this call allocates it, for sequences as long as kv_indices has pages.
        out: where to write; allocated if absent.
        logsumexp: `[batch, q_heads]` float32 to fill, or None.
        backend: one of `backends(q, kv_cache)`; by default the fastest.

    Raises:
        ValueError: an argument breaks the contract.
    """
    _require_inputs(q, kv_cache, kv_lengths)
    batch, page_size = q.shape[0], kv_cache.shape[3]
    contract.require(
        "kv_indptr", kv_indptr, dtype=torch.int32, shape=[batch + 1], device=q.device, contiguous=True
    )
    contract.require(
        "kv_indices", kv_indices, dtype=torch.int32, shape=[None], device=q.device, contiguous=True
    )
    if contract.DEBUG and batch:
        contract.require_range("kv_indptr", kv_indptr, 0, kv_indices.shape[0] + 1)
        needed = (kv_lengths + page_size - 1) // page_size
        spare = (kv_indptr[1:] - kv_indptr[:-1]) - needed
        contract.require_range("kv_indptr, pages less those of kv_lengths", spare, 0, kv_indices.shape[0] + 1)
        contract.require_range("kv_lengths", kv_lengths, 0, kv_indices.shape[0] * page_size + 1)
        places = torch.arange(kv_indices.shape[0], device=q.device)
        starts = kv_indptr[:-1, None]
        live = ((places >= starts) & (places < starts + needed[:, None])).any(0)
        contract.require_range("kv_indices", torch.where(live, kv_indices, 0), 0, kv_cache.shape[0])
    plan = plan or _plan_for(q, kv_cache, kv_indices.shape[0] * page_size)
    return _run(
        q, kv_cache, kv_indices, kv_indptr, kv_lengths, scale, plan, out, logsumexp, k_scale, v_scale, backend
    )


def paged_decode_attention_reference(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_tables: torch.Tensor,
    kv_lengths: torch.Tensor,
    scale: float,
    *,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, logsumexp) in float64, lane by lane, on any device."""
    batch, q_heads, head_dim = q.shape
    _, _, kv_heads, page_size, _ = kv_cache.shape
    out = torch.zeros(batch, q_heads, head_dim, dtype=torch.float64, device=q.device)
    logsumexp = torch.full((batch, q_heads), -math.inf, dtype=torch.float64, device=q.device)
    for lane, length in enumerate(kv_lengths.tolist()):
        if not length:
            continue
        pages = block_tables[lane, : -(-length // page_size)].long()
        # [2, kv_heads, tokens, head_dim]
        held = kv_cache[pages].to(torch.float64).permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length]
        grouped = q[lane].to(torch.float64).view(kv_heads, q_heads // kv_heads, head_dim)
        scores = grouped @ held[0].mT * (scale * k_scale)
        logsumexp[lane] = scores.logsumexp(-1).flatten()
        out[lane] = (scores.softmax(-1) @ held[1]).view(q_heads, head_dim) * v_scale
    return out, logsumexp


def _require_inputs(q: torch.Tensor, kv_cache: torch.Tensor, kv_lengths: torch.Tensor) -> None:
    contract.require(
        "q",
        q,
        dtype=(torch.bfloat16, torch.float16),
        shape=[None, None, None],
        rows_contiguous=True,
        aligned=contract.VECTOR_BYTES,
    )
    batch, q_heads, head_dim = q.shape
    contract.require_value("head_dim of q", head_dim, (64, 128, 256))
    _require_strides("q", q)
    contract.require_cache("kv_cache", kv_cache, dtype=q.dtype, head_dim=head_dim, device=q.device)
    kv_heads = kv_cache.shape[2]
    if kv_heads < 1 or q_heads % kv_heads:
        raise ValueError(f"q_heads: expected a multiple of kv_heads ({kv_heads}), got {q_heads}")
    contract.require(
        "kv_lengths", kv_lengths, dtype=torch.int32, shape=[batch], device=q.device, contiguous=True
    )


def _require_strides(name: str, tensor: torch.Tensor) -> None:
    elements = contract.VECTOR_BYTES // tensor.element_size()
    for dimension in (0, 1):
        if tensor.shape[dimension] > 1 and tensor.stride(dimension) % elements:
            raise ValueError(
                f"{name}: expected strides that are multiples of {elements} elements, got {list(tensor.stride())}"
            )


def _plan_for(q: torch.Tensor, kv_cache: torch.Tensor, max_length: int) -> DecodePlan:
    return DecodePlan.create(
        max(1, q.shape[0]), max(1, max_length), q.shape[1], kv_cache.shape[2], q.shape[2], q.device
    )


def _run(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    pages: torch.Tensor,
    indptr: torch.Tensor | None,
    kv_lengths: torch.Tensor,
    scale: float,
    plan: DecodePlan,
    out: torch.Tensor | None,
    logsumexp: torch.Tensor | None,
    k_scale: float,
    v_scale: float,
    backend: str | None,
) -> torch.Tensor:
    batch, q_heads, head_dim = q.shape
    kv_heads = kv_cache.shape[2]
    planned = (plan.q_heads, plan.kv_heads, plan.head_dim)
    if planned != (q_heads, kv_heads, head_dim) or batch > plan.max_batch:
        raise ValueError(
            f"plan: expected one for q_heads, kv_heads, head_dim {(q_heads, kv_heads, head_dim)} and at least "
            f"{batch} lanes, got one for {planned} and {plan.max_batch} lanes"
        )
    contract.require("plan.arrivals", plan.arrivals, device=q.device)
    if out is None:
        out = torch.empty(batch, q_heads, head_dim, dtype=q.dtype, device=q.device)
    contract.require(
        "out",
        out,
        dtype=q.dtype,
        shape=[batch, q_heads, head_dim],
        device=q.device,
        rows_contiguous=True,
        aligned=contract.VECTOR_BYTES,
    )
    _require_strides("out", out)
    if logsumexp is not None:
        contract.require(
            "logsumexp",
            logsumexp,
            dtype=torch.float32,
            shape=[batch, q_heads],
            device=q.device,
            contiguous=True,
        )
    if backend is not None:
        contract.require_value("backend", backend, backends(q, kv_cache))
    if not batch:
        return out
    splits, min_chunk = schedule(batch, kv_heads, plan.max_length)
    call = Launch(
        *(q, kv_cache, pages, indptr, kv_lengths, out, logsumexp),
        *(plan.partial, plan.stats, plan.arrivals),
        *(scale * k_scale * LOG2E, v_scale, splits, min_chunk),
    )
    _LAUNCHES[backend or _fastest(q, kv_cache)](call)
    return out


def backends(q: torch.Tensor, kv_cache: torch.Tensor) -> list[str]:
    """The versions that take these shapes on the current target, fastest first."""
    return ["cuda", "triton"] if cuda_takes(q, kv_cache) else ["triton"]


def _fastest(q: torch.Tensor, kv_cache: torch.Tensor) -> str:
    return next(name for name in backends(q, kv_cache) if name != "cuda" or cuda.available())


_LAUNCHES = {"cuda": launch_cuda, "triton": launch_triton}


def build_cases() -> Iterator[BuildCase]:
    """What models reach: heads of 128 in both manners, cache types and group sizes; the other heads over tables."""
    bf16, e4m3 = torch.bfloat16, torch.float8_e4m3fn
    for backend, head_dim, dtype, q_heads, indexed in (
        *(("triton", 128, dtype, 32, indexed) for dtype in (bf16, e4m3) for indexed in (False, True)),
        *(("cuda", 128, dtype, q_heads, False) for dtype in (bf16, e4m3) for q_heads in (32, 128)),
        *((backend, head_dim, bf16, 32, False) for backend in ("triton", "cuda") for head_dim in (64, 256)),
    ):
        fp8 = {"fp8"} if dtype == e4m3 else set[str]()
        yield BuildCase(
            f"paged_decode_attention/{backend}-{head_dim}-group{q_heads // 8}{'-e4m3' * len(fp8)}{'-ragged' * indexed}",
            partial(_build, backend, head_dim, dtype, q_heads, indexed),
            frozenset(fp8 | ({"pdl"} if backend == "cuda" else set[str]())),
        )


def _build(backend: str, head_dim: int, dtype: torch.dtype, q_heads: int, indexed: bool) -> None:
    q = meta(64, q_heads, head_dim, dtype=torch.bfloat16)
    cache = meta(1024, 2, 8, 16, head_dim, dtype=dtype)
    lengths = meta(64, dtype=torch.int32)
    if indexed:
        indptr, indices = meta(65, dtype=torch.int32), meta(1024, dtype=torch.int32)
        paged_decode_attention_ragged(q, cache, indptr, indices, lengths, 0.1, backend=backend)
    else:
        tables = meta(64, 256, dtype=torch.int32)
        paged_decode_attention(q, cache, tables, lengths, 0.1, backend=backend)


def check(device: torch.device) -> tuple[float, float]:
    """(largest error over the largest value, its bound) of one small call; see `registry`."""
    generator = torch.Generator(device).manual_seed(1)
    lengths = torch.tensor([0, 33, 200], dtype=torch.int32, device=device)
    q = torch.randn(3, 8, 64, generator=generator, device=device).to(torch.bfloat16)
    cache = torch.randn(40, 2, 2, 16, 64, generator=generator, device=device).to(torch.bfloat16)
    tables = (torch.randperm(39, generator=generator, device=device) + 1).view(3, 13).to(torch.int32)
    out = paged_decode_attention(q, cache, tables, lengths, 0.125)
    wanted, _ = paged_decode_attention_reference(q, cache, tables, lengths, 0.125)
    error = (out.double() - wanted).abs().max() / wanted.abs().max()
    # bf16's unit, once for the probabilities against the largest value and once for the output.
    return float(error), 2.0**-6
