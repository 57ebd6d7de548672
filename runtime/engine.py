"""Requests in, tokens out: the loop that schedules, computes and samples."""

import math
import secrets
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels.token_history import MAX_STOP, TokenHistory
from runtime.aux_info import AuxInfo
from runtime.beam import BeamParameters
from runtime.clock import NO_CLOCK, Clock
from runtime.embeddings import InputEmbeddings
from runtime.graph import DecodeGraphs
from runtime.groups import Group
from runtime.kv_cache import PagePool, allocate_cache
from runtime.model import Model
from runtime.request import FinishReason, Request, RequestError, SamplingParameters, Token, check_prompt
from runtime.ring import Ring
from runtime.runner import Flight, Runner
from runtime.scheduler import Scheduler
from runtime.tokenizer import TextStream, Tokenizer

SEEDS = 1 << 63


@dataclass(frozen=True)
class EngineOptions:
    """Sizes of an engine.

    Attributes:
        pages: cache pages, the null page among them.
        page_size: tokens of a page.
        max_batch: most requests in a step.
        max_step_tokens: most prompt tokens in a step; longer prompts are computed in chunks.
        cache_dtype: of keys and values; None takes the model's.
        reuse_prefixes: whether prompts may start from pages that earlier requests filled.
        buckets: lanes of captured decode steps, captured when first needed; None computes every step eagerly.
        overlap: prepare each step while the one before it runs. A sequence's end is then noticed a step late, and the
            token drawn after it discarded; what callers get is the same.
    """

    pages: int
    page_size: int = 16
    max_batch: int = 64
    max_step_tokens: int = 2048
    cache_dtype: torch.dtype | None = None
    reuse_prefixes: bool = True
    buckets: tuple[int, ...] | None = None
    overlap: bool = True


@dataclass(frozen=True)
class Output:
    """What one step gave one request.

    Attributes:
        token: None when the request ended without one (an abort, an error).
        text: what the token completes, if the engine has a tokenizer; stop strings are left out.
    """

    request: Request
    token: Token | None
    text: str = ""


