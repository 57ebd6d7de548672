"""Causal attention over pages, against float64."""

from dataclasses import dataclass

import pytest
import torch

from kernels import contract
from kernels.paged_prefill_attention import (
    HEAD_DIMS,
    check,
    paged_prefill_attention,
    paged_prefill_attention_reference,
)

E4M3 = torch.float8_e4m3fn
# Round to nearest errs by half a unit in the last place; the interpreter cuts bf16 off, and errs by a whole one.
BF16_UNIT = 2.0**-7 if contract.INTERPRETING else 2.0**-8
# What is chosen on this machine, and the kernel that is there on all.
BACKENDS = (None, "triton") if torch.cuda.is_available() else ("triton",)
gpu_only = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: real shapes or a graph")


@dataclass(frozen=True)
class Batch:
    """Arguments of a call; everything that must not be read is poisoned."""

    query: torch.Tensor
    kv_cache: torch.Tensor
    block_tables: torch.Tensor
    query_indptr: torch.Tensor
    kv_lengths: torch.Tensor
    max_query_length: int

    def run(self, **options: object) -> torch.Tensor:
        out = torch.full_like(self.query, torch.nan)
        return paged_prefill_attention(*self.__dict__.values(), out=out, **options)

    def reference(self, **options: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Output, logarithmic sums, and the bound of the output's error."""
        tensors = (self.query, self.kv_cache, self.block_tables, self.query_indptr, self.kv_lengths)
        out, logsumexp = paged_prefill_attention_reference(*tensors, **options)
        # Rounding moves each probability, and then the output, by at most half a unit in the last place: u times
        # the sum of p |v|, and u times |out|. The rest (float32 scores, sums and exp2: about 2^-18 together) is slack.
        magnitudes = self.kv_cache.float().abs().to(self.kv_cache.dtype)
        weighted = paged_prefill_attention_reference(
            self.query, torch.stack((self.kv_cache[:, 0], magnitudes[:, 1]), 1), *tensors[2:], **options
        )[0]
        unit = 2.0**-11 if self.query.dtype == torch.float16 else BF16_UNIT
        return out, logsumexp, unit * (weighted + out.abs()) * 1.02 + 1e-6


def batch(
    generator: torch.Generator,
    new: list[int],
    cached: list[int],
    *,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 64,
    page_size: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    cache_dtype: torch.dtype | None = None,
) -> Batch:
    """Sequences with `new` tokens after `cached` ones, on shuffled pages; the null page and all else unused is NaN."""
    device = generator.device
    lengths = [n + c for n, c in zip(new, cached, strict=True)]
    counts = [-(-length // page_size) for length in lengths]
    pages = 1 + sum(counts)
    cache = torch.randn(pages, 2, heads[1], page_size, head_dim, device=device, generator=generator)
    free = (torch.randperm(pages - 1, device=device, generator=generator) + 1).int().split(counts)
    tables = torch.full((len(new), max(counts) + 2), 2**30, dtype=torch.int32, device=device)
    cache[0] = torch.nan
    for sequence, (length, owned) in enumerate(zip(lengths, free, strict=True)):
        tables[sequence, : len(owned)] = owned
        if length % page_size:
            cache[owned[-1], :, :, length % page_size :] = torch.nan
    query = torch.randn(sum(new), heads[0], head_dim, device=device, generator=generator).to(dtype)
    indptr = torch.tensor([0, *new], device=device).cumsum(0).int()
    kv_lengths = torch.tensor(lengths, dtype=torch.int32, device=device)
    return Batch(query, cache.to(dtype).to(cache_dtype or dtype), tables, indptr, kv_lengths, max(new))


def assert_close(actual: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor) -> None:
    assert not actual.isnan().any()
    excess = (actual.double() - expected).abs() / bound
    assert excess.max().item() <= 1, f"error is {excess.max().item():.2f} times its bound"


SHAPES = [
    pytest.param([5], [0], {}, id="one-short"),
    pytest.param([1], [40], {}, id="one-token-after-a-prefix"),
    pytest.param([33, 1, 16], [0, 70, 31], {}, id="ragged-with-prefixes"),
    pytest.param([16, 17], [48, 15], {"page_size": 32}, id="page-32"),
    pytest.param([9, 70], [80, 0], {"page_size": 64}, id="page-64"),
    pytest.param([20], [3], {"page_size": 1}, id="page-1"),
    pytest.param([40], [25], {"heads": (3, 3)}, id="one-query-head-a-kv-head"),
    pytest.param([21], [30], {"heads": (14, 2)}, id="groups-of-7"),
    pytest.param([19], [11], {"heads": (16, 1)}, id="multi-query"),
    pytest.param([12], [20], {"head_dim": 128}, id="head-128"),
    pytest.param([12], [20], {"head_dim": 256}, id="head-256"),
    pytest.param([30], [25], {"dtype": torch.float16}, id="fp16"),
    pytest.param([30, 3], [25, 0], {"cache_dtype": E4M3}, id="e4m3-cache"),
    pytest.param(
        [30], [2], {"cache_dtype": E4M3, "head_dim": 128, "dtype": torch.float16}, id="fp16-e4m3-cache"
    ),
]
REAL_SHAPES = [
    pytest.param([8192], [0], {"heads": (32, 8), "head_dim": 128}, marks=gpu_only, id="8192"),
    pytest.param([2048] * 4, [0] * 4, {"heads": (32, 8), "head_dim": 128}, marks=gpu_only, id="4x2048"),
    pytest.param(
        [700, 1, 129, 512],
        [3000, 4000, 0, 77],
        {"heads": (32, 8), "head_dim": 128},
        marks=gpu_only,
        id="chunks",
    ),
    *(
        pytest.param(
            [500, 300],
            [200, 1001],
            {"heads": (16, 4), "head_dim": head_dim, "cache_dtype": cache_dtype, "page_size": 32},
            marks=gpu_only,
            id=f"head-{head_dim}-{'e4m3' if cache_dtype else 'bf16'}",
        )
        for head_dim in HEAD_DIMS
        for cache_dtype in (None, E4M3)
    ),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("new", "cached", "options"), SHAPES + REAL_SHAPES)
def test_matches_float64(
    generator: torch.Generator,
    new: list[int],
    cached: list[int],
    options: dict[str, object],
    backend: str | None,
) -> None:
    inputs = batch(generator, new, cached, **options)
    logsumexp = torch.full(inputs.query.shape[:2], torch.nan, device=generator.device)
    out = inputs.run(logsumexp=logsumexp, backend=backend)
    expected, expected_logsumexp, bound = inputs.reference()
    assert_close(out, expected, bound)
    # float32 scores of up to head_dim products and a sum of up to 8192 terms: below 2^-16 of the scores' size.
    torch.testing.assert_close(logsumexp.double(), expected_logsumexp, rtol=2.0**-16, atol=2.0**-14)


@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, E4M3])
def test_scales_apply_to_scores_and_values(generator: torch.Generator, cache_dtype: torch.dtype) -> None:
    inputs = batch(generator, [17], [30], cache_dtype=cache_dtype)
    options = {"scale": 0.2, "k_scale": 0.75, "v_scale": 3.0}
    expected, _, bound = inputs.reference(**options)
    assert_close(inputs.run(**options), expected, bound)


@pytest.mark.parametrize("name", ["scale", "k_scale"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_scales_of_scores_are_positive(generator: torch.Generator, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected a positive number, got {value}"):
        batch(generator, [4], [9]).run(**{name: value})


def test_a_lane_of_zero_length_changes_no_bit_of_the_others(generator: torch.Generator) -> None:
    inputs = batch(generator, [18, 7], [3, 40])
    padded = Batch(
        inputs.query,
        inputs.kv_cache,
        torch.cat((inputs.block_tables, torch.full_like(inputs.block_tables[:1], -1))),
        torch.cat((inputs.query_indptr, inputs.query_indptr[-1:])),
        torch.cat((inputs.kv_lengths, torch.zeros_like(inputs.kv_lengths[:1]))),
        inputs.max_query_length,
    )
    assert torch.equal(padded.run(), inputs.run())


def test_rows_of_no_sequence_are_left_alone(generator: torch.Generator) -> None:
    inputs = batch(generator, [18], [3])
    longer = torch.cat((inputs.query, torch.full_like(inputs.query[:5], torch.nan)))
    out = Batch(longer, *list(inputs.__dict__.values())[1:]).run()
    assert torch.equal(out[:18], inputs.run())
    assert out[18:].isnan().all()


def test_a_query_that_sees_nothing_gives_zero(generator: torch.Generator) -> None:
    inputs = batch(generator, [6], [0])
    shorter = Batch(*list(inputs.__dict__.values())[:4], inputs.kv_lengths - 2, inputs.max_query_length)
    logsumexp = torch.full(inputs.query.shape[:2], torch.nan, device=generator.device)
    out = shorter.run(logsumexp=logsumexp)
    expected, _, bound = shorter.reference()
    assert (out[:2] == 0).all()
    assert (logsumexp[:2] == -torch.inf).all()
    assert_close(out, expected, bound)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_inputs_give_the_same_bits(generator: torch.Generator, backend: str | None) -> None:
    inputs = batch(generator, [70, 3], [90, 200], head_dim=128)
    first = inputs.run(backend=backend)
    assert all(torch.equal(inputs.run(backend=backend), first) for _ in range(3))


def test_a_backend_that_cannot_is_refused(generator: torch.Generator) -> None:
    inputs = batch(generator, [4], [9], dtype=torch.float16)
    with pytest.raises(ValueError, match="backend: expected triton for these arguments, got cuda"):
        inputs.run(backend="cuda")
    with pytest.raises(ValueError, match="backend: expected one of cuda, triton, got cutlass"):
        inputs.run(backend="cutlass")


def test_the_grid_may_be_larger_than_the_sequences(generator: torch.Generator) -> None:
    inputs = batch(generator, [18, 7], [3, 40])
    assert torch.equal(Batch(*list(inputs.__dict__.values())[:5], 300).run(), inputs.run())


def test_rows_of_a_packed_projection(generator: torch.Generator) -> None:
    inputs = batch(generator, [18, 7], [3, 40])
    packed = torch.full((25, 4 + 2 * 2, 64), torch.nan, dtype=torch.bfloat16, device=generator.device)
    packed[:, :4] = inputs.query
    strided = Batch(packed[:, :4], *list(inputs.__dict__.values())[1:])
    out = torch.full_like(packed, torch.nan)[:, 2:6]
    paged_prefill_attention(*strided.__dict__.values(), out=out)
    assert torch.equal(out, inputs.run())


def test_no_tokens_and_no_sequences_launch_nothing(generator: torch.Generator) -> None:
    inputs = batch(generator, [4], [9])
    empty = Batch(
        inputs.query[:0], inputs.kv_cache, inputs.block_tables, inputs.query_indptr * 0, inputs.kv_lengths, 0
    )
    assert empty.run().shape == (0, 4, 64)
    nobody = Batch(
        inputs.query,
        inputs.kv_cache,
        inputs.block_tables[:0],
        inputs.query_indptr[:1],
        inputs.kv_lengths[:0],
        1,
    )
    assert nobody.run().isnan().all()


@gpu_only
def test_a_captured_launch_follows_lengths_that_grow(generator: torch.Generator) -> None:
    inputs = batch(generator, [40, 64], [200, 91], heads=(32, 8), head_dim=128)
    kv_lengths, full = torch.full_like(inputs.kv_lengths, 1), inputs.kv_lengths
    query_indptr, full_indptr = torch.tensor([0, 1, 2], dtype=torch.int32, device="cuda"), inputs.query_indptr
    captured = Batch(
        inputs.query, inputs.kv_cache, inputs.block_tables, query_indptr, kv_lengths, inputs.max_query_length
    )
    captured.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = captured.run()
    kv_lengths.copy_(full)
    query_indptr.copy_(full_indptr)
    graph.replay()
    assert torch.equal(out, inputs.run())


@gpu_only
def test_cache_offsets_pass_two_to_the_31(generator: torch.Generator) -> None:
    inputs = batch(generator, [40], [200], heads=(16, 8), head_dim=128)
    pages = (2**31 // inputs.kv_cache[0].numel()) + len(inputs.kv_cache)
    large = torch.empty(pages, *inputs.kv_cache.shape[1:], dtype=torch.bfloat16, device="cuda")
    large[-len(inputs.kv_cache) :] = inputs.kv_cache
    moved = inputs.block_tables + (pages - len(inputs.kv_cache))
    shifted = Batch(
        inputs.query, large, moved, inputs.query_indptr, inputs.kv_lengths, inputs.max_query_length
    )
    assert torch.equal(shifted.run(), inputs.run())


def replaced(**changes: object) -> object:
    """Changes one argument; a callable gets the right one."""

    def change(inputs: Batch) -> dict[str, object]:
        given = {**inputs.__dict__, "out": torch.empty_like(inputs.query), "logsumexp": None}
        return {**given, **{k: v(given[k]) if callable(v) else v for k, v in changes.items()}}

    return change


BAD = {
    "query: expected dtype bfloat16 or float16, got float32": replaced(query=lambda t: t.float()),
    r"query: expected shape \[any, any, any\], got \[20, 256\]": replaced(query=lambda t: t.flatten(1)),
    "query: expected contiguous rows": replaced(query=lambda t: t.mT.contiguous().mT),
    "query head_dim: expected one of 64, 128, 256, got 32": replaced(query=lambda t: t[..., :32]),
    "query heads: expected a multiple of the cache's 2 KV heads, got 3": replaced(query=lambda t: t[:, :3]),
    "kv_cache: expected dtype bfloat16 or float8_e4m3fn, got float16": replaced(kv_cache=lambda t: t.half()),
    r"kv_cache: expected shape \[any, 2, any, any, 64\]": replaced(kv_cache=lambda t: t[:, :1]),
    "kv_cache: expected a contiguous tensor": replaced(kv_cache=lambda t: t.transpose(2, 3)),
    "kv_cache: expected a pointer aligned to 16 bytes, got one 2 bytes past": replaced(
        kv_cache=lambda t: torch.empty(t.numel() + 1, dtype=t.dtype, device=t.device)[1:].view(t.shape)
    ),
    "kv_cache: expected a page_size that is a power of two, got 12": replaced(
        kv_cache=lambda t: t[:, :, :, :12].contiguous()
    ),
    "block_tables: expected dtype int32, got int64": replaced(block_tables=lambda t: t.long()),
    r"block_tables: expected shape \[1, any\], got \[2, 5\]": replaced(
        block_tables=lambda t: t[:, :5].repeat(2, 1)
    ),
    r"query_indptr: expected shape \[2\], got \[1\]": replaced(query_indptr=lambda t: t[:1]),
    "query_indptr: expected dtype int32, got int64": replaced(query_indptr=lambda t: t.long()),
    "kv_lengths: expected dtype int32, got float32": replaced(kv_lengths=lambda t: t.float()),
    "kv_lengths: expected device .*, got meta": replaced(kv_lengths=lambda t: t.to("meta")),
    "max_query_length: expected at least 1 for 20 tokens, got 0": replaced(max_query_length=0),
    "out: expected dtype bfloat16, got float32": replaced(out=lambda t: t.float()),
    r"out: expected shape \[20, 4, 64\], got \[19, 4, 64\]": replaced(out=lambda t: t[1:]),
    "logsumexp: expected dtype float32, got bfloat16": replaced(
        logsumexp=torch.empty(20, 4, dtype=torch.bfloat16)
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_refused_by_name(generator: torch.Generator, message: str) -> None:
    arguments = BAD[message](batch(generator, [20], [50]))
    out = arguments["out"].fill_(7) if arguments["out"].device.type != "meta" else arguments["out"]
    with pytest.raises(ValueError, match=message):
        paged_prefill_attention(**arguments)
    assert (out == 7).all()


@pytest.mark.parametrize(
    ("message", "spoil"),
    [
        (
            r"block_tables: expected values in \[0, 6\), got \[.*, 6\]",
            lambda b: b.block_tables[0, 1].fill_(6),
        ),
        ("block_tables: expected values", lambda b: b.block_tables[0, 4].fill_(-1)),
        (r"kv_lengths: expected values in \[0, 113\), got \[113, 113\]", lambda b: b.kv_lengths.fill_(113)),
        (
            r"query lengths: expected values in \[0, 21\), got \[22, 22\]",
            lambda b: b.query_indptr[1].fill_(22),
        ),
    ],
)
def test_debug_mode_checks_values(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch, message: str, spoil: object
) -> None:
    monkeypatch.setattr(contract, "DEBUG", True)
    inputs = batch(generator, [20], [50])
    inputs.run()
    spoil(inputs)
    with pytest.raises(ValueError, match=message):
        inputs.run()


def test_check_passes(device: torch.device) -> None:
    error, bound = check(device)
    assert error <= bound
