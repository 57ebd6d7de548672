"""Tells the workers about new rows, away from the requests: a broker that hangs delays no answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, Full, Queue

from service.intake.metrics import Metrics

_log = logging.getLogger(__name__)

_BACKLOG = 1_000
_CLOSE_SECONDS = 5.0

# Wakes a worker for these deliveries. May fail: the reaper finds what nobody was woken for.
OnStored = Callable[[list[int]], None]


class Wakeups:
    """Calls `on_stored` from a thread of its own, with the ids of as many batches as have gathered."""

    def __init__(self, on_stored: OnStored, metrics: Metrics) -> None:
        self._on_stored = on_stored
        self._metrics = metrics
        self._queue: Queue[list[int] | None] = Queue(_BACKLOG)
        self._thread = threading.Thread(target=self._run, name="intake-wakeups", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, ids: list[int]) -> None:
        try:
            self._queue.put_nowait(ids)
        except Full:
            self._metrics.lost_wakeups.inc(len(ids))

    def close(self) -> None:
        """Pass on what has gathered, for some seconds at most."""
        try:
            self._queue.put(None, timeout=_CLOSE_SECONDS)
        except Full:
            return
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        open_ = True
        while open_:
            ids: list[int] = []
            entry = self._queue.get()
            try:
                while entry is not None:
                    ids += entry
                    entry = self._queue.get_nowait()
                open_ = False
            except Empty:
                pass
            if ids:
                self._wake(ids)

    def _wake(self, ids: list[int]) -> None:
        try:
            self._on_stored(ids)
        except Exception as error:  # noqa: BLE001 - the callback's failure must end neither thread nor request
            self._metrics.lost_wakeups.inc(len(ids))
            _log.warning(
                "no worker was woken for %d deliveries (%s); the reaper will find them", len(ids), error
            )