class Engine:
    """Serves requests over one model; a step at a time, or to their end with `generate`.

    A request that cannot be served raises, or ends with an error of its own; the others go on.
    """

    def __init__(self, model: Model, options: EngineOptions, tokenizer: Tokenizer | None = None) -> None:
        self._model = model
        self._options = options
        self._tokenizer = tokenizer
        self._pool = PagePool(options.pages, options.page_size)
        self.scheduler = Scheduler(
            self._pool, options.max_batch, options.max_step_tokens, reuse_prefixes=options.reuse_prefixes
        )
        config, device = model.config, model.device
        dtype = options.cache_dtype or config.dtype
        caches = allocate_cache(config, options.pages, options.page_size, dtype, device)
        history = TokenHistory(options.max_batch, config.vocab_size, config.max_length, device)
        self._in_flight = 1 if options.overlap else 0
        ring = Ring(self._in_flight + 2, options.max_batch, device)
        self.graphs: DecodeGraphs | None = None
        if options.buckets is not None:
            max_pages = self._pool.pages_for(config.max_length)
            self.graphs = DecodeGraphs(
                model, caches, options.buckets, options.max_batch, max_pages, history, ring
            )
        self._runner = Runner(model, caches, history, ring, self.graphs)
        self._flights: deque[tuple[int, Flight]] = deque()
        self._clock = NO_CLOCK
        self._streams: dict[str, TextStream] = {}
        self._requests: dict[str, Request] = {}

    @property
    def clock(self) -> Clock:
        """Hears of the parts of each step."""
        return self._clock

    @clock.setter
    def clock(self, clock: Clock) -> None:
        self._clock = clock
        if self.graphs is not None:
            self.graphs.clock = clock

    def submit(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParameters,
        request_id: str | None = None,
        *,
        n: int = 1,
        beams: BeamParameters | None = None,
        embeddings: InputEmbeddings | None = None,
    ) -> Request:
        """Queue a prompt.

        Args:
            n: answers to it, drawn from one computation of the prompt with seeds counting up; `siblings` of what is
                returned has all of them, with ids `request_id`, `request_id.1`, ...
            beams: search for the likeliest answers instead of drawing; they come whole, at the end.
            embeddings: of prompt tokens; whole, they stand for a prompt that may be empty. No prefix is reused for them.

        Raises:
            RequestError: the prompt or the parameters cannot be served, or the id is in use.
        """
        request_id = request_id or secrets.token_hex(8)
        config = self._model.config
        ids = self._encode(prompt) if isinstance(prompt, str) else prompt
        if embeddings is not None and embeddings.positions is None and not ids:
            ids = (0,) * len(embeddings.rows)
        checked = check_prompt(ids, config.vocab_size, config.max_length, sampling.max_tokens)
        stop_ids = frozenset() if sampling.ignore_stop_ids else sampling.stop_ids | config.stop_ids
        self._check_sampling(sampling, n, beams)
        seed = sampling.seed if sampling.seed is not None else secrets.randbits(62)
        count = n if beams is None else beams.beams
        names = [request_id, *(f"{request_id}.{number}" for number in range(1, count))]
        requests = [
            Request(name, checked, sampling, (seed + number) % SEEDS) for number, name in enumerate(names)
        ]
        if count > 1:
            Group(requests, beams, stop_ids, config.vocab_size)
        if embeddings is not None:
            prepared = embeddings.prepare(config, len(checked), self._model.device)
            for request in requests:
                request.embeddings = prepared
        answers = requests[0].siblings
        for request in answers:
            if request.id in self._requests:
                raise RequestError(f"request_id: {request.id} is being served already")
        self.scheduler.submit(requests[0])
        for request in answers:
            self._requests[request.id] = request
            if self._tokenizer is not None and beams is None:
                self._streams[request.id] = TextStream(self._tokenizer, sampling.stop)
        return requests[0]

    def abort(self, request_id: str) -> None:
        """End a request early, with its siblings; what steps in flight draw for it is discarded.

        Raises:
            RequestError: it is unknown, or has ended already.
        """
        if request_id not in self._requests:
            raise RequestError(f"request_id: {request_id} is not being served")
        request = self._requests[request_id]
        for sibling in request.siblings:
            if sibling.finish_reason is None:
                self._end(sibling, FinishReason.ABORT)
        if request.in_search and request.group is not None:
            self._end_beams(request.group, FinishReason.ABORT)

    def has_work(self) -> bool:
        """Whether `step` has anything to do, steps in flight included."""
        return bool(self._requests or self._flights)

    def step(self) -> list[Output]:
        """Launch the next step, then collect the one before it; what that gave each request that sampled.

        Empty when there is nothing to do, or nothing has been collected yet.
        """
        self._clock.begin()
        plan = self.scheduler.next_step()
        self._clock.mark("schedule")
        if plan is not None:
            flight = self._runner.launch(plan)
            self._flights.append((self.scheduler.launched(plan), flight))
            self._clock.mark("read back")
        if not self._flights or (plan is not None and len(self._flights) <= self._in_flight):
            return []
        return self._collect()

    def generate(self, prompts: Sequence[str | Sequence[int]], sampling: SamplingParameters) -> list[Request]:
        """Serve prompts to their end, in order; other requests of the engine go on beside them."""
        requests = [self.submit(prompt, sampling) for prompt in prompts]
        while any(request.finish_reason is None for request in requests):
            self.step()
        return requests

    def stream(self, request: Request) -> Iterator[Output]:
        """A submitted request's outputs as they come; the engine's other requests go on beside it."""
        while request.finish_reason is None:
            yield from (output for output in self.step() if output.request is request)

    def _check_sampling(self, sampling: SamplingParameters, n: int, beams: BeamParameters | None) -> None:
        if sampling.stop and self._tokenizer is None:
            raise RequestError("stop: this engine has no tokenizer to find stop strings with; use stop_ids")
        sampling.processors.check(self._model.config.vocab_size)
        stops = len(sampling.stop_ids | self._model.config.stop_ids)
        if sampling.processors.min_tokens and stops > MAX_STOP:
            raise RequestError(
                f"stop_ids: expected at most {MAX_STOP} with the model's own where min_tokens is set, got {stops}"
            )
        if sampling.processors.min_tokens > sampling.max_tokens:
            raise RequestError(
                f"min_tokens: expected at most max_tokens, {sampling.max_tokens}, got {sampling.processors.min_tokens}"
            )
        if type(n) is not int or n < 1:
            raise RequestError(f"n: expected a whole number of at least 1, got {n!r}")
        if beams is None:
            return
        for name, refused in (
            ("n", n > 1),
            ("temperature", sampling.temperature > 0),
            ("stop", bool(sampling.stop)),
        ):
            if refused:
                raise RequestError(
                    f"{name}: a search by beams draws nothing, ends at stop ids alone, and has return_sequences"
                )

    def _encode(self, text: str) -> list[int]:
        if self._tokenizer is None:
            raise RequestError("prompt: this engine has no tokenizer; give token ids")
        return self._tokenizer.encode(text)

    def _collect(self) -> list[Output]:
        number, flight = self._flights.popleft()
        tokens = self._runner.read(flight)
        self._clock.mark("collect")
        self.scheduler.collected(number, flight.plan)
        outputs = []
        for request, token in zip(flight.requests, tokens, strict=True):
            request.pending -= 1
            if request.finish_reason is None and not request.in_search:
                outputs.append(self._deliver(request, token))  # else it ended while this step was in flight
        if flight.candidates is not None:
            for group, ids, logprobs in flight.candidates.read():
                if group.leader.finish_reason is None:
                    outputs += self._advance(group, ids, logprobs)
        self._clock.mark("deliver")
        return outputs

    def _advance(
        self, group: Group, ids: npt.NDArray[np.int64], logprobs: npt.NDArray[np.float32]
    ) -> list[Output]:
        """Take a search one token further; its answers, once it is done."""
        try:
            choices = group.advance(ids, logprobs)
        except RequestError as error:
            return self._fail(group, str(error))
        if choices:
            if math.isnan(group.leader.first_token):
                group.leader.first_token = time.perf_counter()
            self.scheduler.go_on(group, [choice.parent for choice in choices])
            return []
        answers = group.results()
        outputs = []
        for request, answer in zip(group.leader.siblings, answers, strict=False):
            with_logprobs = request.sampling.logprobs is not None
            request.tokens = [
                Token(token, logprob if with_logprobs else None)
                for token, logprob in zip(answer.tokens, answer.logprobs, strict=True)
            ]
            if self._tokenizer is not None:
                request.text = self._tokenizer.decode(answer.tokens[: -1 if answer.stopped else None])
            self._end(request, FinishReason.STOP if answer.stopped else FinishReason.LENGTH)
            outputs.append(Output(request, request.tokens[-1], request.text))
        return outputs + self._fail(group, "no further sequence of the search could end")

    def _fail(self, group: Group, error: str) -> list[Output]:
        """End with an error what of a search's answers has not ended, and the beams that are no answer."""
        failed = [request for request in group.leader.siblings if request.finish_reason is None]
        for request in failed:
            request.error = error
            self._end(request, FinishReason.ERROR)
        self._end_beams(group, FinishReason.LENGTH)
        return [Output(request, None) for request in failed]

    def _end_beams(self, group: Group, reason: FinishReason) -> None:
        """Those that are no answer."""
        for beam in group.members:
            if beam.finish_reason is None:
                self.scheduler.finish(beam, reason)

    def _deliver(self, request: Request, token: Token | str) -> Output:
        if isinstance(token, str):
            request.error = token
            self._end(request, FinishReason.ERROR)
            return Output(request, None)
        stream = self._streams.get(request.id)
        if not request.tokens:
            request.first_token = time.perf_counter()
        request.tokens.append(token)
        is_stop = not request.sampling.ignore_stop_ids and (
            token.id in self._model.config.stop_ids or token.id in request.sampling.stop_ids
        )
        text = "" if stream is None or is_stop else stream.push(token.id)
        if is_stop or (stream is not None and stream.stopped):
            reason = FinishReason.STOP
        elif len(request.tokens) == request.sampling.max_tokens:
            reason = FinishReason.LENGTH
        else:
            request.text += text
            return Output(request, token, text)
        text += stream.finish() if stream is not None else ""
        request.text += text
        self._end(request, reason)
        return Output(request, token, text)

    def _end(self, request: Request, reason: FinishReason) -> None:
        if request.in_search and reason in (FinishReason.ABORT, FinishReason.ERROR):
            request.tokens = []  # what a beam held was no answer yet
        self.scheduler.finish(request, reason)
        del self._requests[request.id]
        self._streams.pop(request.id, None)
        leader = request.group.leader if request.in_search and request.group is not None else request
        request.aux = AuxInfo.of(request, leader, time.perf_counter())
