"""Attention of one token a sequence over pages, against float64."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from kernels import contract, launch, target
from kernels.paged_decode_attention import (
    DecodePlan,
    backends,
    build_cases,
    check,
    paged_decode_attention,
    paged_decode_attention_ragged,
    paged_decode_attention_reference,
)

BF16, FP16, E4M3 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
# Round to nearest errs by half a unit in the last place; the interpreter cuts bf16 off, and errs by a whole one.
UNIT = {FP16: 2.0**-11, BF16: 2.0**-7 if contract.INTERPRETING else 2.0**-8}
NOT_A_PAGE = 2**31 - 1
on_gpu = torch.cuda.is_available()
gpu_only = pytest.mark.skipif(not on_gpu, reason="needs a GPU: real shapes or a graph")


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


@pytest.fixture(params=("triton", "cuda"))
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not on_gpu:
        pytest.skip("CUDA C++ needs a GPU")
    return request.param


SHAPES = [
    pytest.param([0, 1, 63, 64, 65, 300], {}, id="lengths around a tile"),
    pytest.param([130], {"heads": (1, 1)}, id="one head"),
    pytest.param([33, 7], {"heads": (3, 3), "dtype": FP16}, id="no groups, fp16"),
    pytest.param([70, 200], {"heads": (16, 1), "page_size": 32}, id="group of 16"),
    pytest.param([70, 9], {"heads": (17, 1)}, id="group of 17"),
    pytest.param([70, 129], {"heads": (10, 2), "head_dim": 128, "page_size": 64}, id="group of 5"),
    pytest.param([70], {"heads": (2, 1), "head_dim": 256}, id="head of 256"),
    pytest.param([40, 65], {"page_size": 1}, id="pages of one token"),
    pytest.param([40, 165], {"page_size": 8}, id="pages of 8"),
    pytest.param([5, 140], {"page_size": 128}, id="pages of 128"),
    pytest.param([70, 129], {"cache_dtype": E4M3, "head_dim": 128}, id="e4m3"),
    pytest.param([70, 129], {"cache_dtype": E4M3, "dtype": FP16}, id="e4m3 and fp16"),
]
REAL_SHAPES = [
    pytest.param([4096 - lane for lane in range(64)], {}, id="64 long"),
    pytest.param([32768], {}, id="one very long"),
    pytest.param([100_000] + [512 - lane for lane in range(100)], {}, id="one among short"),
    pytest.param([0] * 27 + [5000], {"heads": (64, 4), "page_size": 64}, id="group of 16"),
    pytest.param([777, 5000], {"heads": (40, 8), "page_size": 32, "dtype": FP16}, id="group of 5"),
    pytest.param([777, 5000], {"heads": (71, 1)}, id="71 heads on one"),
    pytest.param([777, 5000], {"heads": (32, 4), "head_dim": 256}, id="head of 256"),
    pytest.param([777, 5000], {"heads": (16, 16), "head_dim": 64}, id="no groups"),
    pytest.param([4096 - lane for lane in range(64)], {"cache_dtype": E4M3}, id="e4m3"),
    pytest.param([777, 5000], {"cache_dtype": E4M3, "heads": (128, 8)}, id="e4m3, group of 16"),
    pytest.param([777, 5000], {"cache_dtype": E4M3, "head_dim": 64, "heads": (64, 4)}, id="e4m3, head of 64"),
    pytest.param([777, 5000], {"cache_dtype": E4M3, "head_dim": 256, "dtype": FP16}, id="e4m3, head of 256"),
]


@pytest.mark.parametrize(("lengths", "shape"), SHAPES)
def test_matches_float64(generator, backend, lengths, shape):
    call = make(generator, lengths, **shape)
    call.agrees(*call.run(backend=_able(backend, call)))


@gpu_only
@pytest.mark.parametrize(("lengths", "shape"), REAL_SHAPES)
def test_matches_float64_at_real_shapes(generator, backend, lengths, shape):
    call = make(generator, lengths, **{"heads": (32, 8), "head_dim": 128} | shape)
    call.agrees(*call.run(backend=_able(backend, call)))


def _able(backend: str, call: Call) -> str:
    if backend not in backends(call.q, call.kv_cache):
        pytest.skip(f"the {backend} version does not take this shape")
    return backend


def test_scales_of_the_cache(generator, backend):
    call = make(generator, [70, 129], cache_dtype=E4M3)
    scales = {"k_scale": 0.5, "v_scale": 3.0}
    call.agrees(*call.run(backend=backend, **scales), **scales)


def test_large_scores_do_not_overflow(generator, backend):
    call = make(generator, [70, 300])
    call = replace(call, scale=40.0)
    out, _ = call.run(backend=backend)
    wanted, _ = paged_decode_attention_reference(*call.__dict__.values())
    # Scores reach 40 * 64 here, where float32 holds an absolute 2^-12: probabilities err by as much, relatively.
    assert (out.double() - wanted).abs().max() < 0.05


def test_ragged_pages_give_the_same_bits(generator, backend):
    call = make(generator, [0, 300, 1, 64])
    plan = call.plan()
    out, logsumexp = call.run(plan=plan, backend=backend)
    indptr, indices = ragged(call)
    again, again_logsumexp = torch.full_like(out, torch.nan), torch.full_like(logsumexp, torch.nan)
    paged_decode_attention_ragged(
        call.q,
        call.kv_cache,
        indptr,
        indices,
        call.kv_lengths,
        call.scale,
        plan=plan,
        out=again,
        logsumexp=again_logsumexp,
        backend=backend,
    )
    assert torch.equal(out, again)
    assert torch.equal(logsumexp, again_logsumexp)


def test_ragged_tails_repeat_for_padding_lanes(generator, backend):
    call = make(generator, [90, 20])
    indptr, indices = ragged(call)
    padded = torch.cat((indptr, indptr[-1:].expand(2)))
    q = torch.cat((call.q, call.q))
    lengths = torch.cat((call.kv_lengths, torch.zeros_like(call.kv_lengths)))
    spare = torch.full((5,), NOT_A_PAGE, dtype=torch.int32, device=q.device)
    out = paged_decode_attention_ragged(
        q, call.kv_cache, padded, torch.cat((indices, spare)), lengths, call.scale, backend=backend
    )
    wanted, _ = paged_decode_attention_reference(*call.__dict__.values())
    assert (out[:2].double() - wanted).abs().max() < 0.05
    assert (out[2:] == 0).all()


def test_a_lane_does_not_depend_on_its_neighbours(generator, backend):
    """So that a finished sequence, seen one step late, changes no other's tokens."""
    call = make(generator, [300, 200, 130], max_length=8192)
    plan = call.plan()
    out, logsumexp = call.run(plan=plan, backend=backend)
    for others in ([300, 0, 0], [300, 1, 129]):
        lengths = torch.tensor(others, dtype=torch.int32, device=out.device)
        alone, alone_logsumexp = replace(call, kv_lengths=lengths).run(plan=plan, backend=backend)
        assert torch.equal(alone[0], out[0])
        assert torch.equal(alone_logsumexp[0], logsumexp[0])


