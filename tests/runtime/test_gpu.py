"""The engine by the kernels on a GPU: logits within bf16's rounding of the references', tokens whatever the company."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from runtime.attention import AttentionBackend
from runtime.attention.select import make_attention
from runtime.batch import chunks_of, make_inputs
from runtime.config import ExpertsConfig, ModelConfig
from runtime.engine import Engine, EngineOptions
from runtime.kernel_ops import KernelOps
from runtime.kv_cache import PagePool, allocate_cache
from runtime.model import Model
from runtime.ops import ReferenceOps
from runtime.request import Request, SamplingParameters, Token
from runtime.scheduler import Scheduler
from runtime.weights import random_weights
from tests.runtime.kit import backends

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU: the kernels' engine runs on one"
)

DENSE = ModelConfig(
    vocab_size=1024, hidden_size=512, intermediate_size=1024, layers=3, q_heads=8, kv_heads=2, head_dim=128,
    max_length=2048, norm_eps=1e-6, rope={"rope_type": "default", "rope_theta": 1e6},
)  # fmt: skip
MODELS = {
    "dense": DENSE,
    "fp8": replace(DENSE, fp8=True),
    "experts": replace(DENSE, experts=ExpertsConfig(16, 4, 256, normalize=True)),
    "fp8 experts": replace(DENSE, fp8=True, experts=ExpertsConfig(16, 4, 256, normalize=True)),
}
BACKENDS = backends(torch.device("cuda"))
PROMPTS = [[1, 2, 3], list(range(20, 190)), [9], list(range(500, 533))]


def _attention(kind: str, config: ModelConfig, device: torch.device) -> AttentionBackend:
    return make_attention(kind, config, 64, 16, device)


@pytest.fixture
def logits_of(device: torch.device) -> Callable[[Model], list[torch.Tensor]]:
    """Logits of a prefill of all prompts and of one decode step after it."""

    def compute(model: Model) -> list[torch.Tensor]:
        caches = allocate_cache(model.config, 64, 16, torch.bfloat16, device)
        scheduler = Scheduler(PagePool(64, 16), 8, 2048)
        for number, prompt in enumerate(PROMPTS):
            scheduler.submit(Request(str(number), tuple(prompt), SamplingParameters(max_tokens=4), 0))
        seen = []
        for _ in range(2):
            plan = scheduler.next_step()
            assert plan is not None
            inputs = make_inputs(plan, 16, torch.zeros(8, dtype=torch.int32, device=device))
            seen.append(model(inputs, caches).double())
            chunks = chunks_of(plan)
            scheduler.collected(scheduler.launched(plan), plan)
            for lane, chunk in enumerate(chunks):
                chunk.request.pending -= 1
                chunk.request.tokens.append(Token(100 + lane))
        return seen

    return compute


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda")


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_logits_agree_with_the_references(
    name: str, kind: str, device: torch.device, logits_of: Callable[[Model], list[torch.Tensor]]
) -> None:
    config = MODELS[name]
    weights = random_weights(config, 3, device)
    ours = logits_of(Model(config, weights, KernelOps(device), _attention(kind, config, device)))
    expected = logits_of(Model(config, weights, ReferenceOps(), _attention("reference", config, device)))
    # Both round to bf16 at the same places: by at most 2^-8 of a value (its unit roundoff), by 2^-9 in the root of the
    # mean square. Where float32 sums differ in their last bits a value rounds to its neighbour. If every one of the 10
    # roundings in each of 3 layers fell out otherwise, there would be 60 independent errors: sqrt(60) * 2^-9 is 1.5e-2.
    # With fp8, the prefill's 207 tokens are quantized to e4m3 on the way: by at most 2^-4 of a value, by 2^-5 in the root of
    # the mean square, at each of 12 projections: sqrt(12) * 2^-5 is about 0.11. With experts, that may also exchange one of a
    # token's four experts for its runner-up.
    bound = 1.5e-2 if not config.fp8 else 0.15 if config.experts is None else 0.25
    for got, want in zip(ours, expected, strict=True):
        assert float((got - want).norm() / want.norm()) < bound


@pytest.mark.parametrize("kind", BACKENDS)
def test_tokens_are_reproducible_and_finite(kind: str, device: torch.device) -> None:
    weights = random_weights(DENSE, 3, device)
    sampling = SamplingParameters(temperature=0.8, top_k=50, top_p=0.9, seed=5, max_tokens=40, logprobs=2)
    runs = []
    for _ in range(2):
        model = Model(DENSE, weights, KernelOps(device), _attention(kind, DENSE, device))
        requests = Engine(model, EngineOptions(pages=64)).generate(PROMPTS, sampling)
        runs.append([[token.id for token in request.tokens] for request in requests])
    assert runs[0] == runs[1]
    assert all(len(tokens) == 40 for tokens in runs[0])
