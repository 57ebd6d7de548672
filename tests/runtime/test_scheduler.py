"""Who runs when: the schedule of pretend engines that compute nothing, but check that everything was computed."""

from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.batch import chunks_of
from runtime.kv_cache import PagePool
from runtime.request import FinishReason, Request, RequestError, SamplingParameters, Token
from runtime.scheduler import Chunk, Decode, Scheduler, StepPlan

PAGE = 4


def request(name: str, prompt: int, new: int, first: int = 0) -> Request:
    return Request(name, tuple(range(first, first + prompt)), SamplingParameters(max_tokens=new), seed=0)


class Pretend:
    """Runs a schedule; keeps what each cache page holds, and checks that a step only reads what was written."""

    def __init__(
        self, pages: int, max_batch: int = 4, max_step_tokens: int = 8, depth: int = 0, **options: bool
    ) -> None:
        self.pool = PagePool(pages, PAGE)
        self.scheduler = Scheduler(self.pool, max_batch, max_step_tokens, **options)
        self.written: dict[tuple[int, int], tuple[int, ...]] = {}
        self.steps: list[tuple[bool, list[int]]] = []
        self.depth = depth
        self.ends: dict[str, int] = {}
        self.flights: deque[tuple[int, StepPlan, list[Request], dict[Request, list[int]]]] = deque()

    def step(self, before_collecting: Callable[[], None] = lambda: None) -> bool:
        plan = self.scheduler.next_step()
        if plan is None and not self.flights:
            return False
        if plan is not None:
            self._launch(plan)
        before_collecting()
        if plan is None or len(self.flights) > self.depth:
            self._collect()
        return True

    def _launch(self, plan: StepPlan) -> None:
        chunks = chunks_of(plan)
        self.steps.append((isinstance(plan, Decode), [chunk.count for chunk in chunks]))
        assert len({id(chunk.request) for chunk in chunks}) == len(chunks)
        assert len({chunk.request.row for chunk in self.scheduler_rows(chunks)}) == len(chunks)
        for chunk in chunks:
            ids = self.ids(chunk.request)
            assert len(chunk.request.pages) * PAGE >= chunk.start + chunk.count
            for position in range(chunk.start + chunk.count):
                place = (chunk.request.pages[position // PAGE], position % PAGE)
                if position >= chunk.start:
                    # Whatever a step in flight reads or writes is not written by anyone but its own request.
                    assert place[0] not in self.in_flight_pages(chunk.request)
                    self.written[place] = tuple(ids[: position + 1])
                # A key depends on all tokens before it: what lies here must have been computed from the same ones.
                assert self.written.get(place) == tuple(ids[: position + 1])
        pages = {chunk.request: list(chunk.request.pages) for chunk in chunks}
        number = self.scheduler.launched(plan)
        self.flights.append((number, plan, [chunk.request for chunk in chunks if chunk.samples], pages))

    def _collect(self) -> None:
        number, plan, samples, _ = self.flights.popleft()
        self.scheduler.collected(number, plan)
        for request in samples:
            request.pending -= 1
            if request.finish_reason is None:
                request.tokens.append(Token(1000 + len(request.tokens)))
                if len(request.tokens) == min(request.sampling.max_tokens, self.ends.get(request.id, 99)):
                    self.scheduler.finish(request, FinishReason.LENGTH)

    def ids(self, request: Request) -> list[int]:
        """Its tokens, those in flight as they will be."""
        known = request.ids(0, request.length)
        return known + [1000 + len(request.tokens) + more for more in range(request.length - len(known))]

    def in_flight_pages(self, but: Request) -> set[int]:
        return {
            page
            for *_, pages in self.flights
            for request, held in pages.items()
            if request is not but
            for page in held[request.registered :]
        }

    def scheduler_rows(self, chunks: list[Chunk]) -> list[Chunk]:
        assert all(0 <= chunk.request.row < 4 for chunk in chunks)
        return chunks

    def run(self, limit: int = 2000) -> None:
        while self.step():
            limit -= 1
            assert limit, "the schedule does not end"


def test_one_request_prefills_in_chunks_then_decodes() -> None:
    engine = Pretend(pages=10)
    engine.scheduler.submit(request("a", 19, 3))
    engine.run()
    assert engine.steps == [
        (False, [8]), (False, [8]), (False, [3]), (True, [1]), (True, [1])
    ]  # fmt: skip
    assert engine.pool.available == engine.pool.capacity


def test_prefill_and_decode_take_turns() -> None:
    engine = Pretend(pages=40)
    engine.scheduler.submit(request("a", 4, 6))
    engine.step()
    engine.scheduler.submit(request("b", 30, 1, first=100))
    engine.run()
    kinds = [is_decode for is_decode, _ in engine.steps]
    assert kinds[:8] == [False, True, False, True, False, True, False, True]


def test_a_prompt_that_another_request_has_computed_is_not_computed_again() -> None:
    engine = Pretend(pages=40, max_step_tokens=64)
    engine.scheduler.submit(request("a", 20, 2))
    engine.run()
    second = request("b", 20, 2)
    engine.scheduler.submit(second)
    engine.run()
    assert second.cached_prefix == 16
    assert engine.steps[2] == (False, [4])


def test_without_reuse_every_prompt_is_computed() -> None:
    engine = Pretend(pages=40, max_step_tokens=64, reuse_prefixes=False)
    engine.scheduler.submit(request("a", 20, 2))
    engine.run()
    engine.scheduler.submit(request("b", 20, 2))
    engine.run()
    assert [counts for is_decode, counts in engine.steps if not is_decode] == [[20], [20]]


def test_the_last_to_come_gives_way_and_finishes_all_the_same() -> None:
    engine = Pretend(pages=8, reuse_prefixes=False)
    first, second = request("a", 8, 16), request("b", 8, 16, first=100)
    engine.scheduler.submit(first)
    engine.scheduler.submit(second)
    engine.run()
    assert first.preemptions == 0
    assert second.preemptions >= 1
    assert [token.id for token in second.tokens] == list(range(1000, 1016))
    assert engine.pool.available == engine.pool.capacity


def test_a_request_that_can_never_fit_is_refused_at_once() -> None:
    engine = Pretend(pages=4)
    engine.scheduler.submit(request("fits", 10, 2))
    with pytest.raises(
        RequestError, match="prompt: 10 tokens and 3 new ones need 4 pages of cache, there are 3 in all"
    ):
        engine.scheduler.submit(request("never", 10, 3))


def test_abort_frees_pages_wherever_the_request_is() -> None:
    engine = Pretend(pages=10, max_batch=1)
    running, waiting = request("a", 12, 8), request("b", 4, 1)
    engine.scheduler.submit(running)
    engine.scheduler.submit(waiting)
    engine.step()
    engine.scheduler.finish(running, FinishReason.ABORT)
    engine.scheduler.finish(waiting, FinishReason.ABORT)
    assert engine.scheduler.next_step() is None
    assert engine.pool.available == engine.pool.capacity
    assert running.finish_reason == FinishReason.ABORT


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.tuples(st.integers(1, 14), st.integers(1, 14), st.integers(0, 1), st.integers(1, 20)),
        min_size=1,
        max_size=8,
    ),
    st.integers(8, 16),
    st.integers(1, 4),
    st.integers(1, 9),
    st.booleans(),
    st.integers(0, 1),
)
def test_everything_finishes_whatever_the_sizes(
    sizes: list[tuple[int, int, int, int]],
    pages: int,
    max_batch: int,
    max_step_tokens: int,
    reuse: bool,
    depth: int,
) -> None:
    """Ends that only the tokens tell come a step late where steps are in flight; no page goes to two."""
    engine = Pretend(pages, max_batch, max_step_tokens, depth, reuse_prefixes=reuse)
    requests = [
        request(str(n), prompt, new, first=100 * group) for n, (prompt, new, group, _) in enumerate(sizes)
    ]
    engine.ends = {str(n): end for n, (*_, end) in enumerate(sizes)}
    for one in requests:
        engine.scheduler.submit(one)
    engine.run()
    for one in requests:
        assert one.finish_reason == FinishReason.LENGTH
        new = min(one.sampling.max_tokens, engine.ends[one.id])
        assert [token.id for token in one.tokens] == list(range(1000, 1000 + new))
    assert engine.pool.available == engine.pool.capacity


