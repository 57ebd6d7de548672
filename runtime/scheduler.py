"""Which requests take part in the next step: admission, chunked prefill, preemption. Host only; knows no device.

Steps may be in flight: launched, their tokens not known yet. A request's state runs ahead of them; what they still read
or write is not given to others before they are collected.
"""

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.groups import Group
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
    """A step of one new token for each request.

    Attributes:
        page_copies: (from, to) pages to be copied before it: of what sequences share, each writes to its own.
    """

    requests: Sequence[Request]
    page_copies: Sequence[tuple[int, int]] = ()


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
        self._max_batch = max_batch
        self._rows = list(range(max_batch - 1, -1, -1))
        # Of the free rows, those kept for the rest of a group until its leader's prompt is computed.
        self._promised = 0
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
        """Queue a request, or the leader of a group.

        Raises:
            RequestError: it could not be served even with every row and the whole cache to itself.
        """
        sequences = [request] if request.group is None else request.group.members
        if len(sequences) > self._max_batch:
            raise RequestError(f"sequences: expected at most {self._max_batch} at once, got {len(sequences)}")
        needed = self._pool.pages_for(request.limit)
        if request.in_search:  # they run together or not at all, and share the prompt's full pages
            shared = len(request.prompt) // self._pool.page_size
            needed = shared + len(sequences) * (needed - shared)
        if needed > self._pool.capacity:
            raise RequestError(
                f"prompt: {len(request.prompt)} tokens and {request.sampling.max_tokens} new ones need {needed} pages of"
                f" cache, there are {self._pool.capacity} in all"
            )
        for sequence in sequences:
            sequence.prefix = PrefixKeys(self._pool.page_size)
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
                request.steps += 1
                if request.in_search:
                    request.decodes = False
        else:
            for chunk in plan.chunks:
                request = chunk.request
                request.computed = chunk.start + chunk.count
                request.last_step = number
                request.steps += 1
                if chunk.samples:
                    group = request.group
                    if group is not None and group.samples_together:
                        self._fork(group)
                        for other in group.members[1:]:
                            other.pending, other.decodes = 1, True
                    request.pending += 1
                    request.decodes = not request.in_search
        return number

    def collected(self, number: int, plan: StepPlan) -> None:
        """Say that the step has run: what it alone still used is free, full pages that it wrote may serve others."""
        self._collected = number
        while self._limbo and self._limbo[0][0] <= number:
            self._pool.release(self._limbo.popleft()[1])
        if not self._reuse_prefixes:
            return
        page_size = self._pool.page_size
        is_decode = isinstance(plan, Decode)
        requests = plan.requests if isinstance(plan, Decode) else [chunk.request for chunk in plan.chunks]
        for request in requests:
            if (
                request.computed // page_size > request.registered
                and request.row >= 0
                and request.embeddings is None
                and not (request.in_search and is_decode)
            ):
                self._register(request)

    def go_on(self, group: Group, parents: Sequence[int]) -> None:
        """Let each sequence of a search decode from the pages of the one that it goes on from."""
        if not group.forked:
            self._fork(group)
        else:
            held = [member.pages for member in group.members]
            for parent in parents:
                self._pool.share(held[parent])
            for member, parent, old in zip(group.members, parents, held, strict=True):
                self._pool.release(old)
                if old is not held[parent]:
                    member.pages = list(held[parent])
                    member.generation = next(self._generations)
        for member in group.members:
            member.decodes = True

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request, wherever it is; its pages go back once no step in flight uses them."""
        request.finish_reason = reason
        if request.row >= 0:
            self._stop(request)
        elif request in self._waiting:
            self._waiting.remove(request)

    def _decode(self) -> Decode | None:
        page_size = self._pool.page_size
        ready: list[Request] = []
        copies: list[tuple[Request, int, int]] = []
        for request in list(self._running):
            # One that an earlier one of this very loop took the pages of no longer decodes, before or after its turn.
            if not request.decodes or request.computed + 1 >= request.limit:
                continue
            if request.group is not None:
                ready += self._with_own_pages(request, request.group, copies)
            elif request.computed < len(request.pages) * page_size or self._hold(
                request, request.computed + 1
            ):
                ready.append(request)
        ready = [request for request in ready if request.decodes]
        kept = [(source, own) for request, source, own in copies if request.decodes]
        return Decode(ready, kept) if ready else None

    def _with_own_pages(
        self, request: Request, group: Group, copies: list[tuple[Request, int, int]]
    ) -> Sequence[Request]:
        """The request, or with a search's leader all of the search, if each gets a page that it alone writes to."""
        if request.in_search and request is not group.leader:
            return ()  # it has come with its leader
        together = group.members if request.in_search else (request,)
        at = request.computed // self._pool.page_size
        holders: dict[int, int] = {}
        wanting = []
        for member in together:
            if at < len(member.pages):
                page = member.pages[at]
                left = holders.get(page, self._pool.holders(page))
                if left == 1 and not self._pool.is_registered(page):
                    continue
                holders[page] = left - 1  # the last one to hold it may write to it
            wanting.append(member)
        pages = self._take(request, len(wanting))
        if pages is None:
            return ()
        for member, own in zip(wanting, pages, strict=True):
            if at < len(member.pages):
                shared = member.pages[at]
                copies.append((member, shared, own))
                self._pool.release([shared])
                member.pages[at] = own
                member.generation = next(self._generations)
            else:
                member.pages.append(own)
        return together

    def _prefill(self) -> Prefill | None:
        chunks: list[Chunk] = []
        budget = self._max_step_tokens
        for request in list(self._running):
            if budget and not request.decodes and not request.pending and request.row >= 0:
                budget -= self._add_chunk(request, budget, chunks)
        while budget and self._waiting and self._rows:
            request = self._waiting[0]
            if not self._admit(request):
                break
            self._waiting.popleft()
            self._running.append(request)
            budget -= self._add_chunk(request, budget, chunks)
        chunks = [chunk for chunk in chunks if chunk.request.row >= 0]
        for chunk in chunks:
            group = chunk.request.group
            if chunk.samples and group is not None and group.samples_together:
                self._give_rows(group)
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
        group = request.group
        others = len(group.members) - 1 if group is not None and not group.forked else 0
        if len(self._rows) - self._promised <= others:
            return False
        reuse = self._reuse_prefixes and request.embeddings is None
        prefix = self._take_prefix(request) if reuse else []
        if self._pool.pages_for(request.length) - len(prefix) > self._pool.available:
            self._pool.release(prefix)
            return False
        self._promised += others
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
        pages = self._take(request, max(0, self._pool.pages_for(tokens) - len(request.pages)))
        if pages is None:
            return False
        request.pages += pages
        return True

    def _take(self, request: Request, count: int) -> list[int] | None:
        """Pages for the request; None where it has to sit a step out, or was itself the last to come."""
        while True:
            try:
                return self._pool.allocate(count)
            except OutOfPages:
                if self._limbo:
                    return None
                self._preempt(self._running[-1])
                if request.row < 0:
                    return None

    def _preempt(self, request: Request) -> None:
        group = request.group
        if group is not None and request.in_search:
            request = group.leader
            for member in group.members:
                if member.row >= 0 and (group.forked or member is request):
                    self._stop(member)
            group.restart()
        else:
            self._stop(request)
        request.preemptions += 1
        self.preemptions += 1
        self._waiting.appendleft(request)

    def _stop(self, request: Request) -> None:
        self._running.remove(request)
        self._rows.append(request.row)
        if request.group is not None and not request.group.forked:
            self._take_rows_back(request.group)
        if self._is_in_flight(request):
            self._limbo.append((self._launched, request.pages))
        else:
            self._pool.release(request.pages)
        request.pages = []
        request.row = -1
        request.computed = 0
        request.decodes = False

    def _give_rows(self, group: Group) -> None:
        for other in group.members[1:]:
            if other.row < 0:
                other.row = self._rows.pop()
                self._promised -= 1

    def _take_rows_back(self, group: Group) -> None:
        """The leader stops before the others have started."""
        for other in group.members[1:]:
            if other.row < 0:
                self._promised -= 1
            else:
                self._rows.append(other.row)
                other.row = -1

    def _fork(self, group: Group) -> None:
        """Let the rest of a group start from its leader's pages; they come right after it, as they came with it."""
        self._give_rows(group)
        leader, others = group.leader, group.members[1:]
        group.forked = True
        place = self._running.index(leader) + 1
        self._running[place:place] = others
        for other in others:
            other.pages = list(leader.pages)
            self._pool.share(other.pages)
            other.generation = next(self._generations)
            other.computed, other.registered = leader.computed, leader.registered
            other.cached_prefix = len(other.prompt)
            other.steps = 1

    def _is_in_flight(self, request: Request) -> bool:
        return request.pending > 0 or request.last_step > self._collected
