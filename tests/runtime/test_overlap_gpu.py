"""Overlap on a GPU: a stalled stream mixes no lanes up, and replays give the same bits with and without it."""

from dataclasses import replace

import pytest
import torch

from kernels.token_history import TokenHistory
from runtime.beam import BeamParameters
from runtime.engine import Engine, EngineOptions
from runtime.graph import DecodeGraphs
from runtime.kv_cache import allocate_cache
from runtime.processors import ProcessorParameters
from runtime.request import Request, SamplingParameters
from runtime.ring import Ring
from runtime.scheduler import Decode
from tests.runtime.kit import GPU_CONFIG, PAGE_SIZE, make_model, weights_for
from tests.runtime.test_graph import PAGES
from tests.runtime.test_graph import request as decoding
from tests.runtime.test_overlap import CarelessRing

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: there is no stream to stall")

DEVICE = torch.device("cuda")
STALL_CYCLES = 400_000_000
WARM = SamplingParameters(temperature=1.0, top_k=40, seed=3, max_tokens=24)


def caches_after(kind: type[Ring], *, stalled: bool) -> tuple[list[torch.Tensor], int]:
    """Four steps through two slots, each writing to pages of its own; the caches, and how often a slot was waited for."""
    config = GPU_CONFIG
    caches = allocate_cache(config, PAGES, PAGE_SIZE, config.dtype, DEVICE)
    history = TokenHistory(2, config.vocab_size, config.max_length, DEVICE)
    ring = kind(2, 2, DEVICE)
    model = make_model(config, weights_for(DEVICE), "xqa", max_batch=2)
    graphs = DecodeGraphs(model, caches, (2,), 2, 8, history, ring)
    graphs.capture()
    torch.cuda.synchronize()
    if stalled:
        torch.cuda._sleep(STALL_CYCLES)
    for step in range(4):
        requests = [decoding(2 * step + lane, 6) for lane in range(2)]
        for lane, one in enumerate(requests):
            one.row = lane
        slot = ring.acquire()
        graphs.launch(Decode(requests), slot)
        slot.done.record()
        if not stalled:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return caches, ring.waits


def test_01_a_stalled_stream_leaves_each_step_its_own_lanes() -> None:
    expected, waits = caches_after(Ring, stalled=False)
    assert waits == 0
    stalled, waits = caches_after(Ring, stalled=True)
    assert waits >= 1
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(stalled, expected, strict=True))
    planted, _ = caches_after(CarelessRing, stalled=True)
    assert not all(torch.equal(ours, theirs) for ours, theirs in zip(planted, expected, strict=True))


def play(backend: str, pages: int, *, overlap: bool) -> list[Request]:
    """A fixed schedule over one bucket, so that every step is computed alike."""
    options = EngineOptions(
        pages, PAGE_SIZE, max_batch=8, max_step_tokens=64, buckets=(8,), overlap=overlap, reuse_prefixes=False
    )
    serving = Engine(make_model(GPU_CONFIG, weights_for(DEVICE), backend, max_batch=8), options)
    penalised = replace(WARM, processors=ProcessorParameters(repetition_penalty=1.3, min_tokens=4))
    stopping = replace(WARM, stop_ids=frozenset(range(0, 300, 19)), logprobs=2)
    searched = SamplingParameters(max_tokens=10, logprobs=0)
    requests = [serving.submit([1, 2, 3], WARM), serving.submit(list(range(40, 51)), stopping)]
    aborted = serving.submit([8], WARM)
    for step in range(400):
        if step == 3:
            requests.append(serving.submit([5] * 9, penalised))
        if step == 5:
            requests += serving.submit([6, 7], WARM, n=2).siblings
        if step == 8:
            serving.abort(aborted.id)
            requests += serving.submit([9, 4], searched, beams=BeamParameters(3, return_sequences=3)).siblings
        serving.step()
        if not serving.has_work():
            break
    assert not serving.has_work()
    assert serving._pool.available == serving._pool.capacity
    return requests


@pytest.mark.parametrize("pages", [160, 24])
@pytest.mark.parametrize("backend", ["triton", "xqa"])
def test_20_overlap_changes_no_answer_bit_for_bit_on_a_gpu(backend: str, pages: int) -> None:
    on, off = play(backend, pages, overlap=True), play(backend, pages, overlap=False)
    assert len(on) == 8
    for ours, plain in zip(on, off, strict=True):
        assert (ours.tokens, ours.finish_reason, ours.error) == (
            plain.tokens, plain.finish_reason, plain.error
        )  # fmt: skip
