"""An e4m3 cache through the engine: the same tokens whatever the company, large values held at 448, logits near bf16's."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch

from runtime.batch import StepInputs
from runtime.engine import Engine, EngineOptions
from runtime.model import Model
from runtime.ops import ReferenceOps
from runtime.request import FinishReason, Request, SamplingParameters
from runtime.weights import Weights, random_weights
from tests.runtime.kit import CONFIG, CPU, make_model
from tests.runtime.test_fp8_parity import Guided

E4M3 = torch.float8_e4m3fn
OPTIONS = EngineOptions(pages=64, page_size=4, max_batch=8, max_step_tokens=64, cache_dtype=E4M3)
PROMPTS = [[1, 2, 3], list(range(20, 47)), [9], [20, 21, 22, 23, 24, 99, 98, 97]]
WARM = SamplingParameters(temperature=1.0, top_k=40, top_p=0.95, max_tokens=12, seed=7)
GREEDY = SamplingParameters(max_tokens=12)


@cache
def weights() -> Weights:
    return random_weights(CONFIG, 5, CPU)


def engine(**options: object) -> Engine:
    return Engine(make_model(CONFIG, weights()), replace(OPTIONS, **options))  # type: ignore[arg-type]


def ids(request: Request) -> list[int]:
    return [token.id for token in request.tokens]


@cache
def alone(sampling: SamplingParameters) -> list[list[int]]:
    return [ids(engine().generate([prompt], sampling)[0]) for prompt in PROMPTS]


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_step_tokens": 5},
        {"pages": 14},
        {"page_size": 16, "pages": 20},
        {"buckets": (1, 2, 4)},
        {"buckets": (3,), "pages": 14, "max_step_tokens": 5},
    ],
    ids=["together", "chunked", "preempted", "long pages", "replayed", "replayed, preempted"],
)
def test_tokens_do_not_depend_on_company_chunks_replay_or_preemption(
    options: dict[str, object], sampling: SamplingParameters
) -> None:
    together = engine(**options)
    requests = together.generate(PROMPTS, sampling)
    assert [ids(request) for request in requests] == alone(sampling)
    assert {request.finish_reason for request in requests} == {FinishReason.LENGTH}
    if options.get("pages") == 14:
        assert together.scheduler.preemptions > 0
    if together.graphs is not None:
        assert sum(together.graphs.hits.values()) > 0


def test_a_reused_prefix_gives_the_same_tokens() -> None:
    shared = engine()
    first, second = (shared.generate([PROMPTS[1]], WARM)[0] for _ in range(2))
    assert second.cached_prefix == 24
    assert ids(first) == ids(second)


class Seeing(Model):
    """Keeps the last step's caches and logits."""

    def __call__(
        self, inputs: StepInputs, caches: Sequence[torch.Tensor], x: torch.Tensor | None = None
    ) -> torch.Tensor:
        self.caches = caches
        self.logits = super().__call__(inputs, caches, x)
        return self.logits


def test_values_beyond_448_are_held_there_and_nothing_becomes_nan() -> None:
    layers = list(weights().layers)
    qkv = layers[0].attention.qkv
    scaled = qkv.weight.clone()
    scaled[-CONFIG.kv_heads * CONFIG.head_dim :] *= 1000  # the values' rows
    layers[0] = replace(layers[0], attention=replace(layers[0].attention, qkv=replace(qkv, weight=scaled)))
    plain = make_model(CONFIG, replace(weights(), layers=tuple(layers)))
    model = Seeing(CONFIG, replace(weights(), layers=tuple(layers)), ReferenceOps(), plain.attention)
    (request,) = Engine(model, OPTIONS).generate([PROMPTS[1]], GREEDY)
    assert request.finish_reason == FinishReason.LENGTH
    values = model.caches[0][:, 1].float()
    assert bool(values.isfinite().all())
    assert float(values.max()) == 448
    assert float(values.min()) == -448
    assert int((values.abs() == 448).sum()) > 0.3 * int((values != 0).sum())
    assert bool(model.logits.isfinite().all())


def _logits(dtype: torch.dtype, path: torch.Tensor) -> torch.Tensor:
    """Logits [steps, lanes, vocab] of a greedy run that is made to choose `path`, with a cache of `dtype`."""
    model = Guided(CONFIG, weights(), ReferenceOps(), make_model(CONFIG, weights()).attention)
    model.path = path
    Engine(model, replace(OPTIONS, cache_dtype=dtype)).generate(PROMPTS, GREEDY)
    return torch.stack(model.seen[: GREEDY.max_tokens]).double()


def test_logits_are_near_those_of_a_bfloat16_cache() -> None:
    path = torch.tensor(alone(GREEDY))
    exact, bf16, e4m3 = (_logits(dtype, path) for dtype in (torch.float32, torch.bfloat16, E4M3))
    norm = exact.norm(dim=-1)
    # Each of 2 layers reads keys and values that were rounded by at most half a step, 2^-4 of a value in e4m3 and 2^-8 in
    # bfloat16: four independent errors, each at most that share of what the layer adds to the sum.
    assert bool(((e4m3 - bf16).norm(dim=-1) < 4**0.5 * (2**-4 + 2**-8) * norm).all())
    assert bool(((bf16 - exact).norm(dim=-1) < 4**0.5 * 2**-8 * norm).all())
    # And the cache was e4m3: its steps are 16 times bfloat16's.
    assert bool(((e4m3 - exact).norm(dim=-1) > 4 * (bf16 - exact).norm(dim=-1)).all())