def test_same_inputs_same_bits_and_counters_return_to_zero(generator, backend):
    call = make(generator, [300, 0, 290], heads=(4, 1), max_length=8192)
    plan = call.plan()
    first = call.run(plan=plan, backend=backend)
    for _ in range(20 if on_gpu else 2):
        for value, again in zip(first, call.run(plan=plan, backend=backend), strict=True):
            assert torch.equal(value, again)
    assert not plan.arrivals.any()


def test_a_plan_serves_smaller_batches(generator, backend):
    call = make(generator, [300, 65, 64])
    plan = call.plan()
    call.agrees(*call.run(plan=plan, backend=backend))
    few = Call(
        call.q[:2],
        call.kv_cache,
        call.block_tables[:2].contiguous()[:, :19],
        call.kv_lengths[:2],
        call.scale,
    )
    few.agrees(*few.run(plan=plan, backend=backend))


def test_queries_and_outputs_of_any_stride(generator, backend):
    call = make(generator, [70, 9])
    heads, head_dim = call.q.shape[1:]
    fused = torch.full((2, (heads + 4) * head_dim), torch.nan, dtype=call.q.dtype, device=call.q.device)
    q = fused[:, : heads * head_dim].view(2, heads, head_dim)
    q.copy_(call.q)
    wide = torch.full((2, heads, 2 * head_dim), torch.nan, dtype=call.q.dtype, device=call.q.device)
    result = paged_decode_attention(
        q,
        call.kv_cache,
        call.block_tables,
        call.kv_lengths,
        call.scale,
        out=wide[:, :, :head_dim],
        backend=backend,
    )
    assert torch.equal(result, call.run(backend=backend)[0])
    assert wide[:, :, head_dim:].isnan().all()


