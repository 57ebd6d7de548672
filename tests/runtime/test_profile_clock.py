"""Stopwatches: each part of a step is timed where it lies, and gaps lie only between replays of consecutive steps."""

from collections.abc import Callable, Iterator

import pytest

from runtime.profile.clock import EventGap, ReplayEvents, StepClock


def ticking(*moments: int) -> Callable[[], int]:
    times: Iterator[int] = iter(moments)
    return lambda: next(times)


def test_a_part_lasts_from_the_mark_before_it_to_its_own() -> None:
    clock = StepClock(ticking(1000, 3000, 7000, 20_000, 20_500, 21_500))
    clock.begin()
    clock.mark("schedule")
    clock.mark("collect")
    clock.begin()
    clock.mark("schedule")
    clock.mark("collect")
    assert clock.parts_us() == {"schedule": [2.0, 0.5], "collect": [4.0, 1.0]}
    assert [[(one.part, one.start, one.end) for one in step] for step in clock.steps()] == [
        [("schedule", 1000, 3000), ("collect", 3000, 7000)],
        [("schedule", 20_000, 20_500), ("collect", 20_500, 21_500)],
    ]


def test_a_part_that_comes_twice_in_a_step_counts_once_with_its_sum() -> None:
    clock = StepClock(ticking(0, 1000, 3000, 6000))
    clock.begin()
    for part in ("copy", "check", "copy"):
        clock.mark(part)
    assert clock.parts_us() == {"copy": [4.0], "check": [2.0]}


def test_preparation_is_what_comes_up_to_the_replay_and_no_wait() -> None:
    parts = ["schedule", "lay out", "copy", "check", "replay", "collect", "deliver"]
    clock = StepClock(ticking(0, *(1000 * 2**number for number in range(len(parts)))))
    clock.begin()
    for part in parts:
        clock.mark(part)
    assert clock.preparation_us() == [16.0]


class Moment:
    """An event on a GPU whose clock is a list of moments in milliseconds; reached once `now` is past it."""

    now = 0.0

    def __init__(self, moments: Iterator[float]) -> None:
        self._moments = moments
        self.at: float | None = None

    def record(self) -> None:
        self.at = next(self._moments)

    def query(self) -> bool:
        assert self.at is not None, "an event that was never recorded"
        return self.at <= Moment.now

    def elapsed_time(self, end_event: "Moment") -> float:
        assert all((self.query(), end_event.query())), "CUDA refuses to say before both were reached"
        assert self.at is not None
        assert end_event.at is not None
        return end_event.at - self.at


@pytest.fixture
def gpu() -> Callable[..., ReplayEvents]:
    Moment.now = 1e9

    def make(*moments: float, keep: int = 100) -> ReplayEvents:
        reached = iter(moments)
        return ReplayEvents(keep, lambda: Moment(reached))

    return make


def decode(events: ReplayEvents) -> None:
    events.begin()
    for part in ("schedule", "lay out", "copy", "check", "replay", "collect", "deliver"):
        events.mark(part)


def test_a_gap_lies_between_a_replays_end_and_the_next_ones_copies_and_start(
    gpu: Callable[..., ReplayEvents],
) -> None:
    # Each step: copies may start, replay starts, replay ends.
    events = gpu(0.0, 0.5, 2.0, 2.125, 2.25, 4.0, 4.0, 4.25, 6.0)
    for _ in range(3):
        decode(events)
    assert events.drain() == [EventGap(125.0, 250.0), EventGap(0.0, 250.0)]
    assert events.drain() == []
    assert events.idle_seconds() == pytest.approx(500e-6)


def test_a_step_that_replays_nothing_parts_two_gaps(gpu: Callable[..., ReplayEvents]) -> None:
    events = gpu(*(float(number) for number in range(20)))
    decode(events)
    events.begin()  # a prefill
    events.mark("schedule")
    events.mark("lay out")
    decode(events)
    assert events.drain() == []
    events.begin()  # nothing to do
    decode(events)
    assert events.drain() == []
    decode(events)
    assert len(events.drain()) == 1


def test_gaps_that_the_gpu_has_not_passed_stay(gpu: Callable[..., ReplayEvents]) -> None:
    events = gpu(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
    for _ in range(3):
        decode(events)
    Moment.now = 5.0
    assert events.idle_seconds() == pytest.approx(2e-3)
    Moment.now = 9.0
    assert [gap.to_replay for gap in events.drain()] == [2000.0]
    assert events.idle_seconds() == pytest.approx(4e-3)


def test_unread_gaps_are_bounded(gpu: Callable[..., ReplayEvents]) -> None:
    events = gpu(*(float(number) for number in range(300)), keep=5)
    for _ in range(50):
        decode(events)
    assert len(events.drain()) == 5
