"""Lanes that fill a bucket up are no tokens to the experts: nothing is computed for them, nothing of them is seen."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from kernels.token_history import TokenHistory
from runtime.begin_step import LaneStart
from runtime.config import ExpertsConfig, ModelConfig
from runtime.graph import DecodeGraphs
from runtime.kernel_ops import KernelOps
from runtime.kv_cache import allocate_cache
from runtime.model import Model
from runtime.ops import Ops, ReferenceOps
from runtime.parallel.group import Solo
from runtime.parallel.ops import ShardedOps
from runtime.ring import Ring
from runtime.scheduler import Decode
from runtime.weights import Experts, random_weights
from tests.runtime.kit import PAGE_SIZE, config_for, make_model
from tests.runtime.test_graph import MAX_PAGES, PAGES
from tests.runtime.test_graph import request as decoding

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"
_ROUTED = ExpertsConfig(16, 4, 256, normalize=True)
MODELS = {
    "experts": replace(config_for(DEVICE), hidden_size=512, experts=_ROUTED),
    "fp8 experts": replace(
        config_for(DEVICE), hidden_size=512, intermediate_size=256, head_dim=128, fp8=True, experts=_ROUTED
    ),
}
LIVE, BUCKET = 5, 8


class Poisoned(Model):
    """Puts a value into every lane of a captured step after the first `live`."""

    live, value = LIVE, float("nan")

    def begin(self, start: LaneStart) -> torch.Tensor:
        x = super().begin(start)
        x[self.live :] = self.value
        return x


def replayed(model: Model, counts: Sequence[int]) -> list[torch.Tensor]:
    """Logits of steps of so many lanes, all by the bucket of eight."""
    generator = torch.Generator(DEVICE).manual_seed(1)
    caches = allocate_cache(model.config, PAGES, PAGE_SIZE, model.config.dtype, DEVICE)
    for cache in caches:
        cache.normal_(generator=generator)
    history = TokenHistory(BUCKET, model.config.vocab_size, model.config.max_length, DEVICE)
    ring = Ring(1, BUCKET, DEVICE)
    graphs = DecodeGraphs(model, caches, (BUCKET,), BUCKET, MAX_PAGES, history, ring)
    seen = []
    for count in counts:
        slot = ring.acquire()
        launched = graphs.launch(Decode([decoding(number, 9 + number) for number in range(count)]), slot)
        slot.done.record()
        assert launched is not None
        seen.append(launched.logits.clone())
    return seen


def model_of(config: ModelConfig, kind: type[Model] = Model, ops: Ops | None = None) -> Model:
    weights = random_weights(config, 5, DEVICE)
    plain = make_model(config, weights, "xqa")
    return kind(config, weights, ops or (KernelOps(DEVICE) if ON_GPU else ReferenceOps()), plain.attention)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("name", MODELS)
def test_13_poisoned_padding_rows_have_no_effect(name: str, value: float) -> None:
    model = model_of(MODELS[name], Poisoned)
    assert isinstance(model, Poisoned)
    model.value = value
    poisoned = replayed(model, [LIVE])[0]
    clean = replayed(model_of(MODELS[name]), [LIVE])[0]
    assert bool(clean.isfinite().all())
    assert torch.equal(poisoned, clean)


class Counting(ShardedOps):
    """Keeps how many tokens each call of the experts was told to be live."""

    def __init__(self, ops: Ops, vocab_size: int) -> None:
        super().__init__(ops, Solo(), vocab_size)
        self.live: list[torch.Tensor | None] = []

    def experts(self, *arguments: object, live: torch.Tensor | None = None, **named: object) -> torch.Tensor:
        self.live.append(live)
        return super().experts(*arguments, live=live, **named)  # type: ignore[arg-type]


def test_13_experts_are_told_how_many_lanes_are_live() -> None:
    config = MODELS["experts"]
    ops = Counting(KernelOps(DEVICE) if ON_GPU else ReferenceOps(), config.vocab_size)
    model = model_of(config, ops=ops)
    told = []
    for count in (5, 8, 1, 3):
        replayed(model, [count])
        live = ops.live[-1]
        assert live is not None
        assert (live.dtype, live.shape, live.device.type) == (torch.int32, (1,), DEVICE.type)
        told.append(int(live))
    assert told == [5, 8, 1, 3]


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_13_no_expert_is_run_for_padding(name: str, residual: bool) -> None:
    """Its rows come out as they went in, or as nothing."""
    config = MODELS[name]
    layer = random_weights(config, 5, DEVICE).layers[0]
    assert isinstance(layer.mlp, Experts)
    assert config.experts is not None
    ops: Ops = KernelOps(DEVICE) if ON_GPU else ReferenceOps()
    x = torch.randn(BUCKET, 512, generator=torch.Generator().manual_seed(3)).to(DEVICE, config.dtype)
    live = torch.tensor([LIVE], dtype=torch.int32, device=DEVICE)
    given = (x, layer.post_attention_norm, config.norm_eps, layer.mlp, config.experts)
    out = ops.experts(*given, live=live, residual=residual)
    wanted = ops.experts(*given, residual=residual)
    assert torch.equal(out[:LIVE], wanted[:LIVE])
    assert torch.equal(out[LIVE:], x[LIVE:] if residual else torch.zeros_like(x[LIVE:]))
    assert not torch.equal(out[LIVE:], wanted[LIVE:])