def test_no_lanes(generator):
    call = make(generator, [5])
    empty = Call(
        call.q[:0], call.kv_cache, call.block_tables[:0].contiguous(), call.kv_lengths[:0], call.scale
    )
    assert empty.run()[0].shape == (0, 4, 64)


def test_all_lanes_are_padding(generator, backend):
    call = make(generator, [0, 0])
    out, logsumexp = call.run(backend=backend)
    assert (out == 0).all()
    assert (logsumexp == -torch.inf).all()


def _columns(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def _misaligned(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)[1:].view(tensor.shape)


def _odd_strides(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(*tensor.shape[:2], tensor.shape[2] + 4, dtype=tensor.dtype, device=tensor.device)[
        :, :, : tensor.shape[2]
    ]


BAD: list[tuple[str, str, Callable[[torch.Tensor], object]]] = [
    ("q", "expected dtype bfloat16 or float16, got float32", torch.Tensor.float),
    ("q", "expected shape", lambda t: t[0]),
    ("q", "head_dim of q: expected one of 64, 128, 256, got 32", lambda t: t[..., :32].contiguous()),
    ("q", "contiguous rows", _columns),
    ("q", "aligned to 16", _misaligned),
    ("q", "multiples of 8", _odd_strides),
    ("q", r"q_heads: expected a multiple of kv_heads \(2\), got 3", lambda t: t[:, :3].contiguous()),
    ("q", "expected a tensor, got NoneType", lambda t: None),
    ("kv_cache", "expected dtype bfloat16 or float8_e4m3fn, got float16", torch.Tensor.half),
    ("kv_cache", "expected shape", lambda t: t[:, :1].contiguous()),
    ("kv_cache", "contiguous", _columns),
    ("kv_cache", "aligned to 16", _misaligned),
    (
        "kv_cache",
        "expected a page_size that is a power of two, got 12",
        lambda t: t[..., :12, :].contiguous(),
    ),
    ("block_tables", "expected dtype int32, got int64", torch.Tensor.long),
    ("block_tables", r"expected shape \[2, any\], got \[1, 9\]", lambda t: t[:1]),
    ("block_tables", "contiguous rows", _columns),
    ("kv_lengths", "expected dtype int32, got int64", torch.Tensor.long),
    ("kv_lengths", r"expected shape \[2\], got \[1\]", lambda t: t[:1]),
    ("kv_lengths", "expected device", lambda t: t.to("meta")),
]


@pytest.mark.parametrize(("name", "message", "spoil"), BAD)
def test_bad_inputs(generator, name, message, spoil):
    call = make(generator, [70, 130])
    arguments = call.__dict__ | {name: spoil(getattr(call, name))}
    out = torch.full_like(call.q, torch.nan)
    with pytest.raises(ValueError, match=message):
        paged_decode_attention(*arguments.values(), out=out)
    assert out.isnan().all()


def test_e4m3_is_refused_where_the_gpu_has_none(generator):
    call = make(generator, [70], cache_dtype=E4M3)
    with (
        target.building("sm80"),
        pytest.raises(ValueError, match=r"kv_cache: expected dtype bfloat16 on sm80, got float8_e4m3fn"),
    ):
        call.run()


def test_bad_results_plans_and_backends(generator):
    call = make(generator, [70, 130])
    given = tuple(call.__dict__.values())
    for options, message in (
        ({"out": torch.empty_like(call.q, dtype=FP16)}, "out: expected dtype bfloat16"),
        ({"out": call.q[:1]}, "out: expected shape"),
        ({"out": _odd_strides(call.q)}, "out: expected strides"),
        ({"logsumexp": torch.empty_like(call.q[..., 0])}, "logsumexp: expected dtype float32"),
        ({"logsumexp": call.q[:1, :, 0].float()}, "logsumexp: expected shape"),
        ({"plan": make(generator, [9]).plan()}, "plan: .* at least 2 lanes, got .* 1 lanes"),
        ({"plan": make(generator, [9, 9], heads=(4, 4)).plan()}, r"plan: .*\(4, 2, 64\).* \(4, 4, 64\)"),
        ({"backend": "fa2"}, "backend: expected one of"),
    ):
        with pytest.raises(ValueError, match=message):
            paged_decode_attention(*given, **options)
    for sizes, message in (
        ((0, 9, 4, 2, 64), "max_batch"),
        ((1, 0, 4, 2, 64), "max_length"),
        ((1, 9, 5, 2, 64), "q_heads"),
        ((1, 9, 4, 0, 64), "kv_heads"),
        ((1, 9, 4, 2, 96), "head_dim"),
    ):
        with pytest.raises(ValueError, match=message):
            DecodePlan.create(*sizes, device=call.q.device)


def test_bad_ragged_inputs(generator):
    call = make(generator, [70, 130])
    indptr, indices = ragged(call)
    for bad, message in (
        ((indptr.long(), indices), "kv_indptr: expected dtype int32"),
        ((indptr[:2], indices), r"kv_indptr: expected shape \[3\], got \[2\]"),
        ((indptr, indices[None]), "kv_indices: expected shape"),
        ((indptr, indices.repeat_interleave(2)[::2]), "kv_indices: expected a contiguous tensor"),
    ):
        with pytest.raises(ValueError, match=message):
            paged_decode_attention_ragged(call.q, call.kv_cache, *bad, call.kv_lengths, call.scale)


def test_debug_mode_checks_pages_and_lengths(generator, monkeypatch):
    monkeypatch.setattr(contract, "DEBUG", True)
    call = make(generator, [70, 130])
    call.run()  # entries past a lane's length may be anything
    pages = call.kv_cache.shape[0]
    for page in (pages, -1):
        tables = call.block_tables.clone()
        tables[0, 4] = page
        with pytest.raises(ValueError, match=rf"block_tables: expected values in \[0, {pages}\)"):
            replace(call, block_tables=tables).run()
    for length in (-1, 145):
        lengths = torch.full_like(call.kv_lengths, length)
        with pytest.raises(ValueError, match="kv_lengths: expected values in"):
            replace(call, kv_lengths=lengths).run()
    indptr, indices = ragged(call)
    rest = (call.kv_lengths, call.scale)
    paged_decode_attention_ragged(call.q, call.kv_cache, indptr, indices, *rest)
    wrong = indices.clone()
    wrong[3] = pages
    with pytest.raises(ValueError, match="kv_indices: expected values in"):
        paged_decode_attention_ragged(call.q, call.kv_cache, indptr, wrong, *rest)
    short = indptr.clone()
    short[1] -= 1
    with pytest.raises(ValueError, match="kv_indptr"):
        paged_decode_attention_ragged(call.q, call.kv_cache, short, indices, *rest)


def test_check_passes(device):
    error, bound = check(device)
    assert error <= bound


def test_build_cases_are_few_and_launch_without_a_gpu():
    launches = []
    cases = list(build_cases())
    for case in cases:
        with target.building("sm90"), launch.recording(lambda *recorded: launches.append(recorded)):
            if "cuda" not in case.name:
                case.call()
    assert len({case.name for case in cases}) == len(cases) <= 16
    assert launches


@gpu_only
def test_versions_agree(generator):
    call = make(generator, [3000, 0, 17, 512], heads=(32, 8), head_dim=128)
    ours, theirs = call.run(backend="cuda")[0], call.run(backend="triton")[0]
    # Each is within a unit of bf16 of the exact result, by its own order of sums.
    assert (ours.float() - theirs.float()).abs().max() <= 2.0**-7 * ours.float().abs().max()


@gpu_only
def test_cache_past_2_to_the_31_elements(generator, backend):
    device = generator.device
    pages = 2**31 // (2 * 8 * 16 * 128) + 100
    cache = torch.empty(pages, 2, 8, 16, 128, dtype=BF16, device=device)
    cache[-40:] = torch.randn(40, 2, 8, 16, 128, generator=generator, device=device)
    tables = torch.arange(pages - 1, pages - 41, -1, dtype=torch.int32, device=device)[None]
    q = torch.randn(1, 32, 128, generator=generator, device=device).to(BF16)
    call = Call(
        q, cache[-40:], tables - (pages - 40), torch.tensor([633], dtype=torch.int32, device=device), 0.1
    )
    out = paged_decode_attention(q, cache, tables, call.kv_lengths, 0.1, backend=backend)
    assert torch.equal(out, call.run(backend=backend)[0])


def _captured(call: Call, plan: DecodePlan, backend: str) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    out = torch.full_like(call.q, torch.nan)
    given = tuple(call.__dict__.values())
    paged_decode_attention(*given, plan=plan, out=out, backend=backend)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        paged_decode_attention(*given, plan=plan, out=out, backend=backend)
    return graph, out


@gpu_only
def test_lengths_change_after_capture(generator, backend):
    """Captured at length 1, replayed across pages, chunks and at the longest: bits of an eager call."""
    call = make(generator, [8192] * 3, heads=(32, 8), head_dim=128)
    longest = call.kv_lengths.clone()
    call.kv_lengths.fill_(1)
    plan = call.plan()
    graph, out = _captured(call, plan, backend)
    junk = [torch.full((1 << 20,), torch.nan, device=generator.device) for _ in range(8)]
    for lengths in ([1, 16, 17], [64, 65, 63], [8191, 0, 4096], [0, 0, 0], longest.tolist()):
        call.kv_lengths.copy_(torch.tensor(lengths, dtype=torch.int32))
        out.fill_(torch.nan)
        graph.replay()
        eager, _ = call.run(plan=plan, backend=backend)
        assert torch.equal(out, eager)
    assert len(junk) == 8


@gpu_only
@pytest.mark.parametrize("bucket", [1, 3, 12, 64, 112])
def test_replay_equals_eager_padded_to_the_bucket(generator, backend, bucket):
    """Any live lanes in any bucket: real rows as in an eager call of that bucket, padding rows 0."""
    lengths = [((lane * 977) % 2000) + 1 for lane in range(bucket)]
    call = make(generator, lengths, heads=(16, 4), head_dim=128, max_length=4096)
    plan = call.plan()
    graph, out = _captured(call, plan, backend)
    tables = call.block_tables.clone()
    for live in {1, bucket // 2, bucket} - {0}:
        call.kv_lengths[live:] = 0
        call.block_tables[live:] = NOT_A_PAGE
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, call.run(plan=plan, backend=backend)[0])
        call.kv_lengths.copy_(torch.tensor(lengths, dtype=torch.int32))
        call.block_tables.copy_(tables)
        assert (out[live:] == 0).all()
