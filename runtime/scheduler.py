"""Which requests take part in the next step: admission, chunked prefill, preemption. Host only; knows no device.

Steps may be in flight: launched, their tokens not known yet. A request's state runs ahead of them; what they still read
or write is not given to others before they are collected.
"""

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.kv_cache import OutOfPages, PagePool, PrefixKeys
from runtime.request import FinishReason, Request, RequestError


@dataclass(slots=True)
class Chunk:
    """`count` tokens of `request` from `start` on, to be computed in one step.

    Attributes:
        samples: whether the step's logits after this chunk choose the request's next token.
    """

    request: Request
    start: int
    count: int
    samples: bool


@dataclass(slots=True)
class Prefill:
    """A step of prompt chunks."""

    chunks: Sequence[Chunk]


@dataclass(slots=True)
class Decode:
    """A step of one new token for each request."""

    requests: Sequence[Request]


StepPlan = Prefill | Decode


class Scheduler:
    """First come, first served; prefill and decode take turns, so that neither starves the other.

    When pages run out, the request that came last gives its own back and starts again from its tokens later.

    Args:
        pool: the cache's pages.
        max_batch: most requests that run at once.
        max_step_tokens: most prompt tokens in a step.
        reuse_prefixes: whether prompts may start from pages that earlier requests filled.
    """

    def __init__(
        self, pool: PagePool, max_batch: int, max_step_tokens: int, *, reuse_prefixes: bool = True
    ) -> None:
        self._pool = pool
        self._max_step_tokens = max_step_tokens
        self._reuse_prefixes = reuse_prefixes
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._rows = list(range(max_batch - 1, -1, -1))
        self._generations = itertools.count()
        self._decoded_last = True
        self._launched = 0
        self._collected = 0
        self._limbo: deque[tuple[int, list[int]]] = deque()
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
        needed = self._pool.pages_for(request.limit)
        if needed > self._pool.capacity:
            raise RequestError(
                f"prompt: {len(request.prompt)} tokens and {request.sampling.max_tokens} new ones need {needed} pages of"
                f" cache, there are {self._pool.capacity} in all"
            )
        request.prefix = PrefixKeys(self._pool.page_size)
        self._waiting.append(request)

    def next_step(self) -> StepPlan | None:
        """What to compute next; None when there is nothing, or nothing before a step in flight is collected.

        Pages for it are taken.
        """
        prefer_prefill = self._decoded_last or not any(request.decodes for request in self._running)
        for attempt in (self._prefill, self._decode) if prefer_prefill else (self._decode, self._prefill):
            plan = attempt()
            if plan is not None:
                self._decoded_last = isinstance(plan, Decode)
                return plan
        return None

    def launched(self, plan: StepPlan) -> int:
        """Say that the step runs, after all steps before it; returns its number."""
        self._launched += 1
        number = self._launched
        if isinstance(plan, Decode):
            for request in plan.requests:
                request.computed += 1
                request.pending += 1
        else:
            for chunk in plan.chunks:
                request = chunk.request
                request.computed = chunk.start + chunk.count
                request.last_step = number
                if chunk.samples:
                    request.pending += 1
                    request.decodes = True
        return number

    def collected(self, number: int, plan: StepPlan) -> None:
        """Say that the step has run: what it alone still used is free, full pages that it wrote may serve others."""
        self._collected = number
        while self._limbo and self._limbo[0][0] <= number:
            self._pool.release(self._limbo.popleft()[1])
        if self._reuse_prefixes:
            page_size = self._pool.page_size
            requests = plan.requests if isinstance(plan, Decode) else [chunk.request for chunk in plan.chunks]
            for request in requests:
                if request.computed // page_size > request.registered and request.row >= 0:
                    self._register(request)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request, wherever it is; its pages go back once no step in flight uses them."""
        request.finish_reason = reason
        if request.row >= 0:
            self._stop(request)
        elif request in self._waiting:
            self._waiting.remove(request)

    def _decode(self) -> Decode | None:
        # One that an earlier one of this very loop took the pages of no longer decodes, before or after its turn.
        ready = [
            request
            for request in list(self._running)
            if request.decodes and request.computed + 1 < request.limit and self._has_place(request)
        ]
        ready = [request for request in ready if request.decodes]
        return Decode(ready) if ready else None

    def _has_place(self, request: Request) -> bool:
        """Whether the request has, or gets, a place in the cache for its newest token."""
        return request.computed < len(request.pages) * self._pool.page_size or self._hold(
            request, request.computed + 1
        )

    def _prefill(self) -> Prefill | None:
        chunks: list[Chunk] = []
        budget = self._max_step_tokens
        for request in list(self._running):
            if budget and not request.decodes and request.row >= 0:
                budget -= self._add_chunk(request, budget, chunks)
        while budget and self._waiting and self._rows:
            request = self._waiting[0]
            if not self._admit(request):
                break
            self._waiting.popleft()
            self._running.append(request)
            budget -= self._add_chunk(request, budget, chunks)
        chunks = [chunk for chunk in chunks if chunk.request.row >= 0]
        return Prefill(chunks) if chunks else None

    def _add_chunk(self, request: Request, budget: int, chunks: list[Chunk]) -> int:
        """Returns how many tokens it has."""
        count = min(budget, request.length - request.computed)
        if not self._hold(request, request.computed + count):
            return 0
        chunks.append(
            Chunk(request, request.computed, count, samples=request.computed + count == request.length)
        )
        return count

    def _admit(self, request: Request) -> bool:
        """Take a row and cached pages of the prompt, if the rest of it fits without preempting anyone."""
        if self._is_in_flight(request):
            return False  # preempted with a token in flight: until that is known there is no prompt to start from
        prefix = self._take_prefix(request) if self._reuse_prefixes else []
        if self._pool.pages_for(request.length) - len(prefix) > self._pool.available:
            self._pool.release(prefix)
            return False
        request.pages = prefix
        request.row = self._rows.pop()
        request.generation = next(self._generations)
        request.registered = len(prefix)
        request.computed = len(prefix) * self._pool.page_size
        request.cached_prefix = max(request.cached_prefix, min(request.computed, len(request.prompt)))
        return True

    def _take_prefix(self, request: Request) -> list[int]:
        """At least one token is left over, since a step must compute something to have logits."""
        return self._pool.take_prefix(self._keys(request, request.length - 1))

    def _register(self, request: Request) -> None:
        known = min(request.computed, len(request.prompt) + len(request.tokens))
        keys = self._keys(request, known)
        for page in range(request.registered, len(keys)):
            self._pool.register_prefix(keys[page], request.pages[page])
        request.registered = len(keys)

    def _keys(self, request: Request, tokens: int) -> Sequence[bytes]:
        """Of the full pages among the first `tokens`; what an earlier run has computed is not computed again."""
        assert request.prefix is not None
        request.prefix.extend(request.ids(request.prefix.tokens, tokens))
        return request.prefix.keys[: tokens // self._pool.page_size]

    def _hold(self, request: Request, tokens: int) -> bool:
        """Take pages for `tokens` tokens of the request, if need be from those that came after it.

        Pages that a step in flight still uses come free soon: the request sits a step out rather than take more.
        """
        missing = self._pool.pages_for(tokens) - len(request.pages)
        while True:
            try:
                request.pages += self._pool.allocate(max(0, missing))
                return True
            except OutOfPages:
                if self._limbo:
                    return False
                victim = self._running[-1]
                self._preempt(victim)
                if victim is request:
                    return False

    def _preempt(self, request: Request) -> None:
        self._stop(request)
        request.preemptions += 1
        self.preemptions += 1
        self._waiting.appendleft(request)

    def _stop(self, request: Request) -> None:
        self._running.remove(request)
        self._rows.append(request.row)
        if self._is_in_flight(request):
            self._limbo.append((self._launched, request.pages))
        else:
            self._pool.release(request.pages)
        request.pages = []
        request.row = -1
        request.computed = 0
        request.decodes = False

    def _is_in_flight(self, request: Request) -> bool:
        return request.pending > 0 or request.last_step > self._collected
