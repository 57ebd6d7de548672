"""Models that two ranks can share, and weights that go wrong on one of them; other processes import this."""

from dataclasses import replace
from functools import partial

import torch

from runtime.config import ExpertsConfig, ModelConfig
from runtime.engine import EngineOptions
from runtime.parallel.shard import Shard
from runtime.parallel.source import EngineSource
from runtime.weights import Linear, Weights, WeightsError, random_weights
from tests.runtime.kit import CONFIG, GPU_CONFIG, PAGE_SIZE

# No choice among tokens is as close, under this seed, as what the rounding of experts changes.
SEED = 9
# A vocabulary that two ranks have to fill up, since each has a multiple of 8 rows.
DENSE = replace(CONFIG, vocab_size=301)
FP8 = replace(DENSE, hidden_size=128, intermediate_size=256, head_dim=64, kv_heads=4, fp8=True)
# The last layer alone has experts: what their rounding to bf16 and e4m3 changes reaches no router and no cache.
_EXPERTS = ExpertsConfig(8, 2, 256, normalize=True, dense_layers=frozenset({0}))
MODELS = {
    "dense": DENSE,
    "one kv head": replace(DENSE, kv_heads=1, tied_embedding=True),
    "experts": replace(DENSE, hidden_size=128, experts=_EXPERTS),
    "fp8": FP8,
    "fp8 experts": replace(FP8, experts=_EXPERTS),
}
_GPU_FP8 = replace(GPU_CONFIG, hidden_size=512, head_dim=64, q_heads=8, kv_heads=4, layers=3, fp8=True)
GPU_MODELS = {
    "dense": replace(GPU_CONFIG, vocab_size=301, layers=3),
    "fp8": _GPU_FP8,
    "fp8 experts": replace(_GPU_FP8, experts=ExpertsConfig(16, 4, 256, normalize=True)),
}
OPTIONS = EngineOptions(pages=60, page_size=PAGE_SIZE, max_batch=6, max_step_tokens=16)


def source(config: ModelConfig = DENSE, weights: object = None, **options: object) -> EngineSource:
    """An engine of random weights."""
    drawn = weights or partial(random_weights, seed=SEED)
    return EngineSource(config, replace(OPTIONS, **options), drawn)  # type: ignore[arg-type]


def fails_on_rank_1(*, config: ModelConfig, device: torch.device, shard: Shard) -> Weights:
    if shard.rank == 1:
        raise WeightsError("model.norm.weight: missing\nand more")
    return random_weights(config, SEED, device, shard)


def other_weights_on_rank_1(*, config: ModelConfig, device: torch.device, shard: Shard) -> Weights:
    return random_weights(config, SEED + shard.rank, device, shard)


def narrow_on_rank_1(*, config: ModelConfig, device: torch.device, shard: Shard) -> Weights:
    """Weights that no step can be computed with: a projection of rank 1 takes too few features."""
    weights = random_weights(config, SEED, device, shard)
    if shard.rank == 0:
        return weights
    first, *others = weights.layers
    o = Linear(first.attention.o.weight[:, 1:].contiguous())
    return replace(weights, layers=(replace(first, attention=replace(first.attention, o=o)), *others))
