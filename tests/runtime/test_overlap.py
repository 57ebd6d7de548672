"""The next step is prepared while this one runs: the same answers, no memory given away too early, nothing lost."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.token_history import TokenHistory
from runtime.beam import BeamParameters
from runtime.capture import Captured, Computation, HostCapture, Outputs
from runtime.contract import GraphContractError
from runtime.engine import Engine, EngineOptions
from runtime.graph import DecodeGraphs, Launched
from runtime.kv_cache import allocate_cache
from runtime.lanes import FEED
from runtime.processors import ProcessorParameters
from runtime.request import FinishReason, Request, RequestError, SamplingParameters
from runtime.ring import Ring, Slot
from runtime.runner import Flight
from runtime.scheduler import Decode, Prefill, StepPlan
from runtime.weights import random_weights
from tests.runtime.kit import CONFIG, CPU, PAGE_SIZE, make_model
from tests.runtime.test_graph import request as decoding

TINY = replace(CONFIG, layers=1, hidden_size=16, q_heads=2, kv_heads=1, head_dim=8, intermediate_size=32)
WEIGHTS = random_weights(TINY, 6, CPU)
OPTIONS = EngineOptions(pages=40, page_size=PAGE_SIZE, max_batch=4, max_step_tokens=16)
WARM = SamplingParameters(temperature=1.0, top_k=40, seed=3, max_tokens=20)


def engine(**options: Any) -> Engine:
    return Engine(make_model(TINY, WEIGHTS), replace(OPTIONS, **options))


def run_out(serving: Engine, limit: int = 5000) -> None:
    while serving.has_work():
        serving.step()
        limit -= 1
        assert limit, "it does not end"


def ids(request: Request) -> list[int]:
    return [token.id for token in request.tokens]


class StalledDevice:
    """Runs replays only when an event after them is waited for, or at the end; keeps what lanes each one saw."""

    def __init__(self) -> None:
        self._queue: deque[Callable[[], None]] = deque()
        self._given = 0
        self._done = 0
        self.saw: list[list[int]] = []

    def give(self, work: Callable[[], None]) -> None:
        self._queue.append(work)
        self._given += 1

    def run_until(self, given: int) -> None:
        while self._done < given:
            with torch.inference_mode():
                self._queue.popleft()()
            self._done += 1

    def finish(self) -> None:
        self.run_until(self._given)

    def event(self) -> "Event":
        return Event(self)

    def capturing(self, graphs: DecodeGraphs) -> Callable[[Computation], tuple[Captured, Outputs]]:
        """A capture whose replays this device runs when it comes to them."""

        def capture(computation: Computation) -> tuple[Captured, Outputs]:
            graph, outputs = HostCapture.of(computation)
            return Queued(self, graph, graphs), outputs

        return capture


@dataclass
class Queued:
    device: StalledDevice
    graph: Captured
    graphs: DecodeGraphs

    def replay(self) -> None:
        def run() -> None:
            self.graph.replay()
            self.device.saw.append(self.graphs._buffers.fields["seed"].tolist())

        self.device.give(run)


class Event:
    """Happens when the device has come to what was given before it."""

    def __init__(self, device: StalledDevice) -> None:
        self._device = device
        self._at = 0

    def record(self) -> None:
        self._at = self._device._given

    def query(self) -> bool:
        return self._device._done >= self._at

    def synchronize(self) -> None:
        self._device.run_until(self._at)


class CarelessRing(Ring):
    """The planted bug: a slot is written without waiting for who reads it."""

    def acquire(self) -> Slot:
        slot = self.slots[self._next]
        self._next = (self._next + 1) % len(self.slots)
        return slot


def each_replay_sees_its_own_lanes(kind: type[Ring]) -> Ring:
    """Prepares more steps than there are slots, the device stalled; what each replay saw must be its own."""
    device = StalledDevice()
    ring = kind(2, 4, CPU, device.event)
    caches = allocate_cache(TINY, 40, PAGE_SIZE, TINY.dtype, CPU)
    history = TokenHistory(4, TINY.vocab_size, TINY.max_length, CPU)
    graphs = DecodeGraphs(make_model(TINY, WEIGHTS), caches, (4,), 4, 8, history, ring)
    graphs._capture = device.capturing(graphs)
    graphs.capture()
    for seed in (11, 12, 13, 14):
        requests = [decoding(lane, 5) for lane in range(2)]
        for one in requests:
            one.seed = seed
        slot = ring.acquire()
        graphs.launch(Decode(requests), slot)
        slot.done.record()
    device.finish()
    assert [lanes[:2] for lanes in device.saw] == [[seed] * 2 for seed in (11, 12, 13, 14)]
    return ring


def test_01_the_lanes_of_a_step_stay_its_own_while_the_device_is_stalled() -> None:
    ring = each_replay_sees_its_own_lanes(Ring)
    assert ring.waits == 2, "the third and fourth step each waited for a slot"
    with pytest.raises(AssertionError):
        each_replay_sees_its_own_lanes(CarelessRing)


def test_01_a_slot_waits_for_an_unfinished_event_and_not_for_a_finished_one() -> None:
    device = StalledDevice()
    ring = Ring(1, 4, CPU, device.event)
    ring.acquire().done.record()
    ring.acquire()
    assert ring.waits == 0
    device.give(lambda: None)
    ring.slots[0].done.record()
    ring.acquire()
    assert ring.waits == 1
    assert ring.slots[0].done.query()


@dataclass(frozen=True)
class Asked:
    """A request of a schedule: when it comes, for how many answers or beams, and when, if ever, it is aborted."""

    at: int
    prompt: tuple[int, ...]
    sampling: SamplingParameters
    aborted_at: int | None
    sequences: dict[str, Any]

    def submit(self, serving: Engine) -> Sequence[Request]:
        """Its answers to be; none where the engine is too small for it."""
        sampling = replace(self.sampling, temperature=0.0) if "beams" in self.sequences else self.sampling
        try:
            return serving.submit(self.prompt, sampling, **self.sequences).siblings
        except RequestError:
            return ()


SAMPLINGS = st.builds(
    SamplingParameters,
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 3),
    max_tokens=st.integers(1, 12),
    # Sixteen tokens of a vocabulary of three hundred end a sequence: many ends are known from the tokens alone.
    stop_ids=st.sampled_from([frozenset(), frozenset(range(16)), frozenset(range(0, 300, 19))]),
    logprobs=st.sampled_from([None, 0, 2]),
    processors=st.sampled_from(
        [
            ProcessorParameters(),
            ProcessorParameters(repetition_penalty=1.3, min_tokens=3),
            ProcessorParameters(presence_penalty=1.0, logit_bias={5: 3.0}, no_repeat_ngram_size=2),
        ]
    ),
)
SCHEDULES = st.lists(
    st.builds(
        Asked,
        at=st.integers(0, 20),
        prompt=st.lists(st.integers(0, 40), min_size=1, max_size=14).map(tuple),
        sampling=SAMPLINGS,
        aborted_at=st.one_of(st.none(), st.none(), st.integers(1, 25)),
        sequences=st.sampled_from([{}, {}, {"n": 2}, {"beams": BeamParameters(2, return_sequences=2)}]),
    ),
    min_size=1,
    max_size=7,
)
SIZES = st.fixed_dictionaries(
    {
        "pages": st.integers(8, 24),
        "max_batch": st.integers(1, 4),
        "max_step_tokens": st.integers(2, 16),
        "reuse_prefixes": st.booleans(),
        "buckets": st.sampled_from([None, (1, 2)]),
    }
)


def play(schedule: Sequence[Asked], *, overlap: bool, **sizes: Any) -> list[Request]:
    serving = engine(overlap=overlap, **sizes)
    requests: dict[int, Sequence[Request]] = {}
    step = 0
    while serving.has_work() or step <= 20:
        for number, asked in enumerate(schedule):
            if asked.at == step:
                requests[number] = asked.submit(serving)
            elif asked.aborted_at == step:
                alive = [one for one in requests.get(number, ()) if one.finish_reason is None]
                if alive:
                    serving.abort(alive[0].id)
        serving.step()
        step += 1
        assert step < 3000, "it does not end"
    assert serving._pool.available == serving._pool.capacity
    assert sorted(serving.scheduler._rows) == list(range(sizes["max_batch"]))
    assert serving.scheduler._promised == 0
    return [one for number in range(len(schedule)) for one in requests[number]]


def equal_with_and_without_overlap(schedule: Sequence[Asked], sizes: dict[str, Any]) -> None:
    on, off = play(schedule, overlap=True, **sizes), play(schedule, overlap=False, **sizes)
    for ours, plain in zip(on, off, strict=True):
        if FinishReason.ABORT in (ours.finish_reason, plain.finish_reason):
            shorter, longer = sorted((ours.tokens, plain.tokens), key=len)
            assert longer[: len(shorter)] == shorter
        else:
            assert (ours.tokens, ours.finish_reason, ours.error) == (
                plain.tokens, plain.finish_reason, plain.error
            )  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(SCHEDULES, SIZES)
def test_20_overlap_changes_no_answer_bit_for_bit(schedule: list[Asked], sizes: dict[str, Any]) -> None:
    equal_with_and_without_overlap(schedule, sizes)


@pytest.mark.exhaustive
@settings(deadline=None, max_examples=1500)
@given(SCHEDULES, SIZES)
def test_20_overlap_changes_no_answer_in_many_more_schedules(
    schedule: list[Asked], sizes: dict[str, Any]
) -> None:
    equal_with_and_without_overlap(schedule, sizes)


@dataclass
class Watched:
    """An engine whose launches are kept: each plan, and how many steps were in flight when it was given."""

    serving: Engine
    plans: list[tuple[StepPlan, int]]

    @classmethod
    def of(cls, serving: Engine) -> "Watched":
        plans: list[tuple[StepPlan, int]] = []
        launch = serving._runner.launch

        def watching(plan: StepPlan) -> Flight:
            requests = list(plan.requests) if isinstance(plan, Decode) else plan
            plans.append(
                (Decode(requests) if isinstance(requests, list) else requests, len(serving._flights))
            )
            return launch(plan)

        serving._runner.launch = watching  # type: ignore[method-assign]
        return cls(serving, plans)


def test_sampled_tokens_feed_the_next_step_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host sends no token id in a steady decode: it does not know them yet."""
    serving = engine(buckets=(4,))
    assert serving.graphs is not None
    sent: list[list[int]] = []
    launch = serving.graphs.launch

    def watching(plan: StepPlan, slot: Slot) -> Launched | None:
        launched = launch(plan, slot)
        if launched is not None:
            sent.append(slot.block.columns["token_id"][: len(launched.requests)].tolist())
        return launched

    monkeypatch.setattr(serving.graphs, "launch", watching)
    requests = serving.generate([[1, 2], [3]], WARM)
    assert len(sent) == WARM.max_tokens - 1
    assert {token for tokens in sent for token in tokens} == {FEED}
    assert [ids(one) for one in requests] == [
        ids(one) for one in engine(overlap=False).generate([[1, 2], [3]], WARM)
    ]


