"""The next token of each lane, and its log probability where a request asks for it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels import sampling
from kernels.sampling_reference import HAS_INFINITY, HAS_NAN, NOTHING_LEFT, Sampled, sample_reference
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

    @classmethod
    def of(cls, requests: Sequence[Request], device: torch.device) -> "LaneParameters":
        """The requests' parameters. A token's position is its place in the sequence, prompt included: a request that
        is preempted and starts again draws the same numbers."""

        def put(values: list[float] | list[int], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype).to(device)

        sampling = [request.sampling for request in requests]
        return cls(
            put([one.temperature for one in sampling], torch.float32),
            put([one.top_k for one in sampling], torch.int32),
            put([one.top_p for one in sampling], torch.float32),
            put([one.min_p for one in sampling], torch.float32),
            put([request.seed for request in requests], torch.int64),
            put([request.length for request in requests], torch.int64),
        )


def draw(logits: torch.Tensor, lanes: LaneParameters) -> Sampled:
    """One token a lane of logits `[batch, vocab]`; no host synchronisation, so that a graph can hold it."""
    sample = sampling.sample if logits.is_cuda else sample_reference
    filters = {"top_k": lanes.top_k, "top_p": lanes.top_p, "min_p": lanes.min_p}
    return sample(logits, lanes.temperature, lanes.seeds, lanes.positions, **filters)


def read_tokens(drawn: Sampled, logits: torch.Tensor, requests: Sequence[Request]) -> list[Token | str]:
    """The drawn token of each request with the log probabilities it asked for, or what is wrong with its logits."""
    ids, status = drawn
    tokens: list[Token | str] = [
        PROBLEMS[code] if code else Token(chosen)
        for chosen, code in zip(ids.tolist(), status.tolist(), strict=True)
    ]
    wanted = [request.sampling.logprobs for request in requests]
    if any(count is not None for count in wanted):
        _add_logprobs(tokens, logits, ids, wanted)
    return tokens


def _add_logprobs(
    tokens: list[Token | str], logits: torch.Tensor, ids: torch.Tensor, wanted: Sequence[int | None]
) -> None:
    most = max(count for count in wanted if count is not None)
    compute = sampling.log_probabilities if logits.is_cuda else _log_probabilities_reference
    chosen, top_ids, top = compute(logits, ids, top=most)
    for lane, count in enumerate(wanted):
        token = tokens[lane]
        if count is not None and isinstance(token, Token):
            alternatives = zip(top_ids[lane, :count].tolist(), top[lane, :count].tolist(), strict=True)
            tokens[lane] = Token(token.id, float(chosen[lane]), tuple(alternatives))


def _log_probabilities_reference(
    logits: torch.Tensor, ids: torch.Tensor, *, top: int
) -> sampling.LogProbabilities:
    logs = torch.log_softmax(logits.double(), -1)
    best, best_ids = logs.sort(dim=-1, descending=True, stable=True)
    return sampling.LogProbabilities(logs.gather(1, ids[:, None])[:, 0], best_ids[:, :top], best[:, :top])
