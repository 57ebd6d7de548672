"""What clients are told."""

from collections.abc import Mapping, Sequence

from runtime.aux_info import COLUMNS, AuxInfo, stack
from runtime.proto import engine_pb2 as pb
from runtime.request import FinishReason, Token
from runtime.server.messages import DTYPES, Finished, Part, Rows

_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.ABORT: pb.FINISH_REASON_ABORT,
    FinishReason.ERROR: pb.FINISH_REASON_ERROR,
}
_DTYPES = {name: pb.DType.Value(f"DTYPE_{name.upper()}") for name in DTYPES}


def response(request_id: str, parts: Sequence[Part]) -> pb.GenerateResponse:
    """One message of several parts; those of the same answer become one."""
    message = pb.GenerateResponse(request_id=request_id)
    made: dict[int, pb.Part] = {}
    for part in parts:
        if part.answer not in made:
            made[part.answer] = message.parts.add(answer=part.answer)
        one = made[part.answer]
        for token in part.tokens:
            _add(one, token)
        one.text += part.text
        if part.finished is not None:
            one.finish.CopyFrom(_finish(part.finished))
    return message


def stacked(infos: Mapping[int, AuxInfo]) -> pb.StackedAux:
    """All answers' as one tensor, in the answers' order."""
    rows = stack([infos[answer] for answer in sorted(infos)])
    return pb.StackedAux(
        rows=pb.Tensor(dtype=pb.DTYPE_FLOAT64, shape=rows.shape, data=rows.tobytes()), columns=COLUMNS
    )


def tensor(rows: Rows) -> pb.Tensor:
    return pb.Tensor(dtype=_DTYPES[rows.dtype], shape=rows.shape, data=rows.data)


def _add(part: pb.Part, token: Token) -> None:
    added = part.tokens.add(id=token.id, logprob=token.logprob)
    for alternative, logprob in token.alternatives:
        added.alternatives.add(id=alternative, logprob=logprob)


def _finish(finished: Finished) -> pb.Finish:
    aux = finished.aux
    return pb.Finish(
        reason=_REASONS[finished.reason],
        error=finished.error,
        aux=pb.AuxInfo(
            prompt_tokens=aux.prompt_tokens,
            output_tokens=aux.output_tokens,
            reused_prefix_tokens=aux.reused_prefix_tokens,
            steps=aux.steps,
            preemptions=aux.preemptions,
            cumulative_logprob=aux.cumulative_logprob,
            time_to_first_token=aux.time_to_first_token,
            total_time=aux.total_time,
        ),
    )
