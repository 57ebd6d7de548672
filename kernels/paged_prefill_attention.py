"""Causal attention of new tokens over a paged cache that already holds them and, before them, a cached prefix.

Contract
    query         [tokens, query_heads, head_dim], bf16 or fp16; the sequences' new tokens, one after another
    kv_cache      [pages, 2, kv_heads, page_size, head_dim], query's dtype or e4m3; keys at index 0, values at 1
    block_tables  [batch, max_pages] int32; entry p of a sequence is the page of its positions p * page_size onwards
    query_indptr  [batch + 1] int32; sequence b's queries are rows query_indptr[b] to query_indptr[b + 1]
    kv_lengths    [batch] int32; cached positions of a sequence, its new tokens included
    out           [tokens, query_heads, head_dim], query's dtype
    logsumexp     [tokens, query_heads] float32, natural logarithm of the sum of exp(score), optional

Query i of n new ones sees the positions up to kv_length - n + i. Each group of query_heads / kv_heads query heads
shares a KV head. Scores are scale * k_scale * (q . k); an e4m3 cache stands for its value times k_scale or v_scale.
A query that sees nothing gives a zero row (logsumexp -inf). Rows of `out` beyond query_indptr[batch] are left alone;
entries of `block_tables` beyond a sequence's length are never used. Nothing is read from the device by the host, so a
launch can be captured for a fixed batch and max_query_length.

Two kernels: `cuda` on Hopper, for bf16 in all tensors and pages of 8 positions or more; `triton` everywhere.

Scores and the running maximum, sum and output are float32; the probabilities are rounded to query's dtype before the
product with the values. Method: Dao, "FlashAttention-2" (arXiv 2307.08691), over pages as in Kwon et al., "Efficient
Memory Management for Large Language Model Serving with PagedAttention" (arXiv 2309.06180).

Errors: ValueError naming argument, expected and actual; in debug mode also for page numbers out of range.
"""

import ctypes
import math
from collections.abc import Iterator
from functools import partial

import torch

from kernels import contract, cuda, launch, paged_prefill_triton, target

HEAD_DIMS = (64, 128, 256)
BACKENDS = ("cuda", "triton")
_CUDA_ROWS = 128
"""(token, head of a group) rows of a block in csrc/paged_prefill_attention.cu."""

_LIBRARY = cuda.Library(
    "paged_prefill_attention.cu",
    {
        "paged_prefill_attention": [
            *(ctypes.c_void_p,)
            * 7,  # query, kv_cache, block_tables, query_indptr, kv_lengths, out, logsumexp
            *(ctypes.c_float,) * 2,  # scale of the exponents of 2, v_scale
            *(ctypes.c_int64,) * 6,  # strides of query's and out's tokens and heads, and of the tables; pages
            *(ctypes.c_int,)
            * 6,  # batch, kv_heads, group, page_size, head_dim, blocks of the longest sequence
        ]
    },
)


def paged_prefill_attention(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_indptr: torch.Tensor,
    kv_lengths: torch.Tensor,
    max_query_length: int,
    *,
    scale: float | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    out: torch.Tensor | None = None,
    logsumexp: torch.Tensor | None = None,
    backend: str | None = None,
) -> torch.Tensor:
    """Attention of every new token to its sequence's positions up to itself (see the module for shapes).

    Args:
        max_query_length: at least the longest sequence's number of new tokens; it sets the grid.
        scale: of the scores, by default 1 / sqrt(head_dim).
        k_scale: what a stored key is multiplied by.
        v_scale: what a stored value is multiplied by.
        out: where to write, by default a new tensor.
        logsumexp: where to write the scores' logarithmic sums, by default nowhere.
        backend: one of `BACKENDS`, by default the first that can take the arguments.

    Returns:
        `out`.

    Raises:
        ValueError: an argument breaks the contract, or `backend` cannot take the arguments.
    """
    _check(query, kv_cache, block_tables, query_indptr, kv_lengths, max_query_length, out, logsumexp)
    if scale is None:
        scale = query.shape[-1] ** -0.5
    for name, value in (("scale", scale), ("k_scale", k_scale)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name}: expected a positive number, got {value}")
    if out is None:
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
    able = _able(query, kv_cache, out)
    if backend is not None:
        contract.require_value("backend", backend, BACKENDS)
        if backend not in able:
            raise ValueError(f"backend: expected {able[0]} for these arguments, got {backend}")
    if query.shape[0] == 0 or kv_lengths.shape[0] == 0:
        return out
    run = _launch_cuda if (backend or able[0]) == "cuda" else paged_prefill_triton.attend
    run(
        query, kv_cache, block_tables, query_indptr, kv_lengths, max_query_length,
        scale * k_scale, v_scale, out, logsumexp,
    )  # fmt: skip
    return out


