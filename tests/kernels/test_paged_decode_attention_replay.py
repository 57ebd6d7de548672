"""Where paged_decode_attention gives the same bits: again, among other neighbours, and replayed from a graph."""

from dataclasses import replace

import pytest
import torch

from kernels.paged_decode_attention import (
    DecodePlan,
    paged_decode_attention,
    paged_decode_attention_ragged,
)
from tests.kernels.paged_decode_kit import BACKENDS, NOT_A_PAGE, ON_GPU, Call, gpu_only, make, ragged


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


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
    for _ in range(20 if ON_GPU else 2):
        for value, again in zip(first, call.run(plan=plan, backend=backend), strict=True):
            assert torch.equal(value, again)
    assert not plan.arrivals.any()


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