def test_a_finished_sequence_is_noticed_one_step_late_and_its_extra_token_discarded() -> None:
    plain = engine(overlap=False).generate([[1, 2]], WARM)[0]
    stop = ids(plain)[6]
    stopping = replace(WARM, stop_ids=frozenset({stop}))
    steps = {}
    for overlap in (False, True):
        watched = Watched.of(engine(overlap=overlap))
        (request,) = watched.serving.generate([[1, 2]], stopping)
        run_out(watched.serving)
        assert ids(request) == ids(plain)[: ids(plain).index(stop) + 1]
        steps[overlap] = len(watched.plans)
    assert steps[True] == steps[False] + 1


def test_an_end_that_the_host_can_foresee_costs_no_extra_step() -> None:
    for overlap in (False, True):
        watched = Watched.of(engine(overlap=overlap))
        watched.serving.generate([[1, 2]], WARM)
        run_out(watched.serving)
        assert len(watched.plans) == WARM.max_tokens


def test_pages_are_freed_only_after_the_step_that_reads_them() -> None:
    """An abort in flight: the request has ended, its pages are still the step's."""
    serving = engine(reuse_prefixes=False)
    goes, stays = serving.submit([1] * 9, WARM), serving.submit([2], WARM)
    for _ in range(4):
        serving.step()
    held, free = len(goes.pages), serving._pool.available
    serving.abort(goes.id)
    assert goes.finish_reason == FinishReason.ABORT
    assert serving._pool.available == free
    given = len(goes.tokens)
    serving.step()  # launches the next step, without it, and collects the one that it was in
    assert serving._pool.available >= free + held - 1
    run_out(serving)
    assert len(goes.tokens) == given
    assert stays.finish_reason == FinishReason.LENGTH


