"""Attention of one token a sequence over pages, against float64."""

from dataclasses import replace

import pytest
import torch

from kernels import launch, target
from kernels.paged_decode_attention import (
    backends,
    build_cases,
    check,
    paged_decode_attention,
    paged_decode_attention_ragged,
    paged_decode_attention_reference,
)
from tests.kernels.paged_decode_kit import (
    BACKENDS,
    BF16,
    E4M3,
    FP16,
    NOT_A_PAGE,
    Call,
    gpu_only,
    make,
    ragged,
)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
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
