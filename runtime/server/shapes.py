"""Models that a server can have without a checkpoint: shapes by name, for random weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch

from runtime.bench.engines import QWEN3_06B
from runtime.config import ExpertsConfig, ModelConfig
from runtime.parallel.source import WeightsSource
from runtime.weights import placeholder_weights, random_weights

SEED = 20
QWEN3_30B_A3B = ModelConfig(
    vocab_size=151936, hidden_size=2048, intermediate_size=6144, layers=48, q_heads=32, kv_heads=4, head_dim=128,
    max_length=4096, norm_eps=1e-6, rope={"rope_type": "default", "rope_theta": 1e6},
    experts=ExpertsConfig(128, 8, 768, normalize=True), fp8=True,
)  # fmt: skip

_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
_CPU = ModelConfig(
    vocab_size=304, hidden_size=64, intermediate_size=128, layers=2, q_heads=4, kv_heads=2, head_dim=32, max_length=256,
    norm_eps=1e-6, rope=_ROPE, dtype=torch.float32,
)  # fmt: skip
_GPU = replace(
    _CPU, hidden_size=512, intermediate_size=1024, layers=4, q_heads=8, kv_heads=4, head_dim=64, max_length=1024,
    dtype=torch.bfloat16,
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """A model to be.

    Attributes:
        weights: gives a rank's part of them.
        has_text: whether the smoke test's vocabulary is its own; of another one text would be noise.
    """

    config: ModelConfig
    weights: WeightsSource
    has_text: bool


def _tiny(dense: ModelConfig) -> dict[str, ModelConfig]:
    """Small ones, one for each thing that a model can have; the names that end in `wide` and `odd` divide among two ranks."""
    experts = ExpertsConfig(8, 2, max(dense.intermediate_size // 2, 128), normalize=True)
    on_gpu = dense.dtype is torch.bfloat16
    # Blocks of 128: each part of the packed projections has to be whole ones.
    fp8 = replace(dense, fp8=True) if on_gpu else replace(dense, fp8=True, kv_heads=4, hidden_size=128)
    shared = replace(fp8, q_heads=8, kv_heads=4, head_dim=64, intermediate_size=256)
    shared_experts = replace(shared, experts=ExpertsConfig(8, 2, 256, normalize=True))
    return {
        "tiny": dense,
        "tiny-tied": replace(dense, tied_embedding=True),
        "tiny-yarn": replace(dense, rope=_YARN),
        "tiny-moe": replace(dense, experts=experts),
        "tiny-fp8": fp8,
        "tiny-fp8-wide": shared,
        "tiny-moe-wide": replace(shared_experts, fp8=False),
        "tiny-moe-fp8": shared_experts,
        "tiny-odd": replace(dense, vocab_size=301),
    }


_LARGE = {"qwen3-0.6b": QWEN3_06B, "qwen3-30b-a3b": QWEN3_30B_A3B}
NAMES = (*_LARGE, *_tiny(_CPU))


def shape(name: str, device: str) -> Shape:
    """The shape of one of `NAMES` as a device ("cpu" or "cuda") takes it: in bfloat16 on a GPU, in float32 on a CPU."""
    on_gpu = device == "cuda"
    if name in _LARGE:
        large = _LARGE[name] if on_gpu else replace(_LARGE[name], dtype=torch.float32)
        return Shape(large, partial(placeholder_weights, seed=SEED), has_text=False)
    tiny: Mapping[str, ModelConfig] = _tiny(_GPU if on_gpu else _CPU)
    return Shape(tiny[name], partial(random_weights, seed=SEED), has_text=True)