def test_admissions_and_preemption_while_a_step_is_in_flight() -> None:
    watched = Watched.of(engine(pages=9, reuse_prefixes=False))
    first = watched.serving.submit([1] * 8, WARM)
    for _ in range(3):
        watched.serving.step()
    second = watched.serving.submit([2] * 8, replace(WARM, max_tokens=16))
    run_out(watched.serving)
    admitted = next(
        in_flight
        for plan, in_flight in watched.plans
        if isinstance(plan, Prefill) and plan.chunks[0].request is second
    )
    assert admitted == 1
    assert second.preemptions >= 1
    alone = engine(overlap=False).generate([[1] * 8], WARM)[0]
    assert ids(first) == ids(alone)
    assert ids(second) == ids(engine(overlap=False).generate([[2] * 8], second.sampling)[0])


def test_the_decode_path_asks_the_device_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor is read by the host in a steady decode but the slot's own, after its event."""
    serving = engine(buckets=(2,), max_batch=2)
    serving.submit([1], WARM)
    serving.submit([2, 3], WARM)
    for _ in range(4):
        serving.step()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the host waits for the device")

    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    # On a CPU a replay is computed by the references, which may read what they like; what is around it is the host's.
    for steps in serving.graphs._steps.values():  # type: ignore[union-attr]
        for step in steps:
            object.__setattr__(step, "graph", _Still())
    for _ in range(5):
        serving.step()


