"""What each call of a runner does to the database and the files: one method a call, blocking, for a thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import BinaryIO

import sqlalchemy as sa

from ci_dispatch.model import Job, JobReport, Tree
from ci_dispatch.protocol import Beat, BeatAnswer, Grant, LeaseAnswer, Registered, Registration
from service.runner_api.files import CiFiles, Upload
from service.runner_api.limits import Limits
from service.runner_api.scribe import Scribe
from service.store import job_leases, jobs, runners
from service.store.database import Database
from service.store.job_leases import LEASE_SECONDS, Granted, Lease
from service.store.runners import Runner
from service.store.types import Clock, utc_now

_log = logging.getLogger(__name__)

# A claim that has ended is followed by the next within so long.
_BETWEEN_CLAIMS = 5.0


class Desk:
    """`ring` wakes the workers after a commit that left them something; whatever it raises is only logged."""

    def __init__(
        self,
        database: Database,
        files: CiFiles,
        ring: Callable[[], object],
        limits: Limits,
        clock: Clock = utc_now,
    ) -> None:
        self.database = database
        self.scribe = Scribe(database)
        self.files = files
        self.limits = limits
        self.clock = clock
        self._ring = ring

    def ring(self) -> None:
        try:
            self._ring()
        except Exception as error:  # noqa: BLE001 - the alarm's failure must not fail the call: the keeper rings again
            _log.warning("no worker was woken for CI (%s); the keeper rings again", error)

    # The runner's own calls

    def register(self, token: str, asked: Registration) -> Registered:
        return self.scribe.write(lambda connection: runners.register(connection, token, asked, self.clock()))

    def who(self, secret: str) -> Runner:
        with self.database.read() as connection:
            return runners.authenticate(connection, secret)

    def beat(self, runner: Runner, said: Beat) -> BeatAnswer:
        return self.scribe.write(lambda connection: runners.beat(connection, runner, said, self.clock()))

    def leave(self, runner: Runner) -> None:
        self.scribe.write(lambda connection: runners.leave(connection, runner.id, self.clock()))

    def listen(self, runner: Runner, seconds: float) -> Grant | None:
        """Opens a claim for so long; the job that waits for the runner already, where there is one."""

        def listen(connection: sa.Connection) -> Granted | None:
            now = self.clock()
            runners.listen(connection, runner.id, now + timedelta(seconds=seconds + _BETWEEN_CLAIMS))
            return job_leases.fetch(connection, runner.id, now)

        return self._grant(self.scribe.write(listen))

    def fetch(self, runner_id: int) -> Grant | None:
        return self._grant(
            self.scribe.write(lambda connection: job_leases.fetch(connection, runner_id, self.clock()))
        )

    def stop_listening(self, runner_id: int) -> None:
        self.scribe.write(lambda connection: runners.listen(connection, runner_id, None))

    def _grant(self, granted: Granted | None) -> Grant | None:
        if granted is None:
            return None
        self.files.reset(granted.job_id)
        return Grant(
            lease_id=granted.lease_id,
            token=granted.token,
            job=Job.model_validate_json(granted.job),
            gpus=granted.gpus,
            lease_seconds=LEASE_SECONDS,
            log_bytes=self.limits.log_bytes,
            artifact_bytes=self.limits.artifact_bytes,
        )

    # Calls of a lease

    def find(self, lease_id: int, token: str) -> Lease:
        with self.database.read() as connection:
            return job_leases.find(connection, lease_id, token)

    def use(self, lease_id: int, token: str) -> Lease:
        """The open lease; from its first use on its runner is known to have it."""
        lease = self.find(lease_id, token).require_open()
        if not lease.begun:
            self.scribe.write(lambda connection: job_leases.touch(connection, lease, self.clock()))
        return lease

    def beat_lease(self, lease_id: int, token: str, step: str) -> LeaseAnswer:

        def beat(connection: sa.Connection) -> tuple[bool, bool]:
            lease = job_leases.find(connection, lease_id, token)
            return job_leases.beat(connection, lease, step, self.clock()), bool(step and not lease.step)

        stop, begins = self.scribe.write(beat)
        if begins:
            self.ring()
        return LeaseAnswer(cancel=stop)

    def source(self, lease: Lease, tree: Tree) -> BinaryIO:
        with self.database.read() as connection:
            job = jobs.job_of(connection, lease.job_id)
            run = jobs.get_run(connection, jobs.get(connection, lease.job_id).run_id)
        return self.files.open_source(run.source_sha if tree == "head" else job.base_sha)

    def append_log(self, lease: Lease, token: str, offset: int, data: bytes) -> None:
        self.files.append_log(
            lease.job_id,
            offset,
            data,
            self.limits.log_bytes,
            lambda: self.find(lease.id, token).require_open(),
        )

    def begin_artifact(self, lease: Lease, path: str) -> Upload:
        return self.files.begin_artifact(lease.job_id, path, self.limits.artifact_bytes)

    def report(self, lease_id: int, token: str, body: bytes) -> None:
        said = JobReport.model_validate_json(body)

        def report(connection: sa.Connection) -> bool:
            lease = job_leases.find(connection, lease_id, token)
            return job_leases.report(connection, lease, said, self.clock())

        if self.scribe.write(report):
            self.ring()

    def give_back(self, lease_id: int, token: str, reason: str) -> None:

        def give_back(connection: sa.Connection) -> bool:
            lease = job_leases.find(connection, lease_id, token)
            return job_leases.give_back(connection, lease, self.clock())

        if self.scribe.write(give_back):
            _log.info("lease %d was handed back: %s", lease_id, reason)
            self.ring()
