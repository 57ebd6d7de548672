"""Rows of paged_decode_attention: 32 query heads on 8, heads of 128, shuffled pages of 16 tokens."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from kernels.bench.harness import Figures, Row
from kernels.paged_decode_attention import DecodePlan, paged_decode_attention

HEADS, KV_HEADS, HEAD_DIM, PAGE = 32, 8, 128, 16
SCALE = HEAD_DIM**-0.5
E4M3 = torch.float8_e4m3fn

Peer = Callable[["Inputs"], object]
FLASHINFER = "flashinfer fa2, tensor cores"


@dataclass(frozen=True)
class Inputs:
    """One call's tensors; the tables are the same in all sets of a row, the tokens are not."""

    q: torch.Tensor
    kv_cache: torch.Tensor
    tables: torch.Tensor
    lengths: torch.Tensor
    out: torch.Tensor
    plan: DecodePlan


def rows() -> Iterator[Row]:
    """The issue's shapes, then an e4m3 cache and uneven lengths."""
    yield _row("64 x 4096", [4096] * 64, share=0.98)
    yield _row("64 x 512", [512] * 64, share=0.75)
    yield _row("1 x 32768", [32768], share=0.78)
    yield _row("1 x 512", [512], most_us=8.0)
    yield _row("64 x 4096, e4m3", [4096] * 64, cache_dtype=E4M3)
    yield _row("64 of 128 to 8160", [128 + lane * 1021 % 64 * 128 for lane in range(64)])
    yield _row("65536, then 63 x 512", [65536] + [512] * 63)


def _row(
    shape: str,
    lengths: list[int],
    *,
    cache_dtype: torch.dtype = torch.bfloat16,
    share: float = 0.0,
    most_us: float = 0.0,
) -> Row:
    cache_bytes = sum(lengths) * 2 * KV_HEADS * HEAD_DIM * cache_dtype.itemsize

    def met(figures: Figures) -> bool:
        fast = figures.us <= most_us if most_us else figures.of_copy >= share
        return fast and figures.ratio(FLASHINFER) >= 1.0

    targeted = bool(share or most_us)
    words = f"at most {most_us:g} us" if most_us else f"at least {share:.0%} of copy"
    return Row(
        "paged_decode_attention",
        shape,
        lambda seed: _inputs(seed, tuple(lengths), cache_dtype),
        _run,
        bytes_moved=cache_bytes,
        input_bytes=cache_bytes,
        peers=_peers(tuple(lengths), cache_dtype),
        target=f"{words}, never slower than flashinfer" if targeted else "",
        met=met if targeted else None,
    )


@lru_cache(maxsize=1)
def _plan(batch: int, longest: int) -> DecodePlan:
    return DecodePlan.create(batch, longest, HEADS, KV_HEADS, HEAD_DIM, device="cuda")


def _tables(lengths: tuple[int, ...]) -> tuple[torch.Tensor, int]:
    counts = [-(-length // PAGE) for length in lengths]
    generator = torch.Generator("cuda").manual_seed(0)
    pages = torch.randperm(sum(counts), generator=generator, device="cuda").int() + 1
    tables = torch.zeros(len(lengths), max(counts), dtype=torch.int32, device="cuda")
    for lane, own in enumerate(pages.split(counts)):
        tables[lane, : len(own)] = own
    return tables, sum(counts) + 1


def _inputs(seed: int, lengths: tuple[int, ...], cache_dtype: torch.dtype) -> Inputs:
    tables, pages = _tables(lengths)
    generator = torch.Generator("cuda").manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)

    q = random(len(lengths), HEADS, HEAD_DIM)
    cache = random(pages, 2, KV_HEADS, PAGE, HEAD_DIM).to(cache_dtype)
    held = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    return Inputs(q, cache, tables, held, torch.empty_like(q), _plan(len(lengths), max(lengths)))


def _run(inputs: Inputs) -> None:
    paged_decode_attention(
        inputs.q,
        inputs.kv_cache,
        inputs.tables,
        inputs.lengths,
        SCALE,
        plan=inputs.plan,
        out=inputs.out,
    )


def _peers(lengths: tuple[int, ...], cache_dtype: torch.dtype) -> dict[str, Peer | str]:
    peers: dict[str, Peer | str] = {}
    if len(set(lengths)) == 1 and cache_dtype == torch.bfloat16:
        peers = {"torch eager": _eager, "torch.compile": _compiled()}
    peers[FLASHINFER] = _flashinfer(lengths, cache_dtype)
    return peers


def _eager(inputs: Inputs) -> torch.Tensor:
    """Gather the pages of lanes that are equally long, then torch's own attention."""
    held = inputs.kv_cache[inputs.tables].permute(2, 0, 3, 1, 4, 5).flatten(3, 4)
    return torch.nn.functional.scaled_dot_product_attention(
        inputs.q[:, :, None], held[0], held[1], scale=SCALE, enable_gqa=True
    )


def _compiled() -> Peer:
    made: list[Any] = []

    def run(inputs: Inputs) -> object:
        if not made:
            made.append(torch.compile(_eager, mode="default", dynamic=False))
        return made[0](inputs)

    return run


def _flashinfer(lengths: tuple[int, ...], cache_dtype: torch.dtype) -> Peer | str:
    """Its decode wrapper in graph mode, planned once before capture, as an engine does for every step."""
    try:
        import flashinfer
    except ImportError:
        return "not installed"
    wrappers: list[Any] = []

    def plan() -> Any:
        counts = torch.tensor([-(-length // PAGE) for length in lengths], dtype=torch.int32)
        indptr = torch.cat((torch.zeros(1, dtype=torch.int32), counts.cumsum(0).int())).cuda()
        tables, _ = _tables(lengths)
        indices = torch.cat([row[:count] for row, count in zip(tables, counts.tolist(), strict=True)])
        last = torch.tensor([(length - 1) % PAGE + 1 for length in lengths], dtype=torch.int32).cuda()
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            torch.empty(256 << 20, dtype=torch.uint8, device="cuda"),
            "HND",
            use_cuda_graph=True,
            use_tensor_cores=True,
            backend="fa2",  # left to choose it takes fa3, made for prefill, four times slower here
            paged_kv_indptr_buffer=torch.empty_like(indptr),
            paged_kv_indices_buffer=torch.empty_like(indices),
            paged_kv_last_page_len_buffer=torch.empty_like(last),
        )
        wrapper.plan(
            *(indptr, indices, last, HEADS, KV_HEADS, HEAD_DIM, PAGE),
            q_data_type=torch.bfloat16,
            kv_data_type=cache_dtype,
            sm_scale=SCALE,
        )
        return wrapper

    def run(inputs: Inputs) -> object:
        if not wrappers:
            wrappers.append(plan())
        return wrappers[0].run(inputs.q, inputs.kv_cache, out=inputs.out)

    return run