class _Still:
    def replay(self) -> None:
        """Leaves everything as it was."""


def test_a_step_that_is_refused_loses_nothing() -> None:
    serving = engine(buckets=(1, 2, 4))
    requests = [serving.submit([number, 7], WARM) for number in range(3)]
    for _ in range(4):
        serving.step()
    assert serving.graphs is not None
    buffers = serving.graphs._buffers
    bound, buffers.block_tables = buffers.block_tables, buffers.block_tables.clone()
    for _ in range(2):
        with pytest.raises(GraphContractError, match=r"buffers\.block_tables"):
            serving.step()
    buffers.block_tables = bound
    run_out(serving)
    expected = engine(overlap=False).generate([[number, 7] for number in range(3)], WARM)
    assert [ids(one) for one in requests] == [ids(one) for one in expected]
    assert serving._pool.available == serving._pool.capacity


def serve_at_random(count: int) -> None:
    """Requests of every kind, some aborted; every page and row comes back."""
    serving = engine(pages=30, buckets=(4,), max_step_tokens=24)
    generator = torch.Generator().manual_seed(4)
    numbers = iter(torch.randint(0, 1 << 30, (4 * count,), generator=generator).tolist())
    live: list[Request] = []
    for _ in range(count):
        length, new, kind, victim = next(numbers), next(numbers), next(numbers), next(numbers)
        sampling = replace(
            WARM, max_tokens=1 + new % 6, temperature=float(kind % 2), stop_ids=frozenset(range(kind % 60))
        )
        live.append(serving.submit([length % 290] * (1 + length % 11), sampling))
        serving.step()
        live = [one for one in live if one.finish_reason is None]
        if victim % 8 == 0 and live:
            serving.abort(live[victim % len(live)].id)
        while len(serving.scheduler.waiting) > 20:
            serving.step()
    run_out(serving)
    assert serving._pool.available == serving._pool.capacity
    assert sorted(serving.scheduler._rows) == [0, 1, 2, 3]
    assert not serving._requests
    assert not serving.scheduler.running


def test_no_page_leaks_over_many_random_requests() -> None:
    serve_at_random(600)


@pytest.mark.exhaustive
def test_no_page_leaks_over_ten_thousand_random_requests() -> None:
    serve_at_random(10_000)
