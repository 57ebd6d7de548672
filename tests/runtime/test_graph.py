"""Captured decode steps equal eager ones, whatever came before; a buffer that moved is a typed error, not a wrong token.

On a GPU the steps are CUDA graphs of each backend; on a CPU the same calls over the same stable buffers stand in, so
that everything but the capture itself is tested anywhere.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from kernels.token_history import TokenHistory
from runtime.batch import make_inputs, to_device
from runtime.begin_step import LaneStart
from runtime.buffers import StableBuffers
from runtime.contract import GraphContractError, require_not_capturing
from runtime.graph import DecodeGraphs, Launched
from runtime.kv_cache import NULL_PAGE, allocate_cache
from runtime.lanes import NOTHING, DecodeLanes, LaneBlock
from runtime.model import Model
from runtime.request import Request, SamplingParameters, Token
from runtime.ring import Ring
from runtime.scheduler import Chunk, Decode, Prefill
from tests.runtime.kit import PAGE_SIZE, backends, config_for, make_model, weights_for

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PAGES = 160
MAX_PAGES = 8
GENERATIONS = itertools.count()
WARM = SamplingParameters(temperature=1.0, top_k=30, top_p=0.9, max_tokens=100)


def request(number: int, length: int) -> Request:
    """A sequence of `length` tokens of which all but the newest are in the cache; it has pages of its own."""
    made = Request(str(number), tuple((7 * number + at) % 290 for at in range(length - 1)), WARM, seed=number)
    made.tokens.append(Token(number % 290))
    made.computed = length - 1
    made.row = number % 8
    made.generation = next(GENERATIONS)
    made.decodes = True
    made.pages = [1 + (number * MAX_PAGES + page) % (PAGES - 1) for page in range(-(-length // PAGE_SIZE))]
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

    def both(self, requests: Sequence[Request]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of a step, replayed and eager, from equal caches, a row a request."""
        for cache, twin in zip(self.caches, self.twins, strict=True):
            twin.copy_(cache)
        inputs = make_inputs(Decode(requests), PAGE_SIZE, self.history.last_ids)
        with torch.inference_mode():
            eager = self.model(inputs, self.twins).clone()
        launched = self.run(requests)
        assert launched is not None
        order = [launched.requests.index(request) for request in requests]
        return launched.logits[order].clone(), eager

    def run(self, requests: Sequence[Request]) -> Launched | None:
        return self.graphs.launch(Decode(requests), self.ring.acquire())


