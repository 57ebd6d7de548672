"""Rotate queries and keys and write keys and values into the paged cache, in one pass over the packed projection.

Inputs
- `qkv` [tokens, (query_heads + 2 * kv_heads) * head_dim], bf16, fp16 or float32; rows may be strided (16-byte aligned).
- `positions` int32 [tokens], or [axes, tokens] with `axis_of_frequency` (mRoPE: time, height, width).
- `slots` int64 or int32 [tokens]: page * page_size + offset; a negative slot writes nothing into the cache.
- `cache` [pages, 2, kv_heads, page_size, head_dim] of qkv's dtype, or float8_e4m3fn: saturating at 448 with scale 1, NaN
  stays NaN. head_dim is 16 to 512 in steps of 16, page_size a power of two. Pages may be strided, a page is contiguous.
  Page 0 is reserved as the null page by its users.
- `cos_sin` float32 [positions, head_dim]: cosines, then sines, of each frequency (see kernels.rope_frequencies): float32
  angles, position * inverse frequency, as Hugging Face computes them.
- `query_norm`, `key_norm` [head_dim] of qkv's dtype: RMS-norm weights applied to each head before the rotation (Qwen3).

Output: rotated queries [tokens, query_heads, head_dim], new or in `out`, which may be qkv's own query columns.

Arithmetic is float32 from load to store, and each output is rounded once, to the output's or the cache's dtype. (In bf16
transformers rounds cosines, sines, the norm, both products and the sum; in float32 the two agree.) The rotation is
(a cos - b sin, b cos + a sin) for pairs (i, i + head_dim/2) (NeoX) or (2i, 2i+1) (`interleaved`, GPT-J).

Rotary embedding: Su et al. 2021, https://arxiv.org/abs/2104.09864; mRoPE: Qwen2-VL, https://arxiv.org/abs/2409.12191.
"""

from collections.abc import Iterator

import torch
import triton

from kernels import contract, launch, target
from kernels.contract import VECTOR_BYTES
from kernels.launch import BuildCase
from kernels.rope_frequencies import cos_sin_table, inverse_frequencies
from kernels.rope_kernel import rope_kv_write_kernel

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
E4M3_MAX = 448.0
HEADS, WARPS = 8, 4  # of one program


