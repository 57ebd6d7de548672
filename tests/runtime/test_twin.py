"""The benchmark's peer computes what the engine computes: the same logits for the same cache."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from runtime.batch import StepInputs
from runtime.bench import twin
from runtime.weights import random_weights
from tests.runtime.kit import CONFIG, CPU, make_model


def test_the_twin_is_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIG, max_length=64)
    weights = random_weights(config, 2, CPU)
    batch, context = 3, 8
    peer = twin.TorchTwin(config, weights, batch, context)
    seen = []
    monkeypatch.setattr(twin, "_sample", lambda logits: seen.append(logits) or logits.argmax(-1))
    peer.step()

    # One page of 8 tokens a lane: the contiguous cache is the paged one, laid out lane by lane.
    caches = [
        torch.zeros(batch + 1, 2, config.kv_heads, context, config.head_dim) for _ in range(config.layers)
    ]
    for cache, contiguous in zip(caches, peer._cache, strict=True):
        cache[1:, 0], cache[1:, 1] = contiguous[0], contiguous[1]
    lengths = torch.full((batch,), context - 1, dtype=torch.int32)
    inputs = StepInputs(
        token_ids=peer._ids.int(),
        positions=lengths,
        slots=(torch.arange(batch) + 1) * context + context - 1,
        query_indptr=torch.arange(batch + 1, dtype=torch.int32),
        sequence_lengths=lengths,
        kv_lengths=lengths + 1,
        block_tables=(torch.arange(batch, dtype=torch.int32) + 1)[:, None],
        last_tokens=None,
        max_query_length=1,
        is_decode=True,
        host_kv_lengths=np.full(batch, context, np.int32),
    )
    expected = make_model(config, weights)(inputs, caches)
    torch.testing.assert_close(seen[0], expected, rtol=1e-4, atol=1e-4)
