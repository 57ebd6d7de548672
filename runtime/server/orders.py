"""What the engine's process and its front ends say to each other beside commands and events."""

from dataclasses import dataclass

from runtime.server.config import ServerConfig
from runtime.server.served import ModelInfo


@dataclass(frozen=True)
class Start:
    """The engine's process: what to serve, and where."""

    config: ServerConfig
    info: ModelInfo
    port: int


@dataclass(frozen=True)
class Drain:
    """The engine's process: end."""


@dataclass(frozen=True)
class Listening:
    """A front end: clients can come; or, with `error`, they cannot."""

    error: str = ""


@dataclass(frozen=True)
class Drained:
    """A front end: nothing runs any more; `ended` requests were not done."""

    ended: int
