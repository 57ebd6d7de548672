"""The benchmark's floor is the bytes that the model really has, and its requests are what an engine would make."""

from dataclasses import replace

import pytest
import torch

from runtime.__main__ import main
from runtime.bench import decode
from runtime.weights import Mlp, random_weights
from tests.runtime.kit import CONFIG, CPU


def test_the_floor_counts_every_matrix_once_and_the_cache() -> None:
    config = replace(CONFIG, tied_embedding=True, dtype=torch.bfloat16)
    weights = random_weights(config, 0, CPU)
    matrices = [weights.head]
    for layer in weights.layers:
        assert isinstance(layer.mlp, Mlp)
        projections = (layer.attention.qkv, layer.attention.o, layer.mlp.gate_up, layer.mlp.down)
        matrices += [projection.weight for projection in projections]
    cache = config.layers * 3 * 100 * 2 * config.kv_heads * config.head_dim * 2
    assert decode.floor_bytes(config, batch=3, context=100) == sum(m.nbytes for m in matrices) + cache


def test_requests_hold_pages_of_their_own_for_their_context() -> None:
    requests = decode._requests(batch=4, context=40)
    pages = [page for request in requests for page in request.pages]
    assert sorted(pages) == list(range(1, 4 * 3 + 1))
    assert {(request.length, request.computed) for request in requests} == {(40, 39)}


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU here can run the benchmark")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 1
    assert "no GPU" in capsys.readouterr().out