@pytest.fixture(params=backends(DEVICE))
def bench(request: pytest.FixtureRequest) -> Callable[..., Bench]:
    config = config_for(DEVICE)
    weights = weights_for(DEVICE)

    def make(buckets: Sequence[int] = (1, 2, 4, 8), max_batch: int = 8, max_pages: int = MAX_PAGES) -> Bench:
        model = make_model(config, weights, request.param)
        generator = torch.Generator(DEVICE).manual_seed(1)

        def cache() -> list[torch.Tensor]:
            made = allocate_cache(config, PAGES, PAGE_SIZE, config.dtype, DEVICE)
            for layer in made:
                layer.normal_(generator=generator)
            return made

        caches = cache()
        history = TokenHistory(max_batch, config.vocab_size, config.max_length, DEVICE)
        ring = Ring(3, max_batch, DEVICE)
        graphs = DecodeGraphs(model, caches, buckets, max_batch, max_pages, history, ring)
        return Bench(model, graphs, ring, history, caches, cache())

    return make


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal on a CPU, where both sum alike; on a GPU a bucket may split its sums otherwise than the raw batch."""
    bound = 0.0 if DEVICE.type == "cpu" else 1.5e-2
    assert float((got.double() - want.double()).norm()) <= bound * float(want.double().norm())


def test_02_captured_short_replayed_long(bench: Callable[..., Bench]) -> None:
    """Capture with length 1, replay across a page boundary and at the maximum: equals eager."""
    made = bench()
    made.graphs.capture()
    for length in (1, PAGE_SIZE, PAGE_SIZE + 1, MAX_PAGES * PAGE_SIZE - 1, MAX_PAGES * PAGE_SIZE):
        close(*made.both([request(3, length)]))


def test_03_lanes_after_the_live_ones_are_cleared(bench: Callable[..., Bench]) -> None:
    """Batch 8 long, then 5: lanes 5 to 7 of every mirror are cleared."""
    made = bench()
    made.both([request(number, 25) for number in range(8)])
    made.both([request(number, 9) for number in range(5)])
    buffers = made.graphs._buffers
    padding = {"slot": NOTHING, "row": NOTHING, "table_column": NOTHING, "top_p": 1, "repetition_penalty": 1}
    for name, mirror in buffers.fields.items():
        assert mirror[5:].tolist() == [padding.get(name, 0)] * 3, name
    assert bool((buffers.block_tables[5:] == NULL_PAGE).all())
    rope = made.graphs._steps[8][0].fingerprint._holders["rope"]
    assert rope.graph_buffers()["sequence_lengths"][5:].tolist() == [0, 0, 0]
    assert buffers.fields["kv_length"][:5].tolist() == [9] * 5


def test_04_poisoned_outputs_are_written_anew_and_padding_stays_finite(bench: Callable[..., Bench]) -> None:
    """Outputs poisoned with NaN, lanes of no length: real rows bit-equal, the rest finite."""
    made = bench()
    requests = [request(number, 9 + number) for number in range(5)]
    clean, _ = made.both(requests)
    with torch.inference_mode():
        for step in made.graphs._steps[8]:
            step.outputs.logits.fill_(float("nan"))
    poisoned, _ = made.both(requests)
    assert torch.equal(poisoned, clean)
    used = made.graphs._steps[8][(made.ring._next - 1) % len(made.ring.slots)]
    assert bool(used.outputs.logits.isfinite().all())


def test_05_padding_lanes_write_to_no_page(bench: Callable[..., Bench]) -> None:
    made = bench()
    made.graphs.capture()
    before = [cache.clone() for cache in made.caches]
    made.run([request(1, 6)])
    written = request(1, 6).pages[5 // PAGE_SIZE]
    for cache, old in zip(made.caches, before, strict=True):
        changed = (cache != old).flatten(1).any(1).nonzero().flatten().tolist()
        assert changed == [written]


@pytest.mark.parametrize(
    ("asked", "batch", "bucket"), [((100, 112), 101, 112), ((1, 2), 3, 3), ((8,), 12, 12)]
)
def test_06_07_buckets_end_with_the_largest_batch(
    bench: Callable[..., Bench], asked: Sequence[int], batch: int, bucket: int
) -> None:
    """Bucket 112 after 100: metadata sized 112. Largest batch 3, 12: last bucket is it."""
    made = bench(asked, max_batch=bucket)
    assert made.graphs.buckets[-1] == bucket
    requests = [request(number, 2 + number % 9) for number in range(batch)]
    close(*made.both(requests))
    rope = made.graphs._steps[bucket][0].fingerprint._holders["rope"]
    assert rope.graph_buffers()["sequence_lengths"].shape == (bucket,)


def test_07_08_what_does_not_fit_goes_eager_and_is_counted(bench: Callable[..., Bench]) -> None:
    made = bench(max_batch=4, max_pages=2)
    assert made.run([request(number, 3) for number in range(5)]) is None
    long = request(0, 2 * PAGE_SIZE + 1)
    assert made.run([long]) is None
    prefill = Prefill((Chunk(long, 0, 4, samples=False),))
    assert made.graphs.launch(prefill, made.ring.acquire()) is None
    assert made.graphs.eager == {"batch above 4": 1, "block table wider than 2": 1, "prefill": 1}
    assert not made.graphs.hits


def test_08_a_narrower_table_clears_the_old_columns(bench: Callable[..., Bench]) -> None:
    made = bench()
    made.both([request(0, MAX_PAGES * PAGE_SIZE)])
    close(*made.both([request(1, 3)]))
    assert made.graphs._buffers.block_tables[0].tolist() == [
        request(1, 3).pages[0],
        *[NULL_PAGE] * (MAX_PAGES - 1),
    ]


def test_only_changed_table_entries_travel() -> None:
    """A new page goes with its lane's record; whole tables only where lanes change hands."""
    lanes = DecodeLanes(4, MAX_PAGES, PAGE_SIZE)
    requests = [request(number, PAGE_SIZE) for number in range(3)]
    _, change = lanes.arrange(requests)
    assert change is not None
    assert len(change.places) == 3
    assert lanes.arrange(requests)[1] is None
    for one in requests:
        one.computed += 1
        one.pages.append(50 + one.row)
    assert lanes.arrange(requests)[1] is None
    assert lanes.block.columns["table_column"][:3].tolist() == [1, 1, 1]
    assert lanes.block.columns["table_page"][:3].tolist() == [50, 51, 52]
    lanes.arrange(requests)
    assert lanes.block.columns["table_column"][:3].tolist() == [NOTHING] * 3
    order, change = lanes.arrange(requests[1:])
    assert order == [requests[2], requests[1]]  # who stays keeps its lane where lanes stay dense
    assert change is not None
    assert len(change.places) == 2 + 2