def test_pages_of_an_ended_request_wait_for_the_step_that_reads_them() -> None:
    engine = Pretend(pages=10, depth=1)
    ended, other = request("a", 4, 8), request("b", 4, 8, first=100)
    engine.ends = {"a": 2}
    engine.scheduler.submit(ended)
    engine.scheduler.submit(other)
    while ended.finish_reason is None:
        engine.step()
    (_, _, _, pages) = engine.flights[0]
    assert pages[ended], "the step in flight has the request in it, whose end only the step before told"
    free = engine.pool.available
    engine._collect()
    assert engine.pool.available == free + len(pages[ended])


def test_a_preempted_request_starts_again_only_when_its_token_in_flight_is_known() -> None:
    engine = Pretend(pages=8, depth=1, reuse_prefixes=False)
    first, second = request("a", 8, 16), request("b", 8, 16, first=100)
    engine.scheduler.submit(first)
    engine.scheduler.submit(second)
    in_flight: list[tuple[int, int]] = []
    while not second.preemptions:
        engine.step(before_collecting=lambda: in_flight.append((second.preemptions, second.pending)))
        assert second not in engine.scheduler.running or not second.preemptions
    assert (1, 1) in in_flight
    engine.run()
    assert [token.id for token in second.tokens] == list(range(1000, 1016))