def paged_prefill_attention_reference(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_indptr: torch.Tensor,
    kv_lengths: torch.Tensor,
    *,
    scale: float | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in float64, sequence by sequence; any device and any floating dtype.

    Returns:
        `out` [tokens, query_heads, head_dim] and `logsumexp` [tokens, query_heads], float64; rows of no sequence are 0.
    """
    tokens, query_heads, head_dim = query.shape
    kv_heads, page_size = kv_cache.shape[2:4]
    scale = head_dim**-0.5 if scale is None else scale
    out = torch.zeros(tokens, query_heads, head_dim, dtype=torch.float64, device=query.device)
    logsumexp = torch.zeros(tokens, query_heads, dtype=torch.float64, device=query.device)
    bounds = query_indptr.tolist()
    for sequence, length in enumerate(kv_lengths.tolist()):
        first, last = bounds[sequence : sequence + 2]
        pages = block_tables[sequence, : -(-length // page_size)].long()
        cached = kv_cache[pages].to(torch.float64).permute(1, 2, 0, 3, 4)
        keys, values = cached.reshape(2, kv_heads, -1, head_dim)[:, :, :length]
        position = torch.arange(length - last + first, length, device=query.device)
        unseen = torch.arange(length, device=query.device) > position[:, None]
        for head in range(query_heads):
            kv_head = head // (query_heads // kv_heads)
            scores = query[first:last, head].to(torch.float64) @ keys[kv_head].T * (scale * k_scale)
            scores = scores.masked_fill(unseen, -math.inf)
            logsumexp[first:last, head] = scores.logsumexp(-1)
            # The softmax of a row that sees nothing is 0/0; its output is defined as 0.
            out[first:last, head] = scores.softmax(-1).nan_to_num() @ values[kv_head] * v_scale
    return out, logsumexp


def build_cases() -> Iterator[launch.BuildCase]:
    """Hopper's library; Triton's kernel for every head size, with the cache in the query's type and in e4m3."""
    yield launch.BuildCase(
        "paged_prefill_attention/cuda", partial(_build, 128, torch.bfloat16, "cuda"), frozenset({"wgmma"})
    )
    for head_dim in HEAD_DIMS:
        for cache in (torch.bfloat16, torch.float8_e4m3fn):
            needs = frozenset({"fp8"}) if cache == torch.float8_e4m3fn else frozenset[str]()
            yield launch.BuildCase(
                f"paged_prefill_attention/head_dim={head_dim},cache={str(cache).removeprefix('torch.')}",
                partial(_build, head_dim, cache, "triton"),
                needs,
            )


def _build(head_dim: int, cache: torch.dtype, backend: str) -> None:
    paged_prefill_attention(
        launch.meta(64, 32, head_dim, dtype=torch.bfloat16),
        launch.meta(8, 2, 8, 16, head_dim, dtype=cache),
        launch.meta(2, 4, dtype=torch.int32),
        launch.meta(3, dtype=torch.int32),
        launch.meta(2, dtype=torch.int32),
        64,
        backend=backend,
    )


def check(device: torch.device) -> tuple[float, float]:
    """One small pass against the reference: the largest error, and its bound for values of up to about 4."""
    generator = torch.Generator(device).manual_seed(1)
    lengths, new, page_size = [37, 20], [9, 20], 16
    cache = torch.randn(6, 2, 2, page_size, 64, generator=generator, device=device).to(torch.bfloat16)
    query = torch.randn(sum(new), 8, 64, generator=generator, device=device).to(torch.bfloat16)
    table = torch.tensor([[5, 2, 1], [4, 3, 0]], dtype=torch.int32, device=device)
    indptr = torch.tensor([0, new[0], sum(new)], dtype=torch.int32, device=device)
    kv_lengths = torch.tensor(lengths, dtype=torch.int32, device=device)
    out = paged_prefill_attention(query, cache, table, indptr, kv_lengths, max(new))
    expected, _ = paged_prefill_attention_reference(query, cache, table, indptr, kv_lengths)
    # The probabilities' and the output's rounding, each at most 2^-8 of the largest value.
    return (out - expected).abs().max().item(), 2 * 2.0**-8 * cache.abs().max().item()


def _check(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_indptr: torch.Tensor,
    kv_lengths: torch.Tensor,
    max_query_length: int,
    out: torch.Tensor | None,
    logsumexp: torch.Tensor | None,
) -> None:
    contract.require(
        "query", query, dtype=(torch.bfloat16, torch.float16), shape=(None, None, None), rows_contiguous=True
    )
    tokens, query_heads, head_dim = query.shape
    contract.require_value("query head_dim", head_dim, HEAD_DIMS)
    device = query.device
    contract.require_cache("kv_cache", kv_cache, dtype=query.dtype, head_dim=head_dim, device=device)
    pages, _, kv_heads, page_size, _ = kv_cache.shape
    if not kv_heads or query_heads % kv_heads:
        raise ValueError(
            f"query heads: expected a multiple of the cache's {kv_heads} KV heads, got {query_heads}"
        )
    contract.require(
        "kv_lengths", kv_lengths, dtype=torch.int32, shape=(None,), device=device, contiguous=True
    )
    batch = kv_lengths.shape[0]
    contract.require(
        "query_indptr", query_indptr, dtype=torch.int32, shape=(batch + 1,), device=device, contiguous=True
    )
    contract.require(
        "block_tables",
        block_tables,
        dtype=torch.int32,
        shape=(batch, None),
        device=device,
        rows_contiguous=True,
    )
    if tokens and max_query_length < 1:
        raise ValueError(f"max_query_length: expected at least 1 for {tokens} tokens, got {max_query_length}")
    if out is not None:
        contract.require(
            "out", out, dtype=query.dtype, shape=query.shape, device=device, rows_contiguous=True
        )
    if logsumexp is not None:
        contract.require(
            "logsumexp",
            logsumexp,
            dtype=torch.float32,
            shape=(tokens, query_heads),
            device=device,
            contiguous=True,
        )
    if contract.DEBUG and device.type != "meta":
        contract.require_range("kv_lengths", kv_lengths, 0, block_tables.shape[1] * page_size + 1)
        contract.require_range("query lengths", query_indptr.diff(), 0, max_query_length + 1)
        first = torch.arange(block_tables.shape[1], device=device) * page_size
        contract.require_range(
            "block_tables",
            block_tables.where(first < kv_lengths[:, None], block_tables.new_zeros(())),
            0,
            pages,
        )


def _able(query: torch.Tensor, kv_cache: torch.Tensor, out: torch.Tensor) -> list[str]:
    """The backends that can take these arguments, the faster first."""
    pages, _, kv_heads, page_size, _ = kv_cache.shape
    if (
        "wgmma" in target.current().features
        and (cuda.available() or launch.is_building())
        and query.dtype == kv_cache.dtype == torch.bfloat16
        and page_size >= 8  # rows that a copy swizzles together
        and pages * 2 * kv_heads * page_size < 2**31  # a copy's coordinates
        and all(_on_vectors(tensor) for tensor in (query, out))
    ):
        return ["cuda", "triton"]
    return ["triton"]


def _on_vectors(tensor: torch.Tensor) -> bool:
    """Whether every head starts on 16 bytes."""
    starts = (tensor.stride(0) * tensor.element_size(), tensor.stride(1) * tensor.element_size())
    at = 0 if tensor.device.type == "meta" else tensor.data_ptr()
    return all(start % contract.VECTOR_BYTES == 0 for start in (at, *starts))


def _launch_cuda(
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
) -> None:
    pages, _, kv_heads, page_size, head_dim = kv_cache.shape
    group = query.shape[1] // kv_heads
    tensors = (query, kv_cache, block_tables, query_indptr, kv_lengths, out)
    _LIBRARY(
        "paged_prefill_attention",
        *(tensor.data_ptr() for tensor in tensors),
        None if logsumexp is None else logsumexp.data_ptr(),
        *(scale * math.log2(math.e), v_scale),
        *(*query.stride()[:2], *out.stride()[:2], block_tables.stride(0), pages),
        *(kv_lengths.shape[0], kv_heads, group, page_size, head_dim),
        -(-max_query_length * group // _CUDA_ROWS),
    )