def test_09_every_buffer_that_is_reassigned_is_a_typed_error(bench: Callable[..., Bench]) -> None:
    """Each pointer that buffers, backend, rotary operation, model or outputs hold, reassigned one at a time."""
    made = bench()
    requests = [request(1, 5), request(2, 6)]
    made.both(requests)
    fingerprint = made.graphs._steps[2][0].fingerprint
    tried = 0
    for owner, holder in fingerprint._holders.items():
        for name in holder.graph_buffers():
            restore = _reassign(holder, name)
            with pytest.raises(GraphContractError, match=r"expected .* at 0x[0-9a-f]+ on .*, got ") as caught:
                fingerprint.require_unchanged()
            assert f"{owner}." in str(caught.value)
            restore()
            fingerprint.require_unchanged()
            tried += 1
    assert tried == sum(map(len, fingerprint._bound.values())) >= 35


def test_all_graphs_leave_their_logits_in_one_place(bench: Callable[..., Bench]) -> None:
    """A vocabulary's width for each lane of each bucket and slot would be most of what graphs take."""
    made = bench(buckets=(1, 2), max_batch=2)
    made.graphs.capture()
    steps = [step for bucket in made.graphs.buckets for step in made.graphs._steps[bucket]]
    assert len(steps) == 2 * len(made.ring.slots)
    assert {step.outputs.logits.data_ptr() for step in steps} == {made.graphs._buffers.logits.data_ptr()}
    assert made.graphs._buffers.logits.stride(0) * made.graphs._buffers.logits.element_size() % 16 == 0
    close(*made.both([request(0, 5), request(1, 9)]))


def test_09_a_replay_checks_before_it_runs(bench: Callable[..., Bench]) -> None:
    made = bench()
    requests = [request(1, 5), request(2, 6)]
    made.both(requests)
    before = [cache.clone() for cache in made.caches]
    buffers = made.graphs._buffers
    buffers.fields["kv_length"] = buffers.fields["kv_length"].clone()
    with pytest.raises(GraphContractError, match=r"buffers\.kv_length: expected int32 \[8\]"):
        made.run(requests)
    assert all(torch.equal(cache, old) for cache, old in zip(made.caches, before, strict=True))


def test_09_a_refused_step_is_laid_out_again_in_full(bench: Callable[..., Bench]) -> None:
    """What the refused step would have told the device, new pages among it, the next one tells."""
    made = bench()
    requests = [request(1, PAGE_SIZE), request(2, 6)]
    made.both(requests)
    for one in requests:
        one.computed += 1
        one.tokens.append(Token(5))
    requests[0].pages.append(77)
    buffers = made.graphs._buffers
    moved, buffers.drawn = buffers.drawn, buffers.drawn.clone()
    with pytest.raises(GraphContractError):
        made.run(requests)
    buffers.drawn = moved
    close(*made.both(requests))
    assert buffers.block_tables[0, 1] == 77


def _reassign(holder: Any, name: str) -> Callable[[], None]:
    """Put a clone in place of the tensor that `graph_buffers` gives as `name`; returns what puts it back."""
    old = holder.graph_buffers()[name]
    place, key = next(
        (place, key) for place, key, tensor in _places(holder, set()) if tensor.data_ptr() == old.data_ptr()
        and tensor.shape == old.shape and tensor.dtype == old.dtype and _gives(holder, name, place, key, old)
    )  # fmt: skip
    _put(place, key, old.clone())
    return lambda: _put(place, key, old)


def _gives(holder: Any, name: str, place: Any, key: Any, old: torch.Tensor) -> bool:
    """Whether changing this place changes what `graph_buffers` gives under `name`."""
    _put(place, key, old.clone())
    changed = holder.graph_buffers()[name].data_ptr() != old.data_ptr()
    _put(place, key, old)
    return changed


def _put(place: Any, key: Any, value: torch.Tensor) -> None:
    if isinstance(place, list | dict):
        place[key] = value
    else:
        object.__setattr__(place, key, value)


