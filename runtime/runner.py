"""Gives steps to the device, and reads what they drew once they have run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kernels.token_history import TokenHistory, load_row
from runtime import sampler
from runtime.batch import chunks_of, make_inputs, to_device
from runtime.graph import DecodeGraphs, Launched
from runtime.model import Model
from runtime.request import Request, Token
from runtime.ring import Ring, Slot
from runtime.scheduler import StepPlan


@dataclass(frozen=True)
class Flight:
    """A step on its way.

    Attributes:
        requests: those that a token is drawn for, in the order of `slot.tokens`.
    """

    plan: StepPlan
    requests: Sequence[Request]
    slot: Slot
    log_probabilities: sampler.LogProbabilities | None


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
            launched = self._graphs.launch(plan, slot) if self._graphs is not None else None
            if launched is None:
                launched = self._launch_eager(plan, slot)
        except Exception:
            self._ring.put_back(slot)
            raise
        log_probabilities = sampler.LogProbabilities.asked(launched.logits, launched.ids, launched.requests)
        slot.done.record()
        return Flight(plan, launched.requests, slot, log_probabilities)

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
        device = self._model.device
        logits = self._model(
            make_inputs(plan, self._caches[0].shape[3], self._history.last_ids), self._caches
        )
        lanes = [(lane, chunk.request) for lane, chunk in enumerate(chunks_of(plan)) if chunk.samples]
        requests = [request for _, request in lanes]
        if len(requests) < len(logits):
            chosen = to_device(np.array([lane for lane, _ in lanes], np.int64), device)
            # Rows keep their stride, which sampling asks to be a multiple of 16 bytes.
            rows = logits.new_empty(len(requests), logits.stride(0))[:, : logits.shape[1]]
            logits = rows.copy_(logits.index_select(0, chosen))
        if not requests:
            return Launched((), logits, self._history.last_ids[:0])
        for request in requests:
            if request.sampling.processors.flags and not request.decodes:
                self._load_history(request)
        drawn = sampler.draw(logits, sampler.LaneParameters.of(requests, device), self._history)
        for host, made in zip(slot.drawn, drawn, strict=True):
            host[: len(requests)].copy_(made, non_blocking=True)
        return Launched(requests, logits, drawn.ids)

    def _load_history(self, request: Request) -> None:
        """The sequence starts, or starts again: its row knows nothing of it yet."""
        processors = request.sampling.processors
        stops = request.sampling.stop_ids | self._model.config.stop_ids if processors.min_tokens else ()
        generated = [token.id for token in request.tokens]
        load_row(self._history, request.row, request.prompt, generated, processors.logit_bias, stops)
