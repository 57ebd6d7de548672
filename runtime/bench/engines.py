"""What the parts of the benchmark share: a model's shape, buckets, and engines of it."""

import torch

from runtime.attention.select import make_attention
from runtime.config import ModelConfig
from runtime.engine import Engine, EngineOptions
from runtime.kernel_ops import KernelOps
from runtime.model import Model
from runtime.ops import Ops, ReferenceOps
from runtime.request import SamplingParameters
from runtime.weights import Weights

PAGE_SIZE = 16
# Twenty sizes up to 64 lanes.
BUCKETS = (1, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 64)
WARM = SamplingParameters(temperature=0.8, top_k=50, top_p=0.9, ignore_stop_ids=True)

# Qwen3-0.6B, as its config.json has it.
QWEN3_06B = ModelConfig(
    vocab_size=151936, hidden_size=1024, intermediate_size=3072, layers=28, q_heads=16, kv_heads=8, head_dim=128,
    max_length=4096, norm_eps=1e-6, rope={"rope_type": "default", "rope_theta": 1e6}, tied_embedding=True,
)  # fmt: skip


def make_engine(
    config: ModelConfig,
    weights: Weights,
    backend: str,
    *,
    max_batch: int,
    tokens: int,
    max_step_tokens: int,
    buckets: tuple[int, ...] | None,
    overlap: bool,
) -> Engine:
    """An engine over the kernels, or over their references where the weights are on a CPU.

    Args:
        backend: of attention, see `runtime.attention.select`.
        max_batch: most lanes of a step.
        tokens: of each lane, for which there are pages in the cache.
        max_step_tokens: most prompt tokens in a step.
        buckets: of captured steps, None for none.
        overlap: whether the next step is prepared while this one runs.
    """
    device = weights.embedding.device
    ops: Ops = KernelOps(device) if device.type == "cuda" else ReferenceOps()
    attention = make_attention(backend, config, max_batch, PAGE_SIZE, device)
    options = EngineOptions(
        pages=1 + max_batch * -(-tokens // PAGE_SIZE),
        page_size=PAGE_SIZE,
        max_batch=max_batch,
        max_step_tokens=max_step_tokens,
        reuse_prefixes=False,
        buckets=buckets,
        overlap=overlap,
    )
    return Engine(Model(config, weights, ops, attention), options)


def random_prompts(config: ModelConfig, count: int, length: int, seed: int) -> list[list[int]]:
    """`count` prompts of `length` token ids each."""
    generator = torch.Generator().manual_seed(seed)
    prompts: list[list[int]] = torch.randint(config.vocab_size, (count, length), generator=generator).tolist()
    return prompts
