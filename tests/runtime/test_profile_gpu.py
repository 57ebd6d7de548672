"""A thousand decode steps on a GPU: no device allocation, no wait but for events, no pageable copy; planted ones are seen."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from runtime.attention.select import make_attention
from runtime.config import ModelConfig
from runtime.engine import Engine, EngineOptions
from runtime.kernel_ops import KernelOps
from runtime.model import Model
from runtime.profile.record import audit
from runtime.profile.session import Session
from runtime.profile.trace import calls_by_name, replays
from runtime.request import SamplingParameters
from runtime.weights import random_weights

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU: a CPU makes no CUDA calls to count"
)

LAYERS, LANES, BUCKET, CONTEXT, STEPS = 3, 6, 8, 16, 1000
PLANTED, PLANTED_STEPS, WARM = 5, 100, 5
CONFIG = ModelConfig(
    vocab_size=1024, hidden_size=512, intermediate_size=1024, layers=LAYERS, q_heads=8, kv_heads=2, head_dim=128,
    max_length=2048, norm_eps=1e-6, rope={"rope_type": "default", "rope_theta": 1e6},
)  # fmt: skip
MEBI = 1 << 20
Plant = Callable[[list[torch.Tensor], torch.Tensor], None]


def make_session(overlap: bool) -> Session:
    """Six lanes in a bucket of eight, in steady decode steps that cross page boundaries."""
    device = torch.device("cuda")
    attention = make_attention("xqa", CONFIG, BUCKET, 16, device)
    model = Model(CONFIG, random_weights(CONFIG, 0, device), KernelOps(device), attention)
    options = EngineOptions(
        pages=1 + LANES * CONFIG.max_length // 16, max_batch=BUCKET, buckets=(BUCKET,), overlap=overlap
    )
    sampling = SamplingParameters(
        temperature=0.8, top_k=50, top_p=0.9, max_tokens=STEPS + 300, ignore_stop_ids=True
    )
    return Session(Engine(model, options), overlap, LANES, CONTEXT, sampling, CONFIG.vocab_size)


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "no overlap"])
def test_a_thousand_decode_steps_allocate_nothing_and_wait_for_events_alone(
    overlap: bool, tmp_path: Path
) -> None:
    session = make_session(overlap)
    seen = audit(lambda: session.advance(STEPS), tmp_path / "trace.json", lambda: session.advance(WARM))
    found = replays(seen.trace)
    assert len(found) == STEPS, f"the trace does not hold what it is to prove: {calls_by_name(seen.trace)}"
    assert min(len(replay.activities) for replay in found) > LAYERS, "a graph's kernels are not in the trace"
    broken = {name: count for name, count in seen.counts.items() if count}
    assert not broken, f"in {STEPS} steps: {broken}; calls: {dict(calls_by_name(seen.trace))}"


def allocation(kept: list[torch.Tensor], device: torch.Tensor) -> None:
    kept.append(torch.empty(64 * MEBI, dtype=torch.uint8, device="cuda"))


def pinned_allocation(kept: list[torch.Tensor], device: torch.Tensor) -> None:
    kept.append(torch.empty(64 * MEBI, dtype=torch.uint8, pin_memory=True))


def device_wide_sync(kept: list[torch.Tensor], device: torch.Tensor) -> None:
    torch.cuda.synchronize()


def pageable_copy(kept: list[torch.Tensor], device: torch.Tensor) -> None:
    device.copy_(torch.zeros(4), non_blocking=True)


def blocking_copy(kept: list[torch.Tensor], device: torch.Tensor) -> None:
    kept[0].copy_(device)


def read_back(kept: list[torch.Tensor], device: torch.Tensor) -> None:
    device.tolist()


@dataclass
class Planted:
    """One session for all plants, and what its steps count with nothing planted."""

    session: Session
    device: torch.Tensor
    clean: Counter[str]

    def loop(self, plant: Plant, kept: list[torch.Tensor]) -> None:
        for step in range(PLANTED_STEPS):
            self.session.advance(1)
            if step % (PLANTED_STEPS // PLANTED) == 0:
                plant(kept, self.device)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    session = make_session(overlap=True)
    path = tmp_path_factory.mktemp("clean") / "trace.json"
    clean = audit(lambda: session.advance(PLANTED_STEPS), path, lambda: session.advance(WARM)).counts
    return Planted(session, torch.zeros(4, device="cuda"), clean)


@pytest.mark.parametrize(
    ("plant", "counted"),
    [
        (allocation, {"device allocations", "tensors made", "segments taken"}),
        (pinned_allocation, {"pinned allocations"}),
        (device_wide_sync, {"device-wide syncs"}),
        (pageable_copy, {"pageable copies"}),
        (blocking_copy, {"stream syncs"}),
        (read_back, {"pageable copies", "stream syncs"}),
    ],
)
def test_a_planted_violation_is_counted(
    plant: Plant, counted: set[str], planted: Planted, tmp_path: Path
) -> None:
    kept = [torch.zeros(4, pin_memory=True)]
    torch.cuda.empty_cache()  # else an allocation may be served without the device
    seen = audit(
        lambda: planted.loop(plant, kept), tmp_path / "trace.json", lambda: planted.session.advance(WARM)
    )
    counts = seen.counts
    more = {name: counts[name] - planted.clean[name] for name in counts}
    assert {name: count for name, count in more.items() if count} == dict.fromkeys(counted, PLANTED)
