"""What clients send, as commands; what of it cannot be one is a `RequestError` that names the field."""

from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from runtime.beam import BeamParameters
from runtime.errors import RequestError
from runtime.proto import engine_pb2 as pb
from runtime.request import SamplingParameters
from runtime.server.messages import DTYPES, Rows, Submit

Encode = Callable[[str], tuple[int, ...]]

_DTYPES = {pb.DType.Value(f"DTYPE_{name.upper()}"): name for name in DTYPES}
_EARLY_STOPPING: dict[int, Any] = {
    pb.EARLY_STOPPING_UNLIKELY_BETTER: False,
    pb.EARLY_STOPPING_ENOUGH: True,
    pb.EARLY_STOPPING_NEVER: "never",
}


def text_of(request: pb.GenerateRequest | pb.EmbedRequest) -> str | None:
    """The prompt, if it is a text."""
    return request.text if request.WhichOneof("prompt") == "text" else None


def prompt_ids(request: pb.GenerateRequest | pb.EmbedRequest, encoded: tuple[int, ...]) -> tuple[int, ...]:
    """The prompt's token ids; none where it is given as embeddings.

    Args:
        encoded: the text's, if it is one.

    Raises:
        RequestError: there is no prompt.
    """
    kind = request.WhichOneof("prompt")
    if kind is None:
        fields = [field.name for field in request.DESCRIPTOR.oneofs_by_name["prompt"].fields]
        raise RequestError(f"prompt: expected one of {', '.join(fields)}, got none")
    if kind == "text":
        return encoded
    return tuple(request.ids.ids) if kind == "ids" else ()


def submit(request: pb.GenerateRequest, encoded: tuple[int, ...]) -> Submit:
    """The command that a request asks for.

    Args:
        encoded: token ids of its text, if its prompt is one.

    Raises:
        RequestError: a field holds what cannot be, or is one that this server does not know.
    """
    unknown = next(_unknown(request, "request"), None)
    if unknown is not None:
        name, number = unknown
        raise RequestError(
            f"{name}: this server knows no field {number}; the client has another engine.proto"
        )
    rows, positions = _embeddings(request)
    return Submit(
        request.request_id,
        prompt_ids(request, encoded),
        _sampling(request.sampling),
        request.n if request.HasField("n") else 1,
        _beams(request.beams) if request.HasField("beams") else None,
        rows,
        positions,
    )


def rows_of(tensor: pb.Tensor, name: str) -> Rows:
    """A tensor of two dimensions.

    Raises:
        RequestError: it is none; `name` says which.
    """
    if tensor.dtype not in _DTYPES:
        raise RequestError(f"{name}.dtype: expected one of {', '.join(_DTYPES.values())}, got {tensor.dtype}")
    if len(tensor.shape) != 2:
        raise RequestError(f"{name}.shape: expected two dimensions, got {list(tensor.shape)}")
    return Rows(_DTYPES[tensor.dtype], tuple(tensor.shape), tensor.data).check(name)


def _embeddings(request: pb.GenerateRequest) -> tuple[Rows | None, tuple[int, ...] | None]:
    is_whole = request.WhichOneof("prompt") == "embeddings"
    if not request.HasField("embeddings_at"):
        return (rows_of(request.embeddings, "embeddings"), None) if is_whole else (None, None)
    if is_whole:
        raise RequestError("embeddings_at: the prompt's embeddings are given already, all of them")
    at = request.embeddings_at
    return rows_of(at.rows, "embeddings_at.rows"), tuple(at.positions)


def _sampling(given: pb.Sampling) -> SamplingParameters:
    values: dict[str, object] = {}
    for field, value in given.ListFields():
        if field.name == "logit_bias":
            values[field.name] = dict(value)
        else:
            values[field.name] = list(value) if field.name in ("stop", "stop_ids") else value
    return SamplingParameters.parse(values)


def _beams(given: pb.Beams) -> BeamParameters:
    if given.early_stopping not in _EARLY_STOPPING:
        raise RequestError(f"beams.early_stopping: expected 0 to 2, got {given.early_stopping}")
    return BeamParameters(
        given.beams,
        given.length_penalty if given.HasField("length_penalty") else 1.0,
        _EARLY_STOPPING[given.early_stopping],
        given.return_sequences if given.HasField("return_sequences") else 1,
    )


def _unknown(message: Message, name: str) -> Iterator[tuple[str, int]]:
    """Fields that were sent and are not in the definition, with the message that they are in."""
    for unknown in UnknownFieldSet(message):
        yield name, unknown.field_number
    for field, value in message.ListFields():
        if isinstance(value, Message):
            yield from _unknown(value, field.name)
