"""Where a job runs, where its files come from, and who watches it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ci_dispatch.model import Artifact, Tree


class SourceError(Exception):
    """The tree of a commit could not be fetched or unpacked; says which and why."""


class KeepError(Exception):
    """An artifact is not kept; says why."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """A runner's place on its host.

    Attributes:
        folder: a folder of the runner's own; each job gets a fresh one below it.
        caches: compiler caches, one folder a trust domain.
        passed: variables of the host that jobs see, such as NCCL_NVLS_ENABLE.
        sandboxed: confine jobs with bubblewrap; without, they run in a process group of their own.
        log_bytes: the most of a job's log that is kept; a step that prints more is stopped.
        artifact_bytes: the most that a job's artifacts may have together.
        readonly: folders of the host that jobs see beside the system's, at the same path, and cannot write.
        grace_seconds: what a step has between SIGTERM and SIGKILL.
    """

    folder: Path
    caches: Path
    passed: Mapping[str, str] = field(default_factory=dict)
    sandboxed: bool = True
    log_bytes: int = 64 << 20
    artifact_bytes: int = 512 << 20
    readonly: tuple[Path, ...] = ()
    grace_seconds: float = 10.0


class Sources(Protocol):
    """Gives the files of a job's commits."""

    def fetch(self, tree: Tree, into: Path) -> None:
        """Unpack a tree into an empty folder. Raises SourceError."""
        ...


class Watcher(Protocol):
    """Sees a job run. `cancelled` is set by whoever wants it to end."""

    cancelled: threading.Event

    def begin(self, step: str) -> None:
        """A step begins."""
        ...

    def log(self, chunk: bytes) -> None:
        """Output of the job, as it comes; may be cut anywhere."""
        ...

    def keep(self, path: str, file: Path) -> Artifact:
        """Keep a regular file under a path. Raises KeepError."""
        ...
