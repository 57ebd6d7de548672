"""Which requests take part in the next step: admission, chunked prefill, preemption. Host only; knows no device."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.kv_cache import OutOfPages, PagePool
from runtime.request import FinishReason, Request, RequestError


@dataclass(frozen=True)
class Chunk:
    """`count` tokens of `request` from `start` on, to be computed in one step.

    Attributes:
        samples: whether the step's logits after this chunk choose the request's next token.
    """

    request: Request
    start: int
    count: int
    samples: bool


@dataclass(frozen=True)
class StepPlan:
    """One step: either prefill chunks, or one new token of each running request (`is_decode`)."""

    chunks: tuple[Chunk, ...]
    is_decode: bool


class Scheduler:
    """First come, first served; prefill and decode take turns, so that neither starves the other.

    When pages run out, the request that came last gives its own back and starts again from its tokens later.

    Args:
        pool: the cache's pages.
        max_batch: most requests in a step.
        max_step_tokens: most prompt tokens in a step.
        reuse_prefixes: whether prompts may start from pages that earlier requests filled.
    """

    def __init__(
        self, pool: PagePool, max_batch: int, max_step_tokens: int, *, reuse_prefixes: bool = True
    ) -> None:
        self._pool = pool
        self._max_batch = max_batch
        self._max_step_tokens = max_step_tokens
        self._reuse_prefixes = reuse_prefixes
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._decoded_last = True
        self.preemptions = 0

    @property
    def waiting(self) -> Sequence[Request]:
        return tuple(self._waiting)

    @property
    def running(self) -> Sequence[Request]:
        return tuple(self._running)

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            RequestError: it could not be served even with the whole cache to itself.
        """
        needed = self._pool.pages_for(len(request.prompt) + request.sampling.max_tokens)
        if needed > self._pool.capacity:
            raise RequestError(
                f"prompt: {len(request.prompt)} tokens and {request.sampling.max_tokens} new ones need {needed} pages of"
                f" cache, there are {self._pool.capacity} in all"
            )
        self._waiting.append(request)

    def next_step(self) -> StepPlan | None:
        """What to compute next; None when there is nothing. Pages for it are taken."""
        prefer_prefill = self._decoded_last or not any(request.is_prefilled for request in self._running)
        for attempt in (self._prefill, self._decode) if prefer_prefill else (self._decode, self._prefill):
            chunks = attempt()
            if chunks:
                self._decoded_last = attempt == self._decode
                return StepPlan(tuple(chunks), self._decoded_last)
        return None

    def computed(self, chunk: Chunk) -> None:
        """Say that the chunk's keys and values are in the cache; its full pages may serve others."""
        request = chunk.request
        request.computed = chunk.start + chunk.count
        if self._reuse_prefixes:
            self._pool.register_prefix(request.ids[: request.computed], request.pages)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request, wherever it is; its pages go back."""
        request.finish_reason = reason
        if request in self._running:
            self._running.remove(request)
        elif request in self._waiting:
            self._waiting.remove(request)
        self._give_back(request)

    def _decode(self) -> list[Chunk]:
        # One that was preempted for an earlier one of this very loop is no longer running, before or after its turn.
        chunks = [
            Chunk(request, request.computed, 1, samples=True)
            for request in list(self._running)
            if request in self._running and request.is_prefilled and self._hold(request, request.length)
        ]
        return [chunk for chunk in chunks if chunk.request in self._running]

    def _prefill(self) -> list[Chunk]:
        chunks: list[Chunk] = []
        budget = self._max_step_tokens
        for request in list(self._running):
            if budget and not request.is_prefilled and request in self._running:
                chunks += self._chunk(request, budget)
                budget = self._max_step_tokens - sum(chunk.count for chunk in chunks)
        while budget and self._waiting and len(self._running) < self._max_batch:
            request = self._waiting[0]
            if not self._admit(request):
                break
            self._waiting.popleft()
            self._running.append(request)
            chunks += self._chunk(request, budget)
            budget = self._max_step_tokens - sum(chunk.count for chunk in chunks)
        return [chunk for chunk in chunks if chunk.request in self._running]

    def _chunk(self, request: Request, budget: int) -> list[Chunk]:
        count = min(budget, request.length - request.computed)
        if not self._hold(request, request.computed + count):
            return []
        return [Chunk(request, request.computed, count, samples=request.computed + count == request.length)]

    def _admit(self, request: Request) -> bool:
        """Take cached pages of the prompt, if the rest of it fits without preempting anyone."""
        prefix = self._pool.take_prefix(request.ids) if self._reuse_prefixes else []
        if self._pool.pages_for(request.length) - len(prefix) > self._pool.available:
            self._pool.release(prefix)
            return False
        request.pages = prefix
        request.computed = len(prefix) * self._pool.page_size
        request.cached_prefix = max(request.cached_prefix, min(request.computed, len(request.prompt)))
        return True

    def _hold(self, request: Request, tokens: int) -> bool:
        """Take pages for `tokens` tokens of the request, if need be from those that came after it."""
        missing = self._pool.pages_for(tokens) - len(request.pages)
        while True:
            try:
                request.pages += self._pool.allocate(max(0, missing))
                return True
            except OutOfPages:
                victim = self._running[-1]
                self._preempt(victim)
                if victim is request:
                    return False

    def _preempt(self, request: Request) -> None:
        self._running.remove(request)
        self._give_back(request)
        request.preemptions += 1
        self.preemptions += 1
        self._waiting.appendleft(request)

    def _give_back(self, request: Request) -> None:
        self._pool.release(request.pages)
        request.pages = []
        request.computed = 0
