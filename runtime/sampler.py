"""The next token of each lane, and its log probability where a request asks for it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels import sampling
from kernels.logits_processors import process_logits, record_tokens
from kernels.logits_processors_reference import process_logits_reference, record_tokens_reference
from kernels.sampling_reference import HAS_INFINITY, HAS_NAN, NOTHING_LEFT, Sampled, sample_reference
from kernels.token_history import ProcessorLanes, TokenHistory, load_row
from runtime.lanes import PROCESSOR_FIELDS, LaneBlock
from runtime.request import Request, Token

PROBLEMS = {
    HAS_NAN: "the logits hold NaN",
    NOTHING_LEFT: "every token is ruled out (all logits are -inf)",
    HAS_INFINITY: "the logits hold +inf",
}


@dataclass(frozen=True)
class LaneParameters:
    """What sampling reads of each lane, `[batch]` on the device."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seeds: torch.Tensor
    positions: torch.Tensor
    processors: ProcessorLanes

    @classmethod
    def of(cls, requests: Sequence[Request], device: torch.device) -> "LaneParameters":
        """The requests' parameters. A token's position is its place in the sequence, prompt included: a request that
        is preempted and starts again draws the same numbers."""
        block = LaneBlock(len(requests), pinned=device.type == "cuda")
        for lane, request in enumerate(requests):
            block.describe(lane, request)
            block.columns["sample_position"][lane] = request.length

        def put(name: str) -> torch.Tensor:
            return block.fields[name].to(device, non_blocking=True)

        names = ("temperature", "top_k", "top_p", "min_p", "seed", "sample_position")
        return cls(*map(put, names), ProcessorLanes(*map(put, PROCESSOR_FIELDS)))


def draw(
    logits: torch.Tensor, lanes: LaneParameters, history: TokenHistory, drawn: torch.Tensor | None = None
) -> Sampled:
    """One token a lane of logits `[batch, vocab]`, which the lanes' processors change before; the history learns of it.

    No host synchronisation, so that a graph can hold it. `drawn` int32 [2, at least batch] takes ids and status.
    """
    filters = {"top_k": lanes.top_k, "top_p": lanes.top_p, "min_p": lanes.min_p}
    chosen_by = (logits, lanes.temperature, lanes.seeds, lanes.positions)
    processors = lanes.processors
    if logits.is_cuda:
        process_logits(logits, processors, history)
        ids, status = (None, None) if drawn is None else drawn[:, : logits.shape[0]]
        sampled = sampling.sample(*chosen_by, ids=ids, status=status, **filters)
        record_tokens(sampled.ids, processors.rows, processors.flags, history)
        return sampled
    process_logits_reference(logits, processors, history)
    sampled = sample_reference(*chosen_by, **filters)
    record_tokens_reference(sampled.ids, processors.rows, processors.flags, history)
    if drawn is not None:
        for out, made in zip(drawn, sampled, strict=True):
            out[: len(made)] = made
    return sampled


def load_history(history: TokenHistory, request: Request, model_stops: frozenset[int]) -> None:
    """Tell a request's row of the history its sequence, which starts there, or starts again."""
    processors = request.sampling.processors
    held_back = processors.min_tokens > 0 and not request.sampling.ignore_stop_ids
    stops = request.sampling.stop_ids | model_stops if held_back else frozenset()
    stops = {token for token in stops if 0 <= token < history.vocabulary}
    prompt = () if request.embeddings is not None and request.embeddings.is_whole else request.prompt
    generated = [token.id for token in request.tokens]
    load_row(history, request.row, prompt, generated, processors.logit_bias, stops)


class LogProbabilities:
    """Log probabilities that requests of one step asked for: computed with it, read once it has run."""

    def __init__(self, logits: torch.Tensor, ids: torch.Tensor, wanted: Sequence[int | None]) -> None:
        """`logits` [batch, vocab] and drawn `ids` [batch]; a lane that wants `None` gets nothing."""
        self._wanted = wanted
        most = max(count for count in wanted if count is not None)
        compute = sampling.log_probabilities if logits.is_cuda else _log_probabilities_reference
        # Into pinned memory, behind the step: reading it here would wait for the device.
        self._chosen, self._top_ids, self._top = (
            to_host(tensor) for tensor in compute(logits, ids, top=most)
        )

    @classmethod
    def asked(
        cls, logits: torch.Tensor, ids: torch.Tensor, requests: Sequence[Request]
    ) -> "LogProbabilities | None":
        """For the requests of the lanes; None where none of them asks."""
        wanted = [request.sampling.logprobs for request in requests]
        return cls(logits, ids, wanted) if any(count is not None for count in wanted) else None

    def token(self, lane: int, chosen: int) -> Token:
        """The lane's token with what it asked for; the step must have run."""
        count = self._wanted[lane]
        if count is None:
            return Token(chosen)
        alternatives = zip(
            self._top_ids[lane, :count].tolist(), self._top[lane, :count].tolist(), strict=True
        )
        return Token(chosen, float(self._chosen[lane]), tuple(alternatives))


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in pinned host memory, there once the stream has come to it."""
    if not tensor.is_cuda:
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def _log_probabilities_reference(
    logits: torch.Tensor, ids: torch.Tensor, *, top: int
) -> sampling.LogProbabilities:
    logs = torch.log_softmax(logits.double(), -1)
    best, best_ids = logs.sort(dim=-1, descending=True, stable=True)
    return sampling.LogProbabilities(logs.gather(1, ids[:, None])[:, 0], best_ids[:, :top], best[:, :top])
