"""What a server is started with, and everything that is wrong with it, said at once."""

import math
import socket
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import torch

from runtime.attention.reference import ReferenceAttention
from runtime.attention.select import KINDS
from runtime.parallel.connect import DevicesError, require_devices
from runtime.server import shapes

MAX_FRONTENDS = 64
MIN_MESSAGE, MAX_MESSAGE = 1 << 10, (1 << 31) - 1
CACHE_DTYPES = {"e4m3": torch.float8_e4m3fn}
"""Of keys and values, where it is not the model's own."""


class Role(StrEnum):
    """What a server is there for."""

    GENERATE = "generate"
    EMBED = "embed"
    """Gives prompts' embeddings alone, and loads no more of a model than it needs for that."""

    @property
    def may_have_frontends(self) -> bool:
        """Looking rows up costs less than handing the question on."""
        return self is Role.GENERATE


@dataclass(frozen=True)
class ServerConfig:
    """See `problems` for what is allowed.

    Attributes:
        model: a Hugging Face folder; or else `random`.
        random: name of a shape in `runtime.server.shapes` to give random weights.
        name: that requests may name the model by; empty takes the folder's or the shape's.
        port: 0 takes a free one.
        device: empty takes a GPU where there is one.
        attention: backend; empty takes the device's own.
        tensor_parallel: processes that share the model, with a GPU each where there are GPUs.
        pages, page_size, max_batch, max_step_tokens, reuse_prefixes, overlap: see `runtime.engine.EngineOptions`.
        cache_dtype: a name in `CACHE_DTYPES`; empty takes the model's.
        buckets: lanes of captured decode steps; empty computes all eagerly; None takes powers of two on a GPU, none on a CPU.
        gather: requests that an idle engine waits for before it begins: asked in the same order they then meet in the same
            steps, whenever they come. For smoke tests; fewer wait for ever.
        frontends: processes that speak to clients; 1 is the engine's own.
        max_message: bytes of a request.
        max_waiting: requests that may wait for a place in a step.
        max_queued: parts that may wait for a client to read them, of each request.
        drain: seconds that running requests may go on for once the server is told to end.
    """

    model: Path | None = None
    random: str | None = None
    name: str = ""
    role: Role = Role.GENERATE
    host: str = "127.0.0.1"
    port: int = 50051
    device: str = ""
    attention: str = ""
    tensor_parallel: int = 1
    pages: int = 4096
    page_size: int = 16
    max_batch: int = 64
    max_step_tokens: int = 2048
    cache_dtype: str = ""
    reuse_prefixes: bool = True
    buckets: tuple[int, ...] | None = None
    overlap: bool = True
    gather: int = 1
    frontends: int = 1
    max_message: int = 64 << 20
    max_waiting: int = 1024
    max_queued: int = 4096
    drain: float = 30.0

    def problems(self) -> list[str]:
        """Everything that is wrong, a line each; empty when the server can be started."""
        return [
            *self._model_problems(),
            *self._engine_problems(),
            *self._limit_problems(),
        ]

    def normalised(self) -> "tuple[ServerConfig, list[str]]":
        """The configuration with every default filled in, and what else was changed and why.

        Only where there are no problems.
        """
        notes = []
        device = self._device()
        attention = self.attention or ("xqa" if device == "cuda" else ReferenceAttention.name)
        buckets = self.buckets
        if buckets is None:
            powers = (1 << at for at in range(self.max_batch.bit_length()))
            buckets = (*powers, self.max_batch) if device == "cuda" else ()
        if buckets:
            buckets = tuple(sorted({*buckets, self.max_batch}))
        frontends = self.frontends
        if frontends > 1 and (lack := why_no_shared_port()):
            notes.append(f"frontends: one process instead of {frontends}: {lack}")
            frontends = 1
        name = self.name or self.random or (self.model.resolve().name if self.model is not None else "")
        filled = replace(
            self,
            device=device,
            attention=attention,
            buckets=buckets,
            frontends=frontends,
            name=name,
        )
        return filled, notes

    def _device(self) -> str:
        return self.device or ("cuda" if torch.cuda.is_available() else "cpu")

    def _model_problems(self) -> list[str]:
        found = []
        if (self.model is None) == (self.random is None):
            found.append("model: expected a folder or a shape for random weights, one of them")
        if self.model is not None and not (self.model / "config.json").is_file():
            found.append(f"model: {self.model} has no config.json")
        if self.random is not None and self.random not in shapes.NAMES:
            found.append(f"random: expected one of {', '.join(shapes.NAMES)}, got {self.random}")
        if self.device not in ("", "cpu", "cuda"):
            found.append(f"device: expected cpu or cuda, got {self.device}")
        if self.device == "cuda" and not torch.cuda.is_available():
            found.append("device: there is no GPU here; cpu runs anywhere")
        if self.attention and self.attention not in KINDS:
            found.append(f"attention: expected one of {', '.join(KINDS)}, got {self.attention}")
        elif self.attention not in ("", ReferenceAttention.name) and self.device == "cpu":
            found.append(f"attention: {self.attention} runs on a GPU; a CPU has {ReferenceAttention.name}")
        return found + self._rank_problems()

    def _rank_problems(self) -> list[str]:
        if self.tensor_parallel < 1:
            return [f"tensor_parallel: expected at least 1, got {self.tensor_parallel}"]
        if self.tensor_parallel > 1 and self.role is Role.EMBED:
            return [
                f"tensor_parallel: a server of role {self.role} has but one rank, got {self.tensor_parallel}"
            ]
        try:
            if self.device != "cuda" or torch.cuda.is_available():  # else it is said already
                require_devices(self._device(), self.tensor_parallel)
        except DevicesError as error:
            return [f"tensor_parallel: {error}"]
        return []

    def _engine_problems(self) -> list[str]:
        found = [
            f"{name}: expected at least {low}, got {value}"
            for name, low, value in (
                ("pages", 2, self.pages),  # one of them is the null page
                ("page_size", 1, self.page_size),
                ("max_batch", 1, self.max_batch),
                ("max_step_tokens", 1, self.max_step_tokens),
                ("gather", 1, self.gather),
            )
            if value < low
        ]
        if self.gather > self.max_batch:
            found.append(f"gather: expected at most max_batch, {self.max_batch}, got {self.gather}")
        if self.cache_dtype and self.cache_dtype not in CACHE_DTYPES:
            found.append(f"cache_dtype: expected one of {', '.join(CACHE_DTYPES)}, got {self.cache_dtype}")
        wrong = [bucket for bucket in self.buckets or () if not 1 <= bucket <= self.max_batch]
        if wrong:
            found.append(f"buckets: expected lanes from 1 to max_batch, {self.max_batch}, got {wrong[0]}")
        return found

    def _limit_problems(self) -> list[str]:
        found = []
        if not self.host:
            found.append("host: expected an address to listen at, got none")
        if not 0 <= self.port < 1 << 16:
            found.append(f"port: expected 0 to 65535, got {self.port}")
        if not 1 <= self.frontends <= MAX_FRONTENDS:
            found.append(f"frontends: expected 1 to {MAX_FRONTENDS}, got {self.frontends}")
        elif self.frontends > 1 and not self.role.may_have_frontends:
            found.append(f"frontends: a server of role {self.role} has but one, got {self.frontends}")
        if not MIN_MESSAGE <= self.max_message <= MAX_MESSAGE:
            found.append(
                f"max_message: expected {MIN_MESSAGE} to {MAX_MESSAGE} bytes, got {self.max_message}"
            )
        if self.max_waiting < 0:
            found.append(f"max_waiting: expected at least 0, got {self.max_waiting}")
        if self.max_queued < 1:
            found.append(f"max_queued: expected at least 1, got {self.max_queued}")
        if not 0 <= self.drain < math.inf:
            found.append(f"drain: expected a finite number of seconds, at least 0, got {self.drain}")
        return found


def why_no_shared_port() -> str | None:
    """Why several processes cannot listen at one port here; None where they can."""
    if "SO_REUSEPORT" not in vars(socket):
        return "this platform has no SO_REUSEPORT"
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError as error:
        return f"this system refuses SO_REUSEPORT: {error}"
    return None
