"""What is asked: models of seeded random weights, requests, and the engine's options. Data, and nothing but."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from runtime.config import ExpertsConfig, ModelConfig
from runtime.engine import EngineOptions
from runtime.request import SamplingParameters

SEED = 20

_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}

CPU_DENSE = ModelConfig(
    vocab_size=304, hidden_size=64, intermediate_size=128, layers=2, q_heads=4, kv_heads=2, head_dim=32, max_length=256,
    norm_eps=1e-6, rope=_ROPE, dtype=torch.float32,
)  # fmt: skip
GPU_DENSE = replace(
    CPU_DENSE, hidden_size=512, intermediate_size=1024, layers=4, q_heads=8, kv_heads=4, head_dim=64, max_length=1024,
    dtype=torch.bfloat16,
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One engine with one model, and the requests that it serves together.

    Attributes:
        prompts: texts, or token ids.
        sampling: for all prompts, or one for each.
        backend: attention on a GPU; on a CPU there is the reference alone.
        ranks: processes that share the model, a GPU each where there are GPUs.
        twin: name of the case that gives the answers expected of this one, in the same run; None compares with kept ones.
    """

    name: str
    model: ModelConfig
    prompts: Sequence[str | Sequence[int]]
    sampling: SamplingParameters | Sequence[SamplingParameters]
    options: EngineOptions = field(default_factory=lambda: EngineOptions(pages=96, page_size=16, max_batch=8))
    backend: str = "xqa"
    ranks: int = 1
    twin: str | None = None


GREEDY = SamplingParameters(max_tokens=24, logprobs=2, ignore_stop_ids=True)
WARM = SamplingParameters(temperature=0.9, top_k=40, top_p=0.95, seed=7, max_tokens=24, logprobs=2)
TEXTS = ("white smoke", "The reviewers agree: ", "für 12 € 🎺")
IDS = (list(range(5, 70)), [9], list(range(200, 233)))


def _cases(dense: ModelConfig, backend: str) -> list[Case]:
    small = {"pages": 96, "page_size": 16, "max_batch": 8}
    inner = dense.intermediate_size // 2
    experts = replace(dense, experts=ExpertsConfig(8, 2, max(inner, 128), normalize=True))
    cases = [
        Case("greedy", dense, TEXTS, GREEDY),
        Case("sampled", dense, TEXTS, [replace(WARM, seed=seed) for seed in (1, 2, 3)]),
        Case("replayed", dense, IDS, WARM, EngineOptions(**small, buckets=(1, 2, 4))),
        Case("chunked prefill", dense, IDS, GREEDY, EngineOptions(**small, max_step_tokens=16)),
        Case(
            "preempted",
            dense,
            IDS,
            WARM,
            EngineOptions(pages=9, page_size=16, max_batch=8, reuse_prefixes=False),
        ),
        Case(
            "reused prefix",
            dense,
            (IDS[0], [*IDS[0], 3, 4]),
            GREEDY,
            EngineOptions(**small, max_step_tokens=80),
        ),
        Case(
            "stop string", dense, TEXTS[:1], replace(WARM, temperature=2.0, stop=("zz", "C"), max_tokens=60)
        ),
        Case("tied embedding", replace(dense, tied_embedding=True), TEXTS, GREEDY),
        Case("yarn", replace(dense, rope=_YARN), IDS, GREEDY),
        Case("experts", experts, IDS, GREEDY),
        Case(
            "e4m3 cache",
            dense,
            IDS,
            GREEDY,
            EngineOptions(**small, max_step_tokens=16, buckets=(1, 2, 4), cache_dtype=torch.float8_e4m3fn),
        ),
    ]
    return [replace(case, backend=backend, name=f"{case.name}, {backend}") for case in cases]


def _tp2(dense: ModelConfig) -> list[Case]:
    """Two ranks. One bucket, so that a step is computed alike whenever others end."""
    small = {"pages": 96, "page_size": 16, "max_batch": 8, "max_step_tokens": 48, "buckets": (8,)}
    mixed = [replace(GREEDY, max_tokens=40), replace(WARM, seed=1), GREEDY, WARM, replace(WARM, seed=2)]
    prompts = (*IDS, [*IDS[0], 3, 4], list(range(100, 140)))
    fp8 = replace(
        dense, fp8=True, q_heads=8, kv_heads=4, head_dim=64, hidden_size=max(128, dense.hidden_size)
    )
    experts = ExpertsConfig(8, 2, 256, normalize=True)
    moe = replace(fp8, intermediate_size=256, experts=experts)
    sync = "moe_fp8pb_cuda_graph_sync_tp2"
    cases = [
        Case(sync, moe, prompts, mixed, EngineOptions(**small, overlap=False)),
        Case("moe_fp8pb_cuda_graph_async_tp2", moe, prompts, mixed, EngineOptions(**small), twin=sync),
        Case("moe_fp8pb_eager_tp2", moe, prompts, mixed, EngineOptions(**small | {"buckets": None})),
        Case("moe_cuda_graph_async_tp2", replace(moe, fp8=False), prompts, mixed, EngineOptions(**small)),
        Case(
            "fp8pb_cuda_graph_async_tp2",
            replace(fp8, intermediate_size=256),
            prompts,
            mixed,
            EngineOptions(**small),
        ),
        Case("cuda_graph_async_tp2", replace(dense, vocab_size=301), prompts, mixed, EngineOptions(**small)),
    ]
    return [replace(case, ranks=2) for case in cases]


def _fp8(dense: ModelConfig) -> ModelConfig:
    return replace(dense, fp8=True, q_heads=4, kv_heads=4, hidden_size=max(128, dense.hidden_size))


SUITES = {
    "cpu": [
        *_cases(CPU_DENSE, "reference"),
        Case("fp8", _fp8(CPU_DENSE), TEXTS, GREEDY, backend="reference"),
    ],
    "gpu": [
        *_cases(GPU_DENSE, "xqa"),
        *_cases(GPU_DENSE, "triton"),
        Case("fp8", replace(GPU_DENSE, fp8=True), TEXTS, GREEDY),
    ],
    "tp2": _tp2(GPU_DENSE if torch.cuda.is_available() else CPU_DENSE),
}
