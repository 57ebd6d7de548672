"""The agent: registered, it claims jobs, runs several at once on GPUs of their own, and says how its host is until it drains.

Threads: one claims, one beats, one probes GPUs in quarantine, one sends what an earlier life left, and one for each lease. The main
thread watches for signals. All times are of the monotonic clock: a clock that is set changes nothing.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Sequence

from ci_dispatch.model import Notice
from ci_dispatch.protocol import Beat, Grant
from ci_dispatch.runner.client import Service, backoff
from ci_dispatch.runner.errors import Refused, RunnerError, Unreachable
from ci_dispatch.runner.host import Execute, Host
from ci_dispatch.runner.identity import Identity
from ci_dispatch.runner.kept import KeptLease
from ci_dispatch.runner.lease import Lease
from ci_dispatch.runner.resume import resume
from ci_dispatch.runner.work import work

logger = logging.getLogger(__name__)

CLAIM_SECONDS = 20.0
_LOOK_SECONDS = 0.1
_KILLED_SECONDS = 30.0
_END_SECONDS = 5.0
_ON_ITS_WAY_SECONDS = 2.0
_REPORT_SECONDS = 60.0
_MOST_NEWS = 100


class Agent:
    """One runner, from its registration to its end."""

    def __init__(
        self,
        service: Service,
        identity: Identity,
        host: Host,
        execute: Execute,
        *,
        once: bool = False,
        claim_seconds: float = CLAIM_SECONDS,
        probe_seconds: float = 60.0,
    ) -> None:
        self._service = service
        self._identity = identity
        self._host = host
        self._execute = execute
        self._once = once
        self._claim_seconds = claim_seconds
        self._probe_seconds = probe_seconds
        self._signals = 0
        self._draining = threading.Event()
        self._ended = threading.Event()
        self._beat_now = threading.Event()
        self._problem: RunnerError | None = None
        self._drain_heard_at: float | None = None
        self._lock = threading.Lock()
        self._leases: dict[int, Lease] = {}
        self._news: list[Notice] = []
        self._earlier: list[KeptLease] = []

    def signalled(self) -> None:
        """Of a signal handler: the first call drains, the second kills. It takes no lock."""
        self._signals += 1

    def run(self) -> None:
        """Works until it has drained. Raises Refused where the service knows this runner no more, OSError."""
        self._earlier = self._host.kept.set_aside()
        threads = [
            threading.Thread(target=target, name=target.__name__.strip("_"), daemon=True)
            for target in (self._claim_all, self._beat_all, self._probe_all, self._resume)
        ]
        for thread in threads:
            thread.start()
        claimer = threads[0]
        signals = 0
        while self._may_get_a_job(claimer) or self._leases:
            time.sleep(_LOOK_SECONDS)
            if self._signals > signals:
                signals = self._signals
                self._drain("the runner was told to stop")
            if signals > 1:
                self._kill()
                break
            if signals:
                self._leave_unheard_reports(_REPORT_SECONDS)
        self._end(threads[1])

    def _may_get_a_job(self, claimer: threading.Thread) -> bool:
        """Once the service knows that this runner drains it assigns nothing more; what it had assigned is on its way."""
        heard = self._drain_heard_at
        return claimer.is_alive() and (heard is None or time.monotonic() - heard < _ON_ITS_WAY_SECONDS)

    def _end(self, beater: threading.Thread) -> None:
        self._draining.set()
        self._ended.set()
        self._beat_now.set()
        # A beat after the end would bring the runner back.
        beater.join(_END_SECONDS)
        try:
            if self._problem is None:
                self._service.deregister(self._identity.secret, patience=0.0)
                logger.info("%s is deregistered", self._identity.name)
        except RunnerError as error:
            logger.warning("%s could not be deregistered: %s", self._identity.name, error)
        self._service.given_up.set()
        if self._problem is not None:
            raise self._problem

    # Claims

    def _claim_all(self) -> None:
        failures = 0
        while not self._draining.is_set():
            if not self._host.capacity.wait_for_any(self._usable(), 0.5):
                continue
            asked = time.monotonic()
            try:
                grant = self._service.claim(self._identity.secret, self._claim_seconds)
            except Refused as refused:
                if refused.status != 429:
                    self._give_in(refused)
                    return
                failures += 1
            except RunnerError as error:
                if failures == 0:
                    logger.warning("no job could be asked for: %s", error)
                failures += 1
            else:
                failures = 0
                if grant is not None:
                    self._accept(grant)
                elif time.monotonic() - asked < 1.0:
                    # A service that does not wait must not be asked in a tight loop.
                    self._draining.wait(1.0)
            if failures:
                self._draining.wait(backoff(failures, random.random()))

    def _usable(self) -> set[str]:
        bad = self._host.quarantine.reasons()
        return {uuid for uuid in self._host.quarantine.known() if uuid not in bad}

    def _accept(self, grant: Grant) -> None:
        job = grant.job
        logger.info("lease %d: %s on %s", grant.lease_id, job.key, ", ".join(grant.gpus) or "a slot")
        with self._lock:
            known = self._leases.get(grant.lease_id)
        if known is not None:
            # The token that it was granted with is void now, and two jobs must not share the lease.
            known.lose("the service granted it again")
            self._give_back_at_once(grant, "the runner works on it already")
            return
        try:
            lease = Lease(self._service, self._host.kept.open(grant))
        except OSError as error:
            logger.error("lease %d cannot be kept and is handed back: %s", grant.lease_id, error)
            self._give_back_at_once(grant, f"the runner cannot keep it: {error.strerror}")
            return
        # At once, so that no further job is asked for that this one's place would have to hold.
        lease.is_placed = self._host.capacity.take(grant.gpus, 0.0)
        with self._lock:
            self._leases[lease.lease_id] = lease
            if self._draining.is_set():
                lease.hand_back("the runner drains")
        threading.Thread(target=self._work, args=(lease,), name=f"job-{lease.lease_id}", daemon=True).start()
        if self._once:
            self._claim_no_more("one job was all")

    def _give_back_at_once(self, grant: Grant, reason: str) -> None:
        """Without a place or a folder of its own."""
        try:
            self._service.lease(grant.lease_id, grant.token).give_back(reason, patience=5.0)
        except RunnerError as error:
            logger.warning("lease %d could not be handed back: %s", grant.lease_id, error)

    def _work(self, lease: Lease) -> None:
        try:
            work(lease, self._host, self._execute, self._identity.name, self._tell)
        finally:
            with self._lock:
                del self._leases[lease.lease_id]
            self._beat_now.set()

    # Beats

    def _beat_all(self) -> None:
        reached = True
        while not self._ended.is_set():
            self._beat_now.clear()
            try:
                self._beat()
                if not reached:
                    logger.info("the service answers again")
                reached = True
            except Refused as refused:
                if refused.status != 429:
                    self._give_in(refused)
                    return
            except Unreachable as error:
                if reached:
                    logger.warning("the service does not answer: %s", error)
                reached = False
            except RunnerError as error:
                logger.error("%s", error)
            self._beat_now.wait(self._identity.beat_seconds)

    def _beat(self) -> None:
        host = self._host
        taken = host.capacity.taken()
        self._tell(host.health.survey([uuid for uuid in host.quarantine.known() if uuid not in taken]))
        with self._lock:
            leases = tuple(self._leases)
            news = tuple(self._news)
        beat = Beat(inventory=host.inventory(), leases=leases, draining=self._draining.is_set(), notices=news)
        answer = self._service.beat(self._identity.secret, beat)
        if beat.draining and self._drain_heard_at is None:
            self._drain_heard_at = time.monotonic()
        with self._lock:
            self._news = self._news[len(news) :]
            lost = [self._leases[one] for one in answer.lost if one in self._leases]
        for lease in lost:
            lease.lose("the service says so")
        host.quarantine.hear(answer.quarantined)
        if answer.drain and not self._draining.is_set():
            self._drain("the service drains this runner")

    def _tell(self, notices: Sequence[Notice]) -> None:
        """GPUs that notices speak of are used no more, and the service hears why."""
        news = self._host.quarantine.add(notices)
        if news:
            with self._lock:
                self._news = [*self._news, *news][-_MOST_NEWS:]
            self._beat_now.set()

    # GPUs on trial

    def _probe_all(self) -> None:
        host = self._host
        while not self._ended.wait(self._probe_seconds):
            for uuid in host.quarantine.on_trial():
                if host.capacity.take([uuid], 0.0):
                    try:
                        good = not host.health.preflight([uuid], 0)
                    finally:
                        host.capacity.give([uuid])
                    if host.quarantine.probed(uuid, good=good):
                        self._beat_now.set()

    # Ends

    def _resume(self) -> None:
        resume(self._service, self._earlier, self._ended)

    def _drain(self, reason: str) -> None:
        """Claims no more; jobs that have not begun go back, the others end in their own time."""
        self._claim_no_more(reason)
        with self._lock:
            leases = list(self._leases.values())
        for lease in leases:
            lease.hand_back("the runner drains")

    def _claim_no_more(self, reason: str) -> None:
        with self._lock:
            first = not self._draining.is_set()
            self._draining.set()
        if first:
            logger.info("draining: %s", reason)
        self._beat_now.set()

    def _leave_unheard_reports(self, seconds: float) -> None:
        """A service that is away must not keep a runner from ending: the next life sends the reports."""
        with self._lock:
            waiting = [one for one in self._leases.values() if one.reporting_seconds > seconds]
        for lease in waiting:
            lease.abandon()

    def _kill(self) -> None:
        logger.warning("told to stop again: jobs are ended")
        self._host.health.stop()
        with self._lock:
            leases = list(self._leases.values())
        for lease in leases:
            lease.stop(Notice(kind="drained", detail="the runner was told to stop at once"))
        deadline = time.monotonic() + _KILLED_SECONDS
        while self._leases and time.monotonic() < deadline and self._signals < 3:
            self._leave_unheard_reports(_END_SECONDS)
            time.sleep(_LOOK_SECONDS)
        for lease in leases:
            lease.abandon()

    def _give_in(self, refused: Refused) -> None:
        """The service knows this runner no more: what runs may end, its leases have tokens of their own."""
        if self._problem is None:
            self._problem = refused
            self._drain(f"the service refuses this runner: {refused}")
