"""Calls of rope_kv_write for its tests, and how close their results must be.

Tolerances. An output is rounded once, by at most u of its value (u = 2^-24 float32, 2^-11 float16, 2^-8 bfloat16), and
the reference, rounded too, may lie on the other side of a tie: 2u. Before that the float32 arithmetic adds, of the
largest value in the head, 4 roundings of the rotation and, with a norm, at most head_dim/2 + 4 of its sum and product.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from kernels.rope_frequencies import axes_of_sections, cos_sin_table, inverse_frequencies
from kernels.rope_kv_write import rope_kv_write, rope_kv_write_reference

ON_GPU = torch.cuda.is_available()
ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
E4M3 = torch.float8_e4m3fn
POISON = 0x7F  # NaN in every dtype here


@dataclass
class Call:
    """Arguments of one call; the cache and the output are poisoned."""

    qkv: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    cache: torch.Tensor
    cos_sin: torch.Tensor
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def out(self) -> torch.Tensor:
        head_dim = self.cos_sin.shape[1]
        shape = self.qkv.shape[0], self.options["query_heads"], head_dim
        return poisoned(*shape, dtype=self.qkv.dtype, device=self.qkv.device)

    def run(self, **options: Any) -> torch.Tensor:
        return rope_kv_write(self.qkv, self.positions, self.slots, self.cache, self.cos_sin, **self.options, **options)  # fmt: skip

    def run_reference(self, working: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and the cache that results."""
        cache = self.cache.clone()
        queries = rope_kv_write_reference(
            self.qkv, self.positions, self.slots, cache, self.cos_sin, **self.options, working=working
        )
        return queries, cache


def poisoned(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    tensor = torch.empty(shape, dtype=dtype, device=device)
    tensor.view(torch.uint8).fill_(POISON)
    return tensor


def make(
    generator: torch.Generator,
    *,
    tokens: int = 7,
    query_heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 64,
    page_size: int = 4,
    pages: int = 6,
    dtype: torch.dtype = torch.bfloat16,
    cache_dtype: torch.dtype | None = None,
    norm: bool = False,
    axes: bool = False,
    interleaved: bool = False,
    longest: int = 300,
) -> Call:
    device = generator.device

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, generator=generator).to(dtype)

    positions = torch.randint(
        0, longest, (3, tokens) if axes else (tokens,), device=device, generator=generator
    )
    slots = torch.randperm((pages - 1) * page_size, device=device, generator=generator)[:tokens] + page_size
    table = cos_sin_table(*inverse_frequencies(head_dim, 1e4, max_positions=longest), longest)
    options: dict[str, Any] = {"query_heads": query_heads, "interleaved": interleaved}
    if norm:
        options |= {"query_norm": random(head_dim), "key_norm": random(head_dim)}
    if axes:
        half = head_dim // 2
        sections = half - 2 * (half // 3), half // 3, half // 3
        options |= {"axis_of_frequency": axes_of_sections(sections).to(device)}
    return Call(
        random(tokens, (query_heads + 2 * kv_heads) * head_dim),
        positions.int(),
        slots,
        poisoned(pages, 2, kv_heads, page_size, head_dim, dtype=cache_dtype or dtype, device=device),
        table.to(device),
        options,
    )


def require_close(actual: torch.Tensor, expected: torch.Tensor, *, norm: bool) -> None:
    head_dim = actual.shape[-1]
    before = (4 + (head_dim / 2 + 4 if norm else 0)) * 2.0**-24
    assert not actual.isnan().any()
    a, b = actual.double(), expected.double()
    allowed = 2 * ROUNDOFF[actual.dtype] * b.abs() + before * b.abs().amax(-1, keepdim=True) * 2
    assert ((a - b).abs() <= allowed).all()


def require_cache(actual: torch.Tensor, expected: torch.Tensor, slots: torch.Tensor, *, norm: bool) -> None:
    """Written slots are close, values exact, and every other byte is still poison."""
    page_size = actual.shape[3]
    kept = slots[slots >= 0].long()
    page, offset = kept // page_size, kept % page_size
    keys, wanted = (cache[page, 0, :, offset] for cache in (actual, expected))
    values, wanted_values = (cache[page, 1, :, offset].float() for cache in (actual, expected))
    if actual.dtype == E4M3:
        # A float32 value on the other side of a tie is one ulp away. Triton's interpreter also loses the carry of a
        # significand that rounds up to the next power of two: it then stores half.
        for ours, theirs in ((keys.float(), wanted.float()), (values, wanted_values)):
            near = (ours - theirs).abs() <= (theirs.abs() / 8).clamp(min=2.0**-9)
            assert (near | (not ON_GPU) & (2 * ours == theirs)).all()
    else:
        require_close(keys, wanted, norm=norm)
    if actual.dtype != E4M3 or ON_GPU:
        assert torch.equal(values, wanted_values)
    rest = actual.clone()
    rest.view(torch.uint8).view(*rest.shape[:-1], -1)[page, :, :, offset] = POISON
    assert (rest.view(torch.uint8) == POISON).all()
