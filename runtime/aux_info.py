"""What is told of a finished output beside its tokens; one by one or, for a batch, as one array."""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np
import numpy.typing as npt

from runtime.request import FinishReason, Request

# Codes are what others have stored: a new reason gets a new one.
REASON_CODES = {FinishReason.STOP: 0, FinishReason.LENGTH: 1, FinishReason.ABORT: 2, FinishReason.ERROR: 3}
COUNTS = ("prompt_tokens", "output_tokens", "reused_prefix_tokens", "steps", "preemptions")
# The largest count up to which float64 holds every whole number.
MAX_COUNT = 1 << 53


@dataclass(frozen=True)
class AuxInfo:
    """One output: a request's, or one returned sequence of a request with beams, which has what concerns the whole request
    (all but output tokens, log probability and finish reason) from it.

    The attributes are, in this order, the columns of the stacked form.

    Attributes:
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens generated, a stop id among them.
        reused_prefix_tokens: prompt tokens whose keys and values came from an earlier request's pages.
        steps: engine steps that computed tokens of the request.
        preemptions: times it gave its pages back and started again.
        cumulative_logprob: sum of the output's natural log probabilities; NaN where the request did not ask for any.
        time_to_first_token: seconds from submission to the first token; NaN where none came.
        total_time: seconds from submission to the end.
        finish_reason: why it ended; stacked as 0 stop, 1 length, 2 abort, 3 error.
    """

    prompt_tokens: int
    output_tokens: int
    reused_prefix_tokens: int
    steps: int
    preemptions: int
    cumulative_logprob: float
    time_to_first_token: float
    total_time: float
    finish_reason: FinishReason

    @classmethod
    def of(cls, request: Request, whole: Request, now: float) -> "AuxInfo":
        """Of a request that has just ended; what concerns all beams of a search is that of `whole`, its leader."""
        reason = request.finish_reason
        if reason is None:
            raise ValueError(f"request {request.id}: expected one that has ended")
        asked = request.sampling.logprobs is not None
        return cls(
            len(request.prompt),
            len(request.tokens),
            whole.cached_prefix,
            whole.steps,
            whole.preemptions,
            sum(token.logprob or 0.0 for token in request.tokens) if asked else math.nan,
            whole.first_token - whole.submitted,
            now - whole.submitted,
            reason,
        )


COLUMNS = tuple(field.name for field in fields(AuxInfo))


def stack(infos: Sequence[AuxInfo]) -> npt.NDArray[np.float64]:
    """Outputs as one float64 array [n, 9], one row each, columns as `COLUMNS` names them.

    Raises:
        ValueError: a count is negative or above 2^53, which the array could not hold exactly.
    """
    stacked = np.empty((len(infos), len(COLUMNS)), np.float64)
    for row, info in enumerate(infos):
        *numbers, reason = astuple(info)
        for name, value in zip(COUNTS, numbers, strict=False):
            _require_count(row, name, value)
        stacked[row] = (*numbers, REASON_CODES[reason])
    return stacked


def unstack(stacked: npt.NDArray[np.float64]) -> list[AuxInfo]:
    """The outputs that `stack` made the array of.

    Raises:
        ValueError: the array has another dtype or shape, or holds a count or a finish reason that is none.
    """
    if stacked.dtype != np.float64 or stacked.ndim != 2 or stacked.shape[1] != len(COLUMNS):
        raise ValueError(
            f"stacked: expected float64 [n, {len(COLUMNS)}], got {stacked.dtype} {list(stacked.shape)}"
        )
    reasons = {float(code): reason for reason, code in REASON_CODES.items()}
    infos = []
    for row, (*numbers, code) in enumerate(stacked.tolist()):
        for name, value in zip(COUNTS, numbers, strict=False):
            _require_count(row, name, value)
        if code not in reasons:
            raise ValueError(f"row {row}: finish_reason: expected a code from 0 to 3, got {code}")
        prompt, output, reused, steps, preemptions = (int(value) for value in numbers[: len(COUNTS)])
        logprob, first, total = numbers[len(COUNTS) :]
        infos.append(
            AuxInfo(prompt, output, reused, steps, preemptions, logprob, first, total, reasons[code])
        )
    return infos


def _require_count(row: int, name: str, value: float) -> None:
    if not 0 <= value <= MAX_COUNT or value != int(value):
        raise ValueError(f"row {row}: {name}: expected a whole number from 0 to 2^53, got {value}")
