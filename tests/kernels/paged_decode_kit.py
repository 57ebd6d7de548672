"""Calls of paged_decode_attention for its tests, and how close their results must be."""

from dataclasses import dataclass

import pytest
import torch

from kernels import contract
from kernels.paged_decode_attention import (
    DecodePlan,
    paged_decode_attention,
    paged_decode_attention_reference,
)

BF16, FP16, E4M3 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
# Round to nearest errs by half a unit in the last place; the interpreter cuts bf16 off, and errs by a whole one.
UNIT = {FP16: 2.0**-11, BF16: 2.0**-7 if contract.INTERPRETING else 2.0**-8}
NOT_A_PAGE = 2**31 - 1
ON_GPU = torch.cuda.is_available()
gpu_only = pytest.mark.skipif(not ON_GPU, reason="needs a GPU: real shapes or a graph")
BACKENDS = [
    pytest.param("triton"),
    pytest.param("cuda", marks=pytest.mark.skipif(not ON_GPU, reason="CUDA C++ needs a GPU")),
]


@dataclass(frozen=True)
class Call:
    """Arguments of a call; everything that must not be read is poisoned."""

    q: torch.Tensor
    kv_cache: torch.Tensor
    block_tables: torch.Tensor
    kv_lengths: torch.Tensor
    scale: float

    def run(self, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and logarithms of sums, both written over NaN."""
        out = torch.full_like(self.q, torch.nan)
        logsumexp = torch.full(self.q.shape[:2], torch.nan, dtype=torch.float32, device=self.q.device)
        given = (self.q, self.kv_cache, self.block_tables, self.kv_lengths, self.scale)
        paged_decode_attention(*given, out=out, logsumexp=logsumexp, **options)
        return out, logsumexp

    def plan(self) -> DecodePlan:
        heads, kv_heads = self.q.shape[1], self.kv_cache.shape[2]
        longest = self.block_tables.shape[1] * self.kv_cache.shape[3]
        return DecodePlan.create(
            self.q.shape[0], longest, heads, kv_heads, self.q.shape[2], device=self.q.device
        )

    def agrees(self, out: torch.Tensor, logsumexp: torch.Tensor, **scales: float) -> None:
        """Assert both within what rounding explains."""
        given = (self.q, self.kv_cache, self.block_tables, self.kv_lengths, self.scale)
        wanted, wanted_logsumexp = paged_decode_attention_reference(*given, **scales)
        # Rounding a probability moves the output by at most u p |v|, rounding the output by u |out|. The rest is
        # float32: scores, exp2 and sums of up to 2^15 terms in a tree, together below 2^-14 of the sum of p |v|.
        magnitudes = self.kv_cache.float().abs().to(self.kv_cache.dtype)
        absolute = torch.stack((self.kv_cache[:, 0], magnitudes[:, 1]), 1)
        weighted, _ = paged_decode_attention_reference(self.q, absolute, *given[2:], **scales)
        unit = UNIT[self.q.dtype]
        bound = unit * (weighted + wanted.abs()) * 1.02 + 2.0**-14 * weighted + 1e-7
        assert ((out.double() - wanted).abs() <= bound).all()
        live = self.kv_lengths > 0
        error = (logsumexp.double() - wanted_logsumexp)[live].abs()
        assert (error <= 2.0**-16 * (1 + wanted_logsumexp[live].abs())).all()
        assert (out[~live] == 0).all()
        assert (logsumexp[~live] == -torch.inf).all()


def make(
    generator: torch.Generator,
    lengths: list[int],
    *,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 64,
    page_size: int = 16,
    dtype: torch.dtype = BF16,
    cache_dtype: torch.dtype | None = None,
    max_length: int | None = None,
) -> Call:
    """Random tokens on shuffled pages; NaN in all other places, and table entries that are no pages."""
    device = generator.device
    needed = [-(-length // page_size) for length in lengths]
    pages = sum(needed) + 3
    shape = (pages, 2, heads[1], page_size, head_dim)
    cache = torch.randn(shape, generator=generator, device=device).to(dtype).to(cache_dtype or dtype)
    order = torch.randperm(pages - 1, generator=generator, device=device).to(torch.int32) + 1
    width = -(-(max_length or max(*lengths, 1)) // page_size)
    tables = torch.full((len(lengths), width), NOT_A_PAGE, dtype=torch.int32, device=device)
    live = torch.zeros(pages, page_size, dtype=torch.bool, device=device)
    taken = 0
    for lane, (length, count) in enumerate(zip(lengths, needed, strict=True)):
        own = order[taken : taken + count]
        tables[lane, :count] = own
        places = torch.arange(count * page_size, device=device).view(count, page_size) < length
        live[own.long()] = places
        taken += count
    # 0x7f is NaN in e4m3, and 0x7f7f a huge number or NaN elsewhere; NaN itself is clearer there.
    dead = ~live[:, None, None, :, None].expand(shape)
    if cache.dtype == E4M3:
        cache.view(torch.uint8)[dead] = 0x7F
    else:
        cache[dead] = torch.nan
    q = torch.randn(len(lengths), heads[0], head_dim, generator=generator, device=device).to(dtype)
    return Call(q, cache, tables, torch.tensor(lengths, dtype=torch.int32, device=device), head_dim**-0.5)


def ragged(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """The tables' pages as kv_indptr, kv_indices."""
    counts = -(-call.kv_lengths // call.kv_cache.shape[3])
    indptr = torch.zeros(len(counts) + 1, dtype=torch.int32, device=counts.device)
    indptr[1:] = counts.cumsum(0)
    rows = [table[:count] for table, count in zip(call.block_tables, counts.tolist(), strict=True)]
    return indptr, torch.cat(rows)
