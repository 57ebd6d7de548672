"""`python -m runtime.parallel.worker RANK CONTROL LIFELINE`: a rank other than 0, started by it and ended with it.

The latter two are file descriptors, see `runtime.parallel.processes`.
"""

import gc
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from runtime.engine import Engine
from runtime.parallel.connect import Meeting
from runtime.parallel.group import Group
from runtime.parallel.messages import PlanReader, StepMessage
from runtime.parallel.processes import describe
from runtime.parallel.source import EngineSource
from runtime.scheduler import StepPlan

ORPHAN_SECONDS = 1.0


class Follower(Engine):
    """An engine that is told what to do: its own scheduler has nothing."""

    def follow(self, plan: StepPlan) -> None:
        """Compute a step; nobody here reads what it gives."""
        self._runner.launch(plan)


class Worker:
    """Carries rank 0's orders out, one after the other."""

    def __init__(self, rank: int, control: Connection) -> None:
        self._rank = rank
        self._control = control
        self._group: Group | None = None
        self._device = torch.device("cpu")
        self._engine: Follower | None = None
        self._reader: PlanReader | None = None

    def run(self) -> None:
        """Until rank 0 says that it is over.

        Raises:
            EOFError: rank 0 is gone.
            Exception: an order could not be carried out; the ranks cannot go on together.
        """
        orders: dict[str, Callable[[Any], None]] = {
            "join": self._join,
            "build": self._build,
            "capture": self._capture,
            "step": self._step,
            "close": self._close,
            "leave": self._leave,
        }
        self.report("started")
        while True:
            order, content = pickle.loads(self._control.recv_bytes())
            if order == "end":
                return
            orders[order](content)

    def report(self, what: str, content: Any = None) -> None:
        self._control.send_bytes(pickle.dumps((what, content)))

    def _join(self, meeting: Meeting) -> None:
        self._group, self._device = meeting.join(self._rank)
        self.report("joined")

    def _build(self, source: EngineSource) -> None:
        assert self._group is not None
        try:
            model, digests = source.model(self._device, self._group)
            self._engine = Follower(model, source.options)
        except Exception as error:  # noqa: BLE001 - rank 0 is told, and decides
            self.report("refused", describe(error))
            return
        self._reader = PlanReader(model.config, self._device)
        self.report("built", digests)

    def _capture(self, _: None) -> None:
        assert self._engine is not None
        assert self._engine.graphs is not None
        self._engine.graphs.capture()
        self.report("captured")

    def _step(self, message: StepMessage) -> None:
        assert self._engine is not None
        assert self._reader is not None
        self._engine.follow(self._reader.plan(message))

    def _close(self, _: None) -> None:
        self._drop()
        self.report("closed")

    def _drop(self) -> None:
        """Let go of the engine: its graphs before its group."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._engine = self._reader = None
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _leave(self, _: None) -> None:
        assert self._group is not None
        self._drop()
        self._group.close()
        self._group = None


def _end_with_rank_0(lifeline: int) -> None:
    """Whatever the main thread waits for, it ends when rank 0 has."""
    os.read(lifeline, 1)
    time.sleep(ORPHAN_SECONDS)
    os._exit(1)


def main(rank: int, control_descriptor: int, lifeline: int) -> int:
    """Serve rank 0; returns the exit status."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # from a terminal it comes to all; rank 0 says what becomes of it
    for descriptor in (control_descriptor, lifeline):
        os.set_inheritable(descriptor, False)
    threading.Thread(target=_end_with_rank_0, args=(lifeline,), daemon=True).start()
    with Connection(control_descriptor) as control:
        worker = Worker(rank, control)
        try:
            worker.run()
        except (EOFError, ConnectionError):
            return 1  # rank 0 is gone: there is nobody to tell
        except Exception as error:  # noqa: BLE001 - whatever it is, rank 0 has to learn of it
            worker.report("failed", describe(error))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
