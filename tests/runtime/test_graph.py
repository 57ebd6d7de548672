"""Captured decode steps equal eager ones, whatever came before; a buffer that moved is a typed error, not a wrong token.

On a GPU the steps are CUDA graphs of each backend; on a CPU the same calls over the same stable buffers stand in, so
that everything but the capture itself is tested anywhere.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from runtime.batch import HostStep, host_step, to_device
from runtime.buffers import LANE, NO_SLOT
from runtime.contract import GraphContractError
from runtime.graph import DecodeGraphs
from runtime.kv_cache import NULL_PAGE, allocate_cache
from runtime.model import Model
from runtime.request import Request, SamplingParameters, Token
from runtime.scheduler import Chunk, StepPlan
from tests.runtime.kit import PAGE_SIZE, backends, config_for, make_model, weights_for

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PAGES = 160
MAX_PAGES = 8
WARM = SamplingParameters(temperature=1.0, top_k=30, top_p=0.9, max_tokens=100)


def request(number: int, length: int) -> Request:
    """A sequence of `length` tokens of which all but the newest are in the cache; it has pages of its own."""
    made = Request(str(number), tuple((7 * number + at) % 290 for at in range(length - 1)), WARM, seed=number)
    made.tokens.append(Token(number % 290))
    made.computed = length - 1
    made.pages = [1 + (number * MAX_PAGES + page) % (PAGES - 1) for page in range(-(-length // PAGE_SIZE))]
    return made


def decode(requests: Sequence[Request]) -> HostStep:
    chunks = tuple(Chunk(one, one.computed, 1, samples=True) for one in requests)
    return host_step(StepPlan(chunks, is_decode=True), PAGE_SIZE)


@dataclass
class Bench:
    """One model with graphs and a cache, and a twin cache for eager steps."""

    model: Model
    graphs: DecodeGraphs
    caches: list[torch.Tensor]
    twins: list[torch.Tensor]

    def both(self, requests: Sequence[Request]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of a step, replayed and eager, from equal caches."""
        for cache, twin in zip(self.caches, self.twins, strict=True):
            twin.copy_(cache)
        step = decode(requests)
        with torch.inference_mode():
            eager = self.model(to_device(step, DEVICE), self.twins).clone()
        result = self.graphs.run(step, requests)
        assert result is not None
        return result[0].clone(), eager


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
        return Bench(model, DecodeGraphs(model, caches, buckets, max_batch, max_pages), caches, cache())

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
    for mirror in (buffers.token_ids, buffers.sequence_lengths, buffers.kv_lengths):
        assert mirror[5:].tolist() == [0, 0, 0]
    assert buffers.slots[5:].tolist() == [NO_SLOT] * 3
    assert buffers.lanes.temperature[5:].tolist() == [0.0] * 3
    assert buffers.lanes.top_p[5:].tolist() == [1.0] * 3
    assert bool((buffers.block_tables[5:] == NULL_PAGE).all())
    rope = made.graphs._steps[8].fingerprint._holders["rope"]
    assert rope.graph_buffers()["sequence_lengths"][5:].tolist() == [0, 0, 0]
    assert buffers.kv_lengths[:5].tolist() == [9] * 5


def test_05_padding_lanes_write_to_no_page(bench: Callable[..., Bench]) -> None:
    made = bench()
    made.graphs.capture()
    before = [cache.clone() for cache in made.caches]
    made.graphs.run(decode([request(1, 6)]), [request(1, 6)])
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
    rope = made.graphs._steps[bucket].fingerprint._holders["rope"]
    assert rope.graph_buffers()["sequence_lengths"].shape == (bucket,)


def test_07_08_what_does_not_fit_goes_eager_and_is_counted(bench: Callable[..., Bench]) -> None:
    made = bench(max_batch=4, max_pages=2)
    run = made.graphs.run
    five = [request(number, 3) for number in range(5)]
    assert run(decode(five), five) is None
    long = [request(0, 2 * PAGE_SIZE + 1)]
    assert run(decode(long), long) is None
    prefill = host_step(StepPlan((Chunk(long[0], 0, 4, samples=False),), is_decode=False), PAGE_SIZE)
    assert run(prefill, long) is None
    assert made.graphs.eager == {"batch above 4": 1, "block table wider than 2": 1, "prefill": 1}
    assert made.graphs.replays == 0


def test_08_a_narrower_table_clears_the_old_columns(bench: Callable[..., Bench]) -> None:
    made = bench()
    made.both([request(0, MAX_PAGES * PAGE_SIZE)])
    close(*made.both([request(1, 3)]))
    assert made.graphs._buffers.block_tables[0].tolist() == [
        request(1, 3).pages[0],
        *[NULL_PAGE] * (MAX_PAGES - 1),
    ]


def test_only_changed_table_entries_travel(bench: Callable[..., Bench]) -> None:
    made = bench()
    buffers = made.graphs._buffers
    requests = [request(number, PAGE_SIZE) for number in range(3)]
    assert buffers.write_tables(decode(requests), 4) == 3
    assert buffers.write_tables(decode(requests), 4) == 0
    assert buffers.write_tables(decode([request(number, PAGE_SIZE + 1) for number in range(3)]), 4) == 3
    assert buffers.write_tables(decode(requests[:2]), 4) == 2 + 2


def test_09_every_buffer_that_is_reassigned_is_a_typed_error(bench: Callable[..., Bench]) -> None:
    """Each pointer that buffers, backend, rotary operation, model or outputs hold, reassigned one at a time."""
    made = bench()
    requests = [request(1, 5), request(2, 6)]
    made.both(requests)
    fingerprint = made.graphs._steps[2].fingerprint
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
    assert tried == len(fingerprint._bound) >= 20


def test_09_a_replay_checks_before_it_runs(bench: Callable[..., Bench]) -> None:
    made = bench()
    requests = [request(1, 5), request(2, 6)]
    made.both(requests)
    before = [cache.clone() for cache in made.caches]
    buffers = made.graphs._buffers
    buffers.kv_lengths = buffers.kv_lengths.clone()
    with pytest.raises(GraphContractError, match=r"buffers\.kv_lengths: expected int32 \[8\]"):
        made.graphs.run(decode(requests), requests)
    assert all(torch.equal(cache, old) for cache, old in zip(made.caches, before, strict=True))


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
    if isinstance(place, list):
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
        result = made.graphs.run(decode(requests), requests)
        assert result is not None
        return result[1].ids.tolist()

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


def test_a_lane_is_a_cache_line() -> None:
    assert LANE.itemsize == 64
