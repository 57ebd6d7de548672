"""Group commit: deliveries that wait together are committed together."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from service.batches import batches
from service.intake.metrics import Metrics
from service.intake.refusal import unavailable
from service.intake.sink import Sink
from service.intake.wakeups import Wakeups
from service.store.deliveries import DeliveryState, NewDelivery

_log = logging.getLogger(__name__)

_BATCH = 256
# After a batch of some size its clients send again at once. Waiting for them makes one transaction where there
# would be two, each with its sync.
_CROWD = 4
_GATHER_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class _Waiting:
    delivery: NewDelivery
    row: asyncio.Future[int | None]


class Writer:
    """Carries deliveries from the event loop that called `start` to the sink, in a thread of its own."""

    def __init__(self, sink: Sink, wakeups: Wakeups, metrics: Metrics, limit: int) -> None:
        self._sink = sink
        self._wakeups = wakeups
        self._metrics = metrics
        self._limit = limit
        self._queue: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._depth = 0
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="intake-writer", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._metrics.queue_depth.set_function(lambda: self._depth)
        self._thread.start()

    async def add(self, delivery: NewDelivery) -> int | None:
        """The row id, once it is committed; None for a known GUID. Raises Refusal (503)."""
        if self._depth >= self._limit:
            raise unavailable("too many deliveries are waiting for the database")
        waiting = _Waiting(delivery, self._loop.create_future())
        self._depth += 1
        self._queue.put(waiting)
        return await waiting.row

    async def close(self) -> None:
        """Commit and answer what waits, then stop. No `add` may follow."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        for batch in batches(self._queue, _BATCH):
            self._commit(batch)
            if len(batch) >= _CROWD:
                time.sleep(_GATHER_SECONDS)

    def _commit(self, batch: list[_Waiting]) -> None:
        deliveries = [waiting.delivery for waiting in batch]
        rows: Sequence[int | None] | None = None
        began = time.perf_counter()
        try:
            rows = self._sink(deliveries)
        except Exception as error:  # noqa: BLE001 - whatever the database raises, the requests get their answer
            self._report(error)
        else:
            self._report(None)
        self._metrics.commit_seconds.observe(time.perf_counter() - began)
        self._metrics.batch_size.observe(len(batch))
        self._loop.call_soon_threadsafe(self._answer, batch, rows)
        if rows is not None:
            self._wakeups.put(
                [
                    row
                    for delivery, row in zip(deliveries, rows, strict=True)
                    if row is not None and delivery.state is DeliveryState.RECEIVED
                ]
            )

    def _report(self, error: Exception | None) -> None:
        """Logs the first failure and the recovery, not each of what may be hundreds a second."""
        if error is not None and not self._failing:
            # The first line only: SQLAlchemy's next ones show what was to be stored.
            _log.error(
                "deliveries are answered 503, for they cannot be stored: %s", str(error).partition("\n")[0]
            )
        elif error is None and self._failing:
            _log.warning("deliveries are stored again")
        self._failing = error is not None

    def _answer(self, batch: list[_Waiting], rows: Sequence[int | None] | None) -> None:
        self._depth -= len(batch)
        for index, waiting in enumerate(batch):
            # Done already: its request was cancelled.
            if waiting.row.done():
                continue
            if rows is None:
                waiting.row.set_exception(unavailable("the database takes no deliveries"))
            else:
                waiting.row.set_result(rows[index])