def rope_kv_write(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
    cos_sin: torch.Tensor,
    *,
    query_heads: int,
    interleaved: bool = False,
    query_norm: torch.Tensor | None = None,
    key_norm: torch.Tensor | None = None,
    epsilon: float = 1e-6,
    axis_of_frequency: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See the module. `epsilon` is the norms'; `axis_of_frequency` int32 [head_dim/2] names each frequency's axis.

    Raises:
        ValueError: an argument is off; in debug mode also for a position or slot out of range.
    """
    out = _checked(
        qkv, positions, slots, cache, cos_sin, query_heads, query_norm, key_norm, axis_of_frequency, out
    )
    tokens = qkv.shape[0]
    if tokens == 0:
        return out
    _, _, kv_heads, page_size, head_dim = cache.shape
    groups = triton.cdiv(query_heads, HEADS) + 2 * triton.cdiv(kv_heads, HEADS)
    launch.launch(
        rope_kv_write_kernel,
        (tokens * groups,),
        qkv,
        positions,
        slots,
        cache,
        cos_sin,
        query_norm,
        key_norm,
        axis_of_frequency,
        out,
        qkv.stride(0),
        out.stride(0),
        positions.stride(0) if axis_of_frequency is not None else 0,
        cache.stride(0),
        epsilon,
        query_heads,
        kv_heads,
        PAGE_SIZE=page_size,
        HALF=head_dim // 2,
        PADDED_HALF=triton.next_power_of_2(head_dim // 2),
        HEADS=HEADS,
        INTERLEAVED=interleaved,
        DEPENDENT="pdl" in target.current().features,
        num_warps=WARPS,
        launch_pdl=True,
    )
    return out


def rope_kv_write_reference(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
    cos_sin: torch.Tensor,
    *,
    query_heads: int,
    interleaved: bool = False,
    query_norm: torch.Tensor | None = None,
    key_norm: torch.Tensor | None = None,
    epsilon: float = 1e-6,
    axis_of_frequency: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    working: torch.dtype = torch.float32,
) -> torch.Tensor:
    """The same through torch on any device, computed in `working`; writes `cache`, returns the queries."""
    _, _, kv_heads, page_size, head_dim = cache.shape
    tokens = qkv.shape[0]
    heads = qkv.reshape(tokens, -1, head_dim).to(working)
    queries, keys, values = heads.split([query_heads, kv_heads, kv_heads], dim=1)
    half = head_dim // 2
    if axis_of_frequency is None:
        rows = cos_sin[positions.long()].to(working)
        cosines, sines = rows[:, None, :half], rows[:, None, half:]
    else:
        at = positions.long()[axis_of_frequency.long()].T
        columns = torch.arange(half, device=qkv.device)
        cosines, sines = (cos_sin[at, columns + start].to(working)[:, None] for start in (0, half))

    def rotated(x: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        if norm is not None:
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * norm.to(working)
        a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
        pairs = a * cosines - b * sines, b * cosines + a * sines
        return torch.stack(pairs, -1).flatten(-2) if interleaved else torch.cat(pairs, -1)

    kept = slots >= 0
    page, offset = slots[kept].long() // page_size, slots[kept].long() % page_size
    for which, rows in enumerate((rotated(keys, key_norm), values)):
        rows = rows[kept]
        if cache.dtype == torch.float8_e4m3fn:
            rows = rows.clamp(-E4M3_MAX, E4M3_MAX).float()
        cache[page, which, :, offset] = rows.to(cache.dtype)
    result = rotated(queries, query_norm).to(qkv.dtype)
    return result if out is None else out.copy_(result)


def _checked(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
    cos_sin: torch.Tensor,
    query_heads: int,
    query_norm: torch.Tensor | None,
    key_norm: torch.Tensor | None,
    axis_of_frequency: torch.Tensor | None,
    out: torch.Tensor | None,
) -> torch.Tensor:
    contract.require("qkv", qkv, dtype=DTYPES, shape=(None, None), rows_contiguous=True, aligned=VECTOR_BYTES)
    device, tokens = qkv.device, qkv.shape[0]
    contract.require_cache("cache", cache, dtype=qkv.dtype, head_dim=None, device=device, contiguous=False)
    pages, _, kv_heads, page_size, head_dim = cache.shape
    if head_dim % 16 or not 16 <= head_dim <= 512:
        raise ValueError(f"cache: expected a head_dim of 16 to 512 in steps of 16, got {head_dim}")
    page_elements = 2 * kv_heads * page_size * head_dim
    if page_elements >= 1 << 31:  # inside a page the kernel counts in 32 bits
        raise ValueError(f"cache: expected fewer than 2^31 elements a page, got {page_elements}")
    if cache.numel() and not cache[0].is_contiguous():
        raise ValueError(f"cache: expected contiguous pages, got strides {list(cache.stride())}")
    if query_heads < 1:
        raise ValueError(f"query_heads: expected at least 1, got {query_heads}")
    contract.require("qkv", qkv, shape=(tokens, (query_heads + 2 * kv_heads) * head_dim))
    contract.require_aligned_rows("qkv", qkv)
    contract.require_aligned_rows("cache", cache)
    contract.require(
        "slots", slots, dtype=(torch.int64, torch.int32), shape=(tokens,), device=device, contiguous=True
    )
    contract.require_range("slots", slots, -1, pages * page_size)
    contract.require("cos_sin", cos_sin, dtype=torch.float32, shape=(None, head_dim), device=device, contiguous=True,
                     aligned=VECTOR_BYTES)  # fmt: skip
    if axis_of_frequency is None:
        contract.require(
            "positions", positions, dtype=torch.int32, shape=(tokens,), device=device, contiguous=True
        )
    else:
        contract.require("positions", positions, dtype=torch.int32, shape=(None, tokens), device=device,
                         rows_contiguous=True)  # fmt: skip
        contract.require("axis_of_frequency", axis_of_frequency, dtype=torch.int32, shape=(head_dim // 2,),
                         device=device, contiguous=True)  # fmt: skip
        contract.require_range("axis_of_frequency", axis_of_frequency, 0, positions.shape[0])
    contract.require_range("positions", positions, 0, cos_sin.shape[0])
    for name, norm in (("query_norm", query_norm), ("key_norm", key_norm)):
        if norm is not None:
            contract.require(name, norm, dtype=qkv.dtype, shape=(head_dim,), device=device, contiguous=True,
                             aligned=VECTOR_BYTES)  # fmt: skip
    if out is None:
        return torch.empty(tokens, query_heads, head_dim, dtype=qkv.dtype, device=device)
    contract.require("out", out, dtype=qkv.dtype, shape=(tokens, query_heads, head_dim), device=device,
                     aligned=VECTOR_BYTES)  # fmt: skip
    if tokens and not out[0].is_contiguous():
        raise ValueError(f"out: expected contiguous heads, got strides {list(out.stride())}")
    contract.require_aligned_rows("out", out)
    return out


def build_cases() -> Iterator[BuildCase]:
    """bf16 with int64 slots and pages of 16, as the engine calls it; other types compile at their first use."""
    e4m3 = torch.float8_e4m3fn

    def case(
        name: str, head_dim: int, cache: torch.dtype, *, norm: bool, axes: int, interleaved: bool
    ) -> BuildCase:
        def call() -> None:
            weight = launch.meta(head_dim, dtype=torch.bfloat16) if norm else None
            rope_kv_write(
                launch.meta(64, 6 * head_dim, dtype=torch.bfloat16),
                launch.meta(*((axes, 64) if axes else (64,)), dtype=torch.int32),
                launch.meta(64, dtype=torch.int64),
                launch.meta(8, 2, 1, 16, head_dim, dtype=cache),
                launch.meta(4096, head_dim, dtype=torch.float32),
                query_heads=4,
                interleaved=interleaved,
                query_norm=weight,
                key_norm=weight,
                axis_of_frequency=launch.meta(head_dim // 2, dtype=torch.int32) if axes else None,
            )

        return BuildCase(f"rope_kv_write/{name}", call, frozenset({"fp8"} if cache == e4m3 else ()))

    for cache, suffix in ((torch.bfloat16, "bf16"), (e4m3, "e4m3")):
        for head_dim in (64, 128):
            for norm in (False, True):
                name = f"{head_dim}-{'norm-' if norm else ''}{suffix}"
                yield case(name, head_dim, cache, norm=norm, axes=0, interleaved=False)
        yield case(f"128-norm-mrope-{suffix}", 128, cache, norm=True, axes=3, interleaved=False)
        yield case(f"128-mrope-{suffix}", 128, cache, norm=False, axes=3, interleaved=False)
        yield case(f"128-interleaved-{suffix}", 128, cache, norm=False, axes=0, interleaved=True)


def check(device: torch.device) -> tuple[float, float]:
    """A decode step of five tokens in bf16; returns the largest error over the largest value, and two roundings."""
    generator = torch.Generator(device).manual_seed(1)
    qkv = torch.randn(5, 8 * 64, generator=generator, device=device).bfloat16()
    positions = torch.randint(0, 512, (5,), dtype=torch.int32, generator=generator, device=device)
    slots = torch.tensor([3, -1, 16, 40, 9], device=device)
    table = cos_sin_table(*inverse_frequencies(64, 1e4, max_positions=512), 512).to(device)
    ours, expected = (torch.zeros(4, 2, 2, 16, 64, dtype=torch.bfloat16, device=device) for _ in range(2))
    queries = rope_kv_write(qkv, positions, slots, ours, table, query_heads=4)
    wanted = rope_kv_write_reference(
        qkv, positions, slots, expected, table, query_heads=4, working=torch.float64
    )
    error = max(
        float((a.double() - b.double()).abs().max()) for a, b in ((queries, wanted), (ours, expected))
    )
    return error / float(wanted.double().abs().max()), 2 * 2**-8
