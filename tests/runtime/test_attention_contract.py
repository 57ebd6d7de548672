"""What every attention backend owes the rotary operation beside it: to read the step's lengths and leave them alone.

Faults are planted into each backend at its `replan`, the one place where its host code runs between two replays, with
rotary positions on. Each must be a typed error before anything is computed. On a CPU the reference backend and the
stand-in for graphs run the same calls.
"""

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from kernels.token_history import TokenHistory
from runtime.attention import AttentionBackend, AttentionBackendError, AttentionParameters
from runtime.attention.ragged_pages import ragged_pages, require_page_size
from runtime.attention.select import KINDS, make_attention
from runtime.batch import StepInputs, make_inputs
from runtime.contract import GraphContractError
from runtime.graph import DecodeGraphs
from runtime.kv_cache import allocate_cache
from runtime.model import Model
from runtime.request import Request, SamplingParameters, Token
from runtime.ring import Ring
from runtime.rope import DecodeRope
from runtime.scheduler import Decode
from tests.runtime.kit import (
    CONFIG,
    CPU,
    GPU_CONFIG,
    PAGE_SIZE,
    backends,
    config_for,
    make_model,
    weights_for,
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PAGES = 80
MAX_PAGES = 8
MAX_BATCH = 8
_generations = itertools.count()


def request(number: int, length: int) -> Request:
    """A sequence of `length` tokens of which all but the newest are in the cache; it has pages of its own."""
    prompt = tuple((7 * number + at) % 290 for at in range(length - 1))
    made = Request(str(number), prompt, SamplingParameters(max_tokens=9), seed=number)
    made.tokens.append(Token(number % 290))
    made.computed = length - 1
    made.pages = [1 + number * MAX_PAGES + page for page in range(-(-length // PAGE_SIZE))]
    made.row, made.generation, made.decodes = number, next(_generations), True
    return made


@dataclass
class Bench:
    """One model with graphs and a cache, and a twin cache for eager steps."""

    model: Model
    graphs: DecodeGraphs
    ring: Ring
    history: TokenHistory
    caches: list[torch.Tensor]
    twins: list[torch.Tensor]

    @classmethod
    def of(cls, model: Model) -> "Bench":
        config = model.config
        caches, twins = (allocate_cache(config, PAGES, PAGE_SIZE, config.dtype, DEVICE) for _ in range(2))
        for layer in caches:
            layer.normal_(generator=torch.Generator(DEVICE).manual_seed(1))
        history = TokenHistory(MAX_BATCH, config.vocab_size, config.max_length, DEVICE)
        ring = Ring(2, MAX_BATCH, DEVICE)
        graphs = DecodeGraphs(model, caches, (1, 2, 4, 8), MAX_BATCH, MAX_PAGES, history, ring)
        return cls(model, graphs, ring, history, caches, twins)

    def replay(self, requests: Sequence[Request]) -> tuple[torch.Tensor, Sequence[Request]]:
        """Logits of a replayed step, and the requests in the order of its lanes."""
        slot = self.ring.acquire()
        launched = self.graphs.launch(Decode(requests), slot)
        slot.done.record()
        assert launched is not None
        return launched.logits.clone(), launched.requests

    @torch.inference_mode()
    def both(self, requests: Sequence[Request]) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """Logits of a step, replayed and eager, from equal caches; the lengths of its lanes."""
        for cache, twin in zip(self.caches, self.twins, strict=True):
            twin.copy_(cache)
        replayed, lanes = self.replay(requests)
        eager = self.model(make_inputs(Decode(lanes), PAGE_SIZE, self.history.last_ids), self.twins)
        return replayed, eager, [one.computed + 1 for one in lanes]


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal on a CPU, where both sum alike; on a GPU a bucket may split its sums otherwise than the raw batch."""
    bound = 0.0 if DEVICE.type == "cpu" else 1.5e-2
    assert float((got.double() - want.double()).norm()) <= bound * float(want.double().norm())


@dataclass
class Held:
    """A backend's parameters, and a buffer that it owns."""

    inner: AttentionParameters
    inputs: StepInputs
    scratch: torch.Tensor


Fault = Callable[[Held, DecodeRope], object]


class Planted:
    """A backend that does as the one it stands before, until `fault` is set: then that happens at each `replan`."""

    def __init__(self, real: AttentionBackend) -> None:
        self._real = real
        self.name = real.name
        self.fault: Callable[[Held], object] | None = None
        self.seen: list[list[int]] = []

    def plan(self, inputs: StepInputs) -> Held:
        return Held(self._real.plan(inputs), inputs, torch.zeros(4, device=DEVICE))

    def replan(self, parameters: Held) -> None:
        self.seen.append(parameters.inputs.host_kv_lengths.tolist())
        self._real.replan(parameters.inner)
        if self.fault is not None:
            self.fault(parameters)

    def refresh(self, parameters: Held) -> None:
        self._real.refresh(parameters.inner)

    def run(self, query: torch.Tensor, cache: torch.Tensor, parameters: Held) -> torch.Tensor:
        return self._real.run(query, cache, parameters.inner)


Setup = tuple[Bench, Planted, list[DecodeRope]]


@pytest.fixture(params=backends(DEVICE))
def planted(request: pytest.FixtureRequest) -> Setup:
    """Graphs over a planted backend, none captured yet, and the rotary operations that they will have made."""
    model = make_model(config_for(DEVICE), weights_for(DEVICE), request.param)
    backend = Planted(model.attention)
    model.attention = backend
    ropes: list[DecodeRope] = []
    make = model.decode_rope

    def remembered() -> DecodeRope:
        ropes.append(make())
        return ropes[-1]

    model.decode_rope = remembered  # type: ignore[method-assign]
    return Bench.of(model), backend, ropes


def _replace(name: str) -> Fault:
    """Put a copy in place of one of the step's tensors."""
    return lambda held, rope: object.__setattr__(held.inputs, name, vars(held.inputs)[name].clone())


def _replace_rope_lengths(held: Held, rope: DecodeRope) -> None:
    rope._lengths = rope.sequence_lengths.clone()


def _reallocate_scratch(held: Held, rope: DecodeRope) -> None:
    held.scratch = held.scratch.clone()


FAULTS: dict[str, tuple[Fault, str]] = {
    "puts other lengths under the rotary operation": (_replace_rope_lengths, r"rope\.sequence_lengths: expected"),
    "puts other lengths into the inputs": (_replace("sequence_lengths"), "sequence_lengths: expected where the step"),
    "puts other cached lengths into the inputs": (_replace("kv_lengths"), "kv_lengths: expected where the step"),
    "puts other slots into the inputs": (_replace("slots"), "slots: expected where the step"),
    "puts another table into the inputs": (_replace("block_tables"), "block_tables: expected where the step"),
    "allocates its own buffer anew": (_reallocate_scratch, r"scratch: expected float32 \[4\]"),
    "writes to the lengths": (
        lambda held, rope: held.inputs.sequence_lengths.add_(1),
        "(positions|sequence_lengths): expected as the step wrote it",
    ),
    "writes to the cached lengths": (
        lambda held, rope: held.inputs.kv_lengths.zero_(),
        "kv_lengths: expected as the step wrote it",
    ),
    "writes to the table": (
        lambda held, rope: held.inputs.block_tables.fill_(1),
        "block_tables: expected as the step wrote it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_backend_that_breaks_its_neighbours_buffers_is_a_typed_error_before_the_replay(
    planted: Setup, fault: str
) -> None:
    made, backend, ropes = planted
    close(*made.both([request(1, 5), request(2, 9)])[:2])
    before = [cache.clone() for cache in made.caches]
    breaks, message = FAULTS[fault]
    backend.fault = lambda held: breaks(held, ropes[-1])
    with pytest.raises(GraphContractError, match=message):
        made.replay([request(1, 6), request(2, 10)])
    assert all(torch.equal(cache, old) for cache, old in zip(made.caches, before, strict=True))
    assert made.graphs.hits == {2: 1}


def test_replays_equal_eager_steps_while_batch_and_lengths_change_and_padding_is_poison(
    planted: Setup,
) -> None:
    made, backend, _ = planted
    made.graphs.capture()
    generator = torch.Generator().manual_seed(3)
    for batch in (5, 8, 2, 7, 1, 3, 6, 8, 4):
        lengths = torch.randint(1, MAX_PAGES * PAGE_SIZE + 1, (batch,), generator=generator).tolist()
        requests = [request(number, length) for number, length in enumerate(lengths)]
        unheld = sorted(set(range(PAGES)) - {page for one in requests for page in one.pages})
        for cache in made.caches:
            cache[unheld] = float("nan")
        backend.seen.clear()
        got, want, placed = made.both(requests)
        assert bool(got.isfinite().all())
        close(got, want)
        bucket = min(bucket for bucket in made.graphs.buckets if bucket >= batch)
        assert backend.seen == [placed + [0] * (bucket - batch), placed], "once a run, replayed and eager"
        for cache in made.caches:
            cache[unheld] = 0.0


def test_the_lengths_that_the_rotary_operation_reads_matter(
    planted: Setup,
) -> None:
    made, _, _ = planted
    with torch.inference_mode():
        step = Decode([request(1, 12), request(2, 20)])
        inputs = make_inputs(step, PAGE_SIZE, made.history.last_ids)
        right = made.model(inputs, made.caches).clone()
        zeros = torch.zeros_like(inputs.sequence_lengths)
        wrong = made.model(replace(inputs, sequence_lengths=zeros, positions=zeros), made.caches)
    assert float((right - wrong).abs().max()) > 1e-3


@pytest.mark.skipif(DEVICE.type == "cpu", reason="no GPU: the reference would be compared with itself")
@pytest.mark.parametrize("kind", ["triton", "xqa", "flashinfer"])
@torch.inference_mode()
def test_long_lanes_beside_short_and_empty_ones_attend_as_the_reference(kind: str) -> None:
    """Lanes that a backend cuts, beside short ones and padding, replanned for lengths that differ from step to step."""
    if kind == "flashinfer":
        pytest.importorskip("flashinfer")
    config = replace(GPU_CONFIG, q_heads=8, kv_heads=2, max_length=4096)
    page_size, batch = 16, 6
    pages = config.max_length // page_size
    backend = make_attention(kind, config, batch, page_size, DEVICE)
    reference = make_attention("reference", config, batch, page_size, DEVICE)
    cache = torch.randn(batch * pages + 1, 2, 2, page_size, 128, dtype=torch.bfloat16, device=DEVICE)
    cache[0] = float("nan")
    tables = (torch.randperm(batch * pages, device=DEVICE) + 1).int().view(batch, pages)
    query = torch.randn(batch, 8, 128, dtype=torch.bfloat16, device=DEVICE)
    inputs = _decode_inputs(tables, np.zeros(batch, np.int32))
    parameters = backend.plan(inputs)
    for lengths in ([4096, 1, 700, 129, 16, 2048], [3, 4000, 0, 0, 0, 0], [1, 17, 128, 4096, 4096, 0]):
        inputs.host_kv_lengths[:] = lengths
        inputs.kv_lengths.copy_(torch.tensor(lengths, dtype=torch.int32))
        torch.cuda.set_sync_debug_mode("error")  # whatever waits for the device, or copies as if it did
        try:
            backend.replan(parameters)
            backend.refresh(parameters)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        got = backend.run(query, cache, parameters)
        live = sum(length > 0 for length in lengths)
        want = reference.run(query, cache, reference.plan(inputs))
        # Probabilities and outputs are rounded to bf16, whose unit roundoff is 2^-9, a few times over.
        assert float((got[:live] - want[:live]).float().norm()) < 1e-2 * float(want[:live].float().norm())
        assert bool((got[live:] == 0).all())


def _decode_inputs(tables: torch.Tensor, lengths: np.ndarray[Any, np.dtype[np.int32]]) -> StepInputs:
    batch = len(lengths)
    kv_lengths = torch.from_numpy(lengths.copy()).to(tables.device)
    slots = torch.full((batch,), -1, dtype=torch.int64, device=tables.device)
    starts = torch.arange(batch + 1, dtype=torch.int32, device=tables.device)
    nothing = torch.zeros(batch, dtype=torch.int32, device=tables.device)
    template = make_inputs(Decode([request(number, 2) for number in range(batch)]), PAGE_SIZE, nothing)
    return replace(
        template, slots=slots, query_indptr=starts, kv_lengths=kv_lengths, block_tables=tables, host_kv_lengths=lengths
    )  # fmt: skip


@pytest.mark.parametrize(
    ("lengths", "last"), [([5, 4, 0, 9], [1, 4, 1, 1]), ([0, 0, 0, 0], [1, 1, 1, 1]), ([1, 12, 8, 0], [1, 4, 4, 1])]
)  # fmt: skip
def test_pages_follow_one_another_and_lanes_without_tokens_have_none(
    lengths: Sequence[int], last: Sequence[int]
) -> None:
    tables = torch.arange(1, 13, dtype=torch.int32, device=DEVICE).view(4, 3)
    indptr = torch.full((5,), -7, dtype=torch.int32, device=DEVICE)
    indices = torch.full((12,), -7, dtype=torch.int32, device=DEVICE)
    last_lengths = torch.full((4,), -7, dtype=torch.int32, device=DEVICE)
    held = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    ragged_pages(tables, held, 4, indptr, indices, last_lengths)
    counts = [-(-length // 4) for length in lengths]
    assert indptr.tolist() == [sum(counts[:lane]) for lane in range(5)]
    own = [page for row, count in zip(tables.tolist(), counts, strict=True) for page in row[:count]]
    assert indices.tolist() == own + [-7] * (12 - len(own))
    assert last_lengths.tolist() == last
    last_lengths.fill_(-7)
    ragged_pages(tables, held, 4, indptr, indices)
    assert last_lengths.tolist() == [-7] * 4


def test_an_unknown_backend_is_a_typed_error_that_names_the_known() -> None:
    with pytest.raises(AttentionBackendError, match=f"expected one of {', '.join(KINDS)}, got fa4"):
        make_attention("fa4", CONFIG, 1, PAGE_SIZE, CPU)
    assert set(KINDS) == {"reference", "triton", "xqa", "flashinfer"}


def test_a_backend_whose_package_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(
        AttentionBackendError, match=r"pip install flashinfer-python==0\.6\.1, or choose triton"
    ):
        make_attention("flashinfer", GPU_CONFIG, 1, PAGE_SIZE, CPU)


@pytest.mark.parametrize(
    ("dtype", "device", "message"),
    [
        (torch.bfloat16, "cpu", "expected a GPU, got cpu; choose reference"),
        (torch.float32, "cuda", "expected a model in bfloat16 or float16, got torch.float32; choose triton or xqa"),
    ],
)  # fmt: skip
def test_flashinfer_refuses_what_it_cannot_run(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, device: str, message: str
) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", ModuleType("flashinfer"))
    with pytest.raises(AttentionBackendError, match=message):
        make_attention("flashinfer", replace(CONFIG, dtype=dtype), 1, PAGE_SIZE, torch.device(device))


def test_a_cache_of_other_pages_than_the_backends_is_refused() -> None:
    require_page_size(torch.zeros(3, 2, 1, 16, 8), 16)
    with pytest.raises(ValueError, match="cache: expected pages of 16 tokens, as the backend's, got 4"):
        require_page_size(torch.zeros(3, 2, 1, 4, 8), 16)
