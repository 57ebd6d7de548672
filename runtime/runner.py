"""Gives steps to the device, and reads what they drew once they have run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kernels.token_history import TokenHistory
from runtime import sampler
from runtime.batch import StepInputs, chunks_of, make_inputs, to_device
from runtime.candidates import Candidates
from runtime.graph import DecodeGraphs, Launched
from runtime.model import Model
from runtime.request import Request, Token
from runtime.ring import Ring, Slot
from runtime.scheduler import Chunk, Decode, StepPlan


@dataclass(frozen=True)
class Flight:
    """A step on its way.

    Attributes:
        requests: those that a token is drawn for, in the order of `slot.tokens`.
        candidates: of the searches among them.
    """

    plan: StepPlan
    requests: Sequence[Request]
    slot: Slot
    log_probabilities: sampler.LogProbabilities | None
    candidates: Candidates | None


class Runner:
    """Runs steps of one model, by its captured graphs where there are some and they serve."""

    def __init__(
        self,
        model: Model,
        caches: Sequence[torch.Tensor],
        history: TokenHistory,
        ring: Ring,
        graphs: DecodeGraphs | None,
    ) -> None:
        self._model = model
        self._caches = caches
        self._history = history
        self._ring = ring
        self._graphs = graphs

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Flight:
        """Give a step to the device; returns before it has run.

        Raises:
            GraphContractError: a buffer of its graph has moved or changed; nothing was given.
        """
        slot = self._ring.acquire()
        try:
            if isinstance(plan, Decode) and plan.page_copies:
                self._copy_pages(plan.page_copies)
            launched = self._graphs.launch(plan, slot) if self._graphs is not None else None
            if launched is None:
                launched = self._launch_eager(plan, slot)
        except Exception:
            self._ring.put_back(slot)
            raise
        log_probabilities = candidates = None
        if not launched.plain:
            requests, logits = launched.requests, launched.logits
            log_probabilities = sampler.LogProbabilities.asked(logits, launched.ids, requests)
            candidates = Candidates.asked(logits, requests, self._history)
        slot.done.record()
        return Flight(plan, launched.requests, slot, log_probabilities, candidates)

    def read(self, flight: Flight) -> list[Token | str]:
        """Wait for a step; the token of each of its requests, or what is wrong with the request's logits."""
        flight.slot.done.synchronize()
        ids, status = flight.slot.tokens[:, : len(flight.requests)].tolist()
        asked = flight.log_probabilities
        return [
            sampler.PROBLEMS[code] if code else Token(chosen) if asked is None else asked.token(lane, chosen)
            for lane, (chosen, code) in enumerate(zip(ids, status, strict=True))
        ]

    def _launch_eager(self, plan: StepPlan, slot: Slot) -> Launched:
        device, chunks = self._model.device, chunks_of(plan)
        inputs = make_inputs(plan, self._caches[0].shape[3], self._history.last_ids)
        logits = self._model(inputs, self._caches, self._embedded(inputs, chunks))
        lanes = [
            (lane, request)
            for lane, chunk in enumerate(chunks)
            if chunk.samples
            for request in _sampled(chunk.request)
        ]
        requests = [request for _, request in lanes]
        if [lane for lane, _ in lanes] != list(range(len(chunks))):
            chosen = to_device(np.array([lane for lane, _ in lanes], np.int64), device)
            # Rows keep their stride, which sampling asks to be a multiple of 16 bytes.
            rows = logits.new_empty(len(requests), logits.stride(0))[:, : logits.shape[1]]
            logits = rows.copy_(logits.index_select(0, chosen))
        if not requests:
            return Launched((), logits, self._history.last_ids[:0])
        for request in requests:
            if request.sampling.processors.flags and not request.decodes and not request.in_search:
                sampler.load_history(self._history, request, self._model.config.stop_ids)
        drawn = sampler.draw(logits, sampler.LaneParameters.of(requests, device), self._history)
        for host, made in zip(slot.drawn, drawn, strict=True):
            host[: len(requests)].copy_(made, non_blocking=True)
        return Launched(requests, logits, drawn.ids)

    def _embedded(self, inputs: StepInputs, chunks: Sequence[Chunk]) -> torch.Tensor | None:
        """The step's embeddings where some of its tokens have given ones."""
        if inputs.is_decode or all(chunk.request.embeddings is None for chunk in chunks):
            return None
        x = self._model.embed(inputs.token_ids)
        first = 0
        for chunk in chunks:
            if chunk.request.embeddings is not None:
                chunk.request.embeddings.overlay(x[first : first + chunk.count], chunk.start, chunk.count)
            first += chunk.count
        return x

    def _copy_pages(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages in every layer; all are read before one is written."""
        sources, destinations = to_device(np.array(copies, np.int64).T.copy(), self._model.device)
        for cache in self._caches:
            content = cache.view(torch.uint8)  # index_copy_ knows no e4m3
            content.index_copy_(0, destinations, content.index_select(0, sources))


def _sampled(request: Request) -> Sequence[Request]:
    """Who draws from the last logits of a prompt: the request, or all of the group that it leads."""
    group = request.group
    return group.members if group is not None and group.samples_together else (request,)
