"""A job's trees, fetched from the service with the lease's token."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from ci_dispatch.model import Tree
from ci_dispatch.runner.base import SourceError
from ci_dispatch.runner.client import LeaseCalls, backoff
from ci_dispatch.runner.errors import Refused, RunnerError, Unreachable
from ci_dispatch.runner.unpack import unpack

PACKED_BYTES = 4 << 30
_PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class LeaseSources:
    """Downloads into `scratch`, which only the agent reads. A tree that is not there yet is asked for again for a while."""

    calls: LeaseCalls
    scratch: Path
    cancelled: threading.Event
    patience: float = _PATIENCE

    def fetch(self, tree: Tree, into: Path) -> None:
        """Unpack a tree into an empty folder. Raises SourceError."""
        archive = self.scratch / f"{tree}.tar.gz"
        try:
            self._download(tree, archive)
            unpack(archive, into)
        except OSError as error:
            raise SourceError(f"the tree of {tree} cannot be kept: {error}") from None
        finally:
            archive.unlink(missing_ok=True)

    def _download(self, tree: Tree, archive: Path) -> None:
        deadline = time.monotonic() + self.patience
        attempt = 0
        while True:
            try:
                self.calls.source(tree, archive, PACKED_BYTES)
                return
            except Refused as refused:
                # 404: the service has not packed it yet. 429 and 5xx pass as well.
                if refused.status not in (404, 429) and refused.status < 500:
                    raise SourceError(f"the tree of {tree} is refused: {refused}") from None
                problem = str(refused)
            except Unreachable as error:
                problem = str(error)
            except RunnerError as error:
                raise SourceError(f"the tree of {tree}: {error}") from None
            delay = backoff(attempt, random.random())
            attempt += 1
            if time.monotonic() + delay > deadline:
                raise SourceError(f"the tree of {tree} did not come within {self.patience:g} s: {problem}")
            if self.cancelled.wait(delay):
                raise SourceError(f"the tree of {tree} is no longer wanted")
