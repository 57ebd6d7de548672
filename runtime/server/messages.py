"""What goes between whoever speaks to clients and the engine's thread; all of it can be pickled.

Each command has a key, chosen by its sender, that the events it causes come back with.
"""

from dataclasses import dataclass

import grpc
import torch

from runtime.aux_info import AuxInfo
from runtime.beam import BeamParameters
from runtime.embeddings import InputEmbeddings
from runtime.errors import RequestError
from runtime.request import FinishReason, SamplingParameters, Token

ALL = 0
"""The key of events that concern everyone."""

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Rows:
    """A tensor as bytes, row-major and little-endian.

    Attributes:
        dtype: a name in `DTYPES`.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Rows":
        """A tensor's content; waits for the device that it lies on."""
        content = tensor.detach().cpu().contiguous()
        return cls(_NAMES[content.dtype], tuple(content.shape), content.view(torch.uint8).numpy().tobytes())

    def check(self, name: str) -> "Rows":
        """Itself, if there are as many bytes as its shape asks for.

        Raises:
            RequestError: there are not, or the dtype is none; `name` says of what.
        """
        if self.dtype not in DTYPES:
            raise RequestError(f"{name}.dtype: expected one of {', '.join(DTYPES)}, got {self.dtype}")
        size = DTYPES[self.dtype].itemsize
        for length in self.shape:
            size *= length
        if size != len(self.data):
            raise RequestError(
                f"{name}.data: expected {size} bytes, as {self.dtype} {list(self.shape)} has, got {len(self.data)}"
            )
        return self

    def tensor(self) -> torch.Tensor:
        """The checked rows in memory of their own."""
        if not self.data:
            return torch.empty(self.shape, dtype=DTYPES[self.dtype])
        return torch.frombuffer(bytearray(self.data), dtype=DTYPES[self.dtype]).reshape(self.shape)


@dataclass(frozen=True)
class Submit:
    """Serve a prompt: `Accepted` and parts come back, or `Refused`.

    Attributes:
        request_id: empty lets the engine choose one.
        prompt: token ids; empty with `rows` for the whole prompt.
        positions: of `rows`; None for a row for each token.
    """

    request_id: str
    prompt: tuple[int, ...]
    sampling: SamplingParameters
    n: int = 1
    beams: BeamParameters | None = None
    rows: Rows | None = None
    positions: tuple[int, ...] | None = None

    def embeddings(self) -> InputEmbeddings | None:
        return None if self.rows is None else InputEmbeddings(self.rows.tensor(), self.positions)


@dataclass(frozen=True)
class Cancel:
    """End what `Submit` of this key began, if it has not ended; nothing comes back.

    Attributes:
        reason: one of `runtime.server.counts.REASONS`.
    """

    reason: str


@dataclass(frozen=True)
class Abort:
    """End a request by its id: `Done` comes back, or `Refused`; its own caller gets its last parts."""

    request_id: str


@dataclass(frozen=True)
class Embed:
    """Token embeddings: `Embedded` comes back, or `Refused`."""

    ids: tuple[int, ...]


@dataclass(frozen=True)
class Ping:
    """Say between two steps that the engine goes on: `Done` comes back."""


@dataclass(frozen=True)
class Export:
    """All metrics: `Exported` comes back."""


@dataclass(frozen=True)
class Leave:
    """The sender is gone: what it began ends."""


Command = Submit | Cancel | Abort | Embed | Ping | Export | Leave


@dataclass(frozen=True)
class Accepted:
    """The request is queued; `answers` of them will end."""

    request_id: str
    answers: int


@dataclass(frozen=True)
class Refused:
    """What was asked for is not done; the call ends with this status."""

    code: grpc.StatusCode
    text: str


@dataclass(frozen=True)
class Finished:
    """Why an answer ended, and what it took."""

    reason: FinishReason
    error: str
    aux: AuxInfo


@dataclass(frozen=True)
class Part:
    """What a step gave one answer."""

    answer: int
    tokens: tuple[Token, ...]
    text: str
    finished: Finished | None = None


@dataclass(frozen=True)
class Embedded:
    rows: Rows


@dataclass(frozen=True)
class Exported:
    text: str


@dataclass(frozen=True)
class Done:
    """It is done; there is nothing to tell."""


@dataclass(frozen=True)
class Failed:
    """The engine has failed, and serves nobody any more."""

    text: str


Event = Accepted | Refused | Part | Embedded | Exported | Done | Failed
Batch = list[tuple[int, Event]]
