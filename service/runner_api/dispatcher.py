"""One loop a web process: decides which jobs start, wakes the claims that they are for, and reaps.

However many claims wait, the database is asked once a tick, and only while some wait. Decisions run in one thread,
never two at a time, and take at most a quarter of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Protocol

from reviewer.errors import ReviewError
from service.runner_api.metrics import ApiMetrics
from service.runner_api.scribe import Scribe
from service.store import fleet, job_leases, jobs
from service.store.ci_reaper import Hearing, Reaped, reap
from service.store.ci_rows import JobState
from service.store.database import Database
from service.store.job_leases import Assigned
from service.store.types import Clock

log = logging.getLogger(__name__)

_TICK_SECONDS = 0.2
_REAP_SECONDS = 1.0
# A job may start though nothing changed: it has grown old, or its attempts' hosts are allowed again.
_AGAIN_SECONDS = 2.0
# After a decision the thread rests so many times as long as it computed.
_REST = 3.0
# Runners fetch so many first before more is given out. What a dead one left behind does not count for long.
_CROWD = 32
_FRESH_SECONDS = 3.0


class Decide(Protocol):
    """As `service.store.fleet.assign_due`."""

    def __call__(
        self,
        database: Database,
        clock: Clock,
        write: Callable[[fleet.Chosen], list[Assigned]],
        known: fleet.Known,
        /,
    ) -> fleet.Decision: ...


class Dispatcher:
    """Made in the event loop's process, used from its loop; its thread is its own."""

    def __init__(
        self,
        database: Database,
        scribe: Scribe,
        clock: Clock,
        metrics: ApiMetrics,
        ring: Callable[[], object],
        decide: Decide,
    ) -> None:
        self._database = database
        self._scribe = scribe
        self._clock = clock
        self._metrics = metrics
        self._ring = ring
        self._assign_due = decide
        self._waiting: dict[int, set[asyncio.Event]] = defaultdict(set)
        self._thread = ThreadPoolExecutor(1, "ci-dispatch")
        self._stopped = False
        self._failing = False
        self._asked = True
        self._known: fleet.Known = {}
        self._mark: tuple[int, ...] = ()
        self._decided = self._rest_until = self._reaped = float("-inf")
        self._hearing = Hearing()
        metrics.claims.set_function(lambda: sum(map(len, self._waiting.values())))

    def start(self) -> None:
        self._nudged = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="ci-dispatch")

    def end_claims(self) -> None:
        """All claims are answered now: the server waits for them before it ends."""
        self._stopped = True
        self._nudged.set()
        for events in self._waiting.values():
            for event in events:
                event.set()

    async def close(self) -> None:
        """Ends the loop and its thread."""
        self.end_claims()
        with suppress(asyncio.CancelledError):
            await self._task
        self._thread.shutdown()

    @property
    def stopped(self) -> bool:
        return self._stopped

    def nudge(self) -> None:
        """Something changed in this process: look at once."""
        self._asked = True
        self._nudged.set()

    async def wait(self, runner_id: int, seconds: float) -> None:
        """Until a job may be there for the runner, or so long."""
        event = asyncio.Event()
        self._waiting[runner_id].add(event)
        self.nudge()
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return
        finally:
            self._waiting[runner_id].discard(event)
            if not self._waiting[runner_id]:
                del self._waiting[runner_id]

    def waits(self, runner_id: int) -> bool:
        """Whether another claim of the runner waits here."""
        return runner_id in self._waiting

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopped:
            pause = _TICK_SECONDS if self._waiting else _REAP_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._nudged.wait()
            self._nudged.clear()
            if self._stopped:
                return
            try:
                woken = await loop.run_in_executor(self._thread, self._tick, bool(self._waiting))
            except ReviewError as error:
                self._report(error)
                await asyncio.sleep(_REAP_SECONDS)
                continue
            except Exception:
                log.exception("CI's dispatcher stumbled")
                await asyncio.sleep(_REAP_SECONDS)
                continue
            self._report(None)
            for runner_id in woken:
                for event in self._waiting.get(runner_id, ()):
                    event.set()

    def _report(self, error: ReviewError | None) -> None:
        """Logs the first failure and the recovery, not each tick's."""
        if error is not None and not self._failing:
            log.error("no CI job starts: %s", error)
        elif error is None and self._failing:
            log.warning("CI jobs start again")
        self._failing = error is not None

    # In the thread

    def _tick(self, somebody_waits: bool) -> set[int]:
        """The runners for which a job waits."""
        now = time.monotonic()
        if now - self._reaped >= _REAP_SECONDS:
            self._reap(now)
            self._reaped = now
        if not somebody_waits:
            return set()
        with self._database.read() as connection:
            mark = fleet.mark(connection)
            unfetched = job_leases.unfetched(connection)
        ready = {lease.runner_id for lease in unfetched}
        fresh = self._clock() - timedelta(seconds=_FRESH_SECONDS)
        crowd = sum(lease.created_at > fresh for lease in unfetched)
        if crowd < _CROWD and self._is_due(mark, now):
            ready |= self._decide()
        return ready

    def _is_due(self, mark: tuple[int, ...], now: float) -> bool:
        if now < self._rest_until:
            return False
        due = self._asked or mark != self._mark or now - self._decided >= _AGAIN_SECONDS
        self._mark = mark
        # The first number is how many wait.
        return due and mark[0] > 0

    def _decide(self) -> set[int]:
        self._asked = False
        began, used = time.monotonic(), time.thread_time()
        try:
            decision = self._assign_due(self._database, self._clock, self._scribe.write, self._known)
        finally:
            self._decided = time.monotonic()
            self._rest_until = self._decided + _REST * (time.thread_time() - used)
            self._metrics.decision_seconds.observe(self._decided - began)
        self._metrics.assigned.inc(len(decision.assigned))
        return {lease.runner_id for lease in decision.assigned}

    def _reap(self, now: float) -> None:
        hears = self._hearing.check(self._clock().timestamp(), now)
        if hears:
            self._tell(self._scribe.write(lambda connection: reap(connection, self._clock())))
        with self._database.read() as connection:
            found = jobs.counts(connection)
        for state in JobState:
            if state is not JobState.FINISHED:
                self._metrics.jobs.labels(state).set(found.get(state, 0))

    def _tell(self, reaped: Reaped) -> None:
        for reason, ids in reaped.by_reason().items():
            self._metrics.reaped.labels(reason).inc(len(ids))
            log.warning("CI jobs %s: %s", reason, ", ".join(map(str, ids)))
        if reaped.is_news:
            self._ring()
