"""Who runs when: the schedule of pretend engines that compute nothing, but check that everything was computed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kv_cache import PagePool
from runtime.request import FinishReason, Request, RequestError, SamplingParameters, Token
from runtime.scheduler import Scheduler, StepPlan

PAGE = 4


def request(name: str, prompt: int, new: int, first: int = 0) -> Request:
    return Request(name, tuple(range(first, first + prompt)), SamplingParameters(max_tokens=new), seed=0)


class Pretend:
    """Runs a schedule; keeps what each cache page holds, and checks that a step only reads what was written."""

    def __init__(self, pages: int, max_batch: int = 4, max_step_tokens: int = 8, **options: bool) -> None:
        self.pool = PagePool(pages, PAGE)
        self.scheduler = Scheduler(self.pool, max_batch, max_step_tokens, **options)
        self.written: dict[tuple[int, int], tuple[int, ...]] = {}
        self.steps: list[StepPlan] = []

    def step(self) -> bool:
        plan = self.scheduler.next_step()
        if plan is None:
            return False
        self.steps.append(plan)
        assert len({id(chunk.request) for chunk in plan.chunks}) == len(plan.chunks)
        for chunk in plan.chunks:
            ids = chunk.request.ids
            assert len(chunk.request.pages) * PAGE >= chunk.start + chunk.count
            for position in range(chunk.start + chunk.count):
                place = (chunk.request.pages[position // PAGE], position % PAGE)
                if position >= chunk.start:
                    self.written[place] = tuple(ids[: position + 1])
                # A key depends on all tokens before it: what lies here must have been computed from the same ones.
                assert self.written.get(place) == tuple(ids[: position + 1])
        for chunk in plan.chunks:
            self.scheduler.computed(chunk)
            if chunk.samples:
                self._sample(chunk.request)
        return True

    def _sample(self, request: Request) -> None:
        request.tokens.append(Token(1000 + len(request.tokens)))
        if len(request.tokens) == request.sampling.max_tokens:
            self.scheduler.finish(request, FinishReason.LENGTH)

    def run(self, limit: int = 2000) -> None:
        while self.step():
            limit -= 1
            assert limit, "the schedule does not end"


def test_one_request_prefills_in_chunks_then_decodes() -> None:
    engine = Pretend(pages=10)
    engine.scheduler.submit(request("a", 19, 3))
    engine.run()
    assert [(plan.is_decode, [chunk.count for chunk in plan.chunks]) for plan in engine.steps] == [
        (False, [8]), (False, [8]), (False, [3]), (True, [1]), (True, [1])
    ]  # fmt: skip
    assert engine.pool.available == engine.pool.capacity


def test_prefill_and_decode_take_turns() -> None:
    engine = Pretend(pages=40)
    engine.scheduler.submit(request("a", 4, 6))
    engine.step()
    engine.scheduler.submit(request("b", 30, 1, first=100))
    engine.run()
    kinds = [plan.is_decode for plan in engine.steps]
    assert kinds[:8] == [False, True, False, True, False, True, False, True]


def test_a_prompt_that_another_request_has_computed_is_not_computed_again() -> None:
    engine = Pretend(pages=40, max_step_tokens=64)
    engine.scheduler.submit(request("a", 20, 2))
    engine.run()
    second = request("b", 20, 2)
    engine.scheduler.submit(second)
    engine.run()
    assert second.cached_prefix == 16
    assert engine.steps[2].chunks[0].count == 4


def test_without_reuse_every_prompt_is_computed() -> None:
    engine = Pretend(pages=40, max_step_tokens=64, reuse_prefixes=False)
    engine.scheduler.submit(request("a", 20, 2))
    engine.run()
    engine.scheduler.submit(request("b", 20, 2))
    engine.run()
    assert [chunk.count for plan in engine.steps if not plan.is_decode for chunk in plan.chunks] == [20, 20]


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


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(st.integers(1, 14), st.integers(1, 14), st.integers(0, 1)), min_size=1, max_size=8),
    st.integers(8, 16),
    st.integers(1, 4),
    st.integers(1, 9),
    st.booleans(),
)
def test_everything_finishes_whatever_the_sizes(
    sizes: list[tuple[int, int, int]], pages: int, max_batch: int, max_step_tokens: int, reuse: bool
) -> None:
    engine = Pretend(pages, max_batch, max_step_tokens, reuse_prefixes=reuse)
    requests = [
        request(str(n), prompt, new, first=100 * group) for n, (prompt, new, group) in enumerate(sizes)
    ]
    for one in requests:
        engine.scheduler.submit(one)
    engine.run()
    for one in requests:
        assert one.finish_reason == FinishReason.LENGTH
        assert [token.id for token in one.tokens] == list(range(1000, 1000 + one.sampling.max_tokens))
    assert engine.pool.available == engine.pool.capacity