def _places(value: Any, seen: set[int]) -> Iterator[tuple[Any, Any, torch.Tensor]]:
    if id(value) in seen:
        return
    seen.add(id(value))
    items = (
        enumerate(value)
        if isinstance(value, list)
        else value.items()
        if isinstance(value, dict)
        else vars(value).items()
        if hasattr(value, "__dict__")
        else ()
    )
    for key, inner in list(items):
        if isinstance(inner, torch.Tensor):
            yield value, key, inner
        else:
            yield from _places(inner, seen)


def test_09_junk_after_capture_changes_nothing(bench: Callable[..., Bench]) -> None:
    made = bench()
    made.graphs.capture()
    junk = [torch.full((1 << 16,), float("nan"), device=DEVICE) for _ in range(8)]
    close(*made.both([request(number, 11) for number in range(3)]))
    assert len(junk) == 8


@pytest.mark.skipif(DEVICE.type == "cpu", reason="no GPU: nothing is captured on a CPU")
@pytest.mark.parametrize("planted", ["pin", "copy", "rope", "buffers", "wait"])
def test_10_allocating_or_pinning_inside_a_capture_is_a_clear_error(
    bench: Callable[..., Bench], planted: str
) -> None:
    made = bench(buckets=(1,), max_batch=1)
    model, graphs = made.model, made.graphs
    begin = model.begin
    calls = {
        "pin": lambda: LaneBlock(4, pinned=True),
        "copy": lambda: to_device(np.zeros(4, np.int32), DEVICE),
        "rope": lambda: model.decode_rope().prepare(graphs._buffers.inputs(1)),
        "buffers": lambda: StableBuffers(1, 1, 8, torch.float32, DEVICE),
        "wait": torch.cuda.synchronize,
    }

    def planting(start: LaneStart) -> torch.Tensor:
        calls[planted]()
        return begin(start)

    model.begin = planting  # type: ignore[method-assign]  # what a change of the model could do
    with pytest.raises(GraphContractError, match=r"inside a capture|cannot be captured"):
        graphs.capture()
    model.begin = begin  # type: ignore[method-assign]
    close(*made.both([request(1, 5)]))


def test_10_outside_a_capture_the_same_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard itself, on any machine: it asks the stream, and only of a GPU."""
    capturing = [True]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    require_not_capturing("on a CPU", torch.device("cpu"))
    with pytest.raises(GraphContractError, match="a pinned copy: asked for inside a capture"):
        require_not_capturing("a pinned copy", torch.device("cuda"))
    capturing[0] = False
    require_not_capturing("a pinned copy", torch.device("cuda"))


def test_11_capturing_again_with_a_live_cache_leaves_it_alone(bench: Callable[..., Bench]) -> None:
    """Only the null page may be written."""
    made = bench()
    made.both([request(number, 7) for number in range(8)])
    for cache in made.caches:
        cache.uniform_()  # the pages of the lanes that ran last belong to others by now
    before = [cache.clone() for cache in made.caches]
    made.graphs._steps.clear()
    made.graphs.capture()
    for cache, old in zip(made.caches, before, strict=True):
        assert torch.equal(cache[1:], old[1:])


def test_17_reseeding_after_capture_changes_samples_and_the_same_seed_does_not(
    bench: Callable[..., Bench],
) -> None:
    made = bench()

    def drawn(seed: int) -> list[int]:
        requests = [request(number, 9) for number in range(8)]
        for one in requests:
            one.seed = seed
        launched = made.run(requests)
        assert launched is not None
        return launched.ids.tolist()

    first = drawn(1)
    assert drawn(2) != first
    assert drawn(1) == first


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_19_replay_equals_eager_for_every_bucket_and_batch_with_padding_poisoned(
    bench: Callable[..., Bench], poison: float
) -> None:
    """Batch size and lengths change every step; pages that no lane holds, and the null page, are poison."""
    made = bench()
    made.graphs.capture()
    generator = torch.Generator().manual_seed(9)
    for batch in (8, 1, 5, 3, 7, 2, 6, 4, 8, 1):
        lengths = torch.randint(1, MAX_PAGES * PAGE_SIZE + 1, (batch,), generator=generator).tolist()
        requests = [request(number, length) for number, length in enumerate(lengths)]
        held = {page for one in requests for page in one.pages}
        for cache in made.caches:
            cache[[page for page in range(PAGES) if page not in held]] = poison
        got, want = made.both(requests)
        assert bool(got.isfinite().all())
        close(got, want)
        for cache in made.caches:
            cache[[page for page in range(PAGES) if page not in held]] = 0.0
