"""One lease from its grant to its acknowledged report: its beats, its log and artifacts, and whether it is still ours."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ci_dispatch.model import Artifact, JobReport, Notice
from ci_dispatch.runner.base import KeepError
from ci_dispatch.runner.client import LeaseCalls, Service
from ci_dispatch.runner.errors import LeaseLost, Refused, RunnerError, Unreachable
from ci_dispatch.runner.kept import KeptLease
from ci_dispatch.runner.stream import LogStream

logger = logging.getLogger(__name__)

_MOST_BEAT_SECONDS = 3.0
_LOG_SECONDS = 600.0
_ARTIFACT_PATIENCE = 60.0
_REPORT_PATIENCE = 600.0
_RETURN_PATIENCE = 20.0


class Lease:
    """Watches a job run, as `runner.base.Watcher`, and speaks to the service about it.

    `cancelled` ends the job: the service or the runner wants that, or the lease is lost. `each_beat` is called beside each beat, in the
    beats' thread. `is_placed`: its GPUs or slot are taken. `notices` are the runner's own reasons, `begun_at` the first step's monotonic time.
    """

    def __init__(
        self, service: Service, kept: KeptLease, each_beat: Callable[[], None] | None = None
    ) -> None:
        """`each_beat` is called beside each beat, in the beats' thread."""
        self.grant = kept.grant
        self.calls = LeaseCalls(service, kept.grant.lease_id, kept.grant.token)
        self.kept = kept
        self.cancelled = threading.Event()
        self.is_placed = False
        self.begun_at: float | None = None
        self.notices: list[Notice] = []
        self.each_beat: Callable[[], None] | None = None
        self._step = ""
        self._lost = False
        self._reporting_since: float | None = None
        self._unwanted = ""
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._abandoned = threading.Event()
        self._wake = threading.Event()
        self._stream: LogStream | None = None
        self._beats = threading.Thread(
            target=self._beat_all, name=f"lease-{self.grant.lease_id}", daemon=True
        )

    @property
    def lease_id(self) -> int:
        return self.grant.lease_id

    @property
    def is_lost(self) -> bool:
        return self._lost

    @property
    def returned_because(self) -> str:
        """Why the job goes back unbegun; empty where it does not."""
        return self._unwanted

    @property
    def reporting_seconds(self) -> float:
        """How long the job has been over and its report not acknowledged; 0 while it runs."""
        since = self._reporting_since
        return 0.0 if since is None else time.monotonic() - since

    def start(self) -> None:
        """Raises OSError where the log cannot be kept."""
        self._stream = LogStream(self.calls, self.kept.log)
        self._beats.start()

    # The watcher

    def begin(self, step: str) -> None:
        """A step begins. From the first on the lease cannot be handed back."""
        with self._lock:
            self._step = step
            if self.begun_at is None and not self._unwanted:
                self.begun_at = time.monotonic()
                self.kept.mark_begun()
        self._wake.set()

    def log(self, chunk: bytes) -> None:
        """Output of the job. Where it cannot be kept the job goes on without its log."""
        stream = self._stream
        if stream is None:
            return
        try:
            stream.add(chunk)
        except OSError as error:
            logger.warning("lease %d: the log is not kept: %s", self.lease_id, error)
            stream.give_up()
            self._stream = None

    def keep(self, path: str, file: Path) -> Artifact:
        """Raises KeepError."""
        try:
            return self.calls.keep(path, file, file.stat().st_size, _ARTIFACT_PATIENCE, self._abandoned)
        except LeaseLost as lost:
            self.lose(lost.message)
            raise KeepError("the lease is lost") from None
        except (Refused, Unreachable) as error:
            raise KeepError(error.message) from None
        except OSError as error:
            raise KeepError(f"it cannot be read: {error.strerror}") from None

    # Its end

    def hand_back(self, reason: str) -> bool:
        """Stops a job that has not begun its first step, which then counts as never leased. False where it has."""
        with self._lock:
            if self.begun_at is not None:
                return False
            self._unwanted = self._unwanted or reason
        self.cancelled.set()
        return True

    def stop(self, notice: Notice) -> None:
        """Ends the job for the runner's own reason, which the report will name."""
        self.notices.append(notice)
        self.cancelled.set()

    def lose(self, reason: str) -> None:
        """The lease is no longer ours: the job stops and nothing is reported. A report under way finds that out by itself: what the
        service closed may be the lease whose report it has."""
        if not self._lost and self._reporting_since is None:
            logger.warning("lease %d is lost: %s", self.lease_id, reason)
            self._lost = True
            self.cancelled.set()
            self._abandon()

    def give_back(self) -> None:
        """Says that the job did not begin; the service lets it wait again."""
        try:
            self.calls.give_back(self._unwanted, _RETURN_PATIENCE)
            logger.info("lease %d is handed back: %s", self.lease_id, self._unwanted)
        except RunnerError as error:
            # It runs out by itself: that costs time, no attempt is lost to the change.
            logger.warning("lease %d could not be handed back: %s", self.lease_id, error)
        self._finish()
        self.kept.remove()

    def report(self, report: JobReport) -> bool:
        """Keeps the report, sends the rest of the log and then it, again and again until the service has it. False where the agent had
        to end before; the report is sent in its next life."""
        self._reporting_since = time.monotonic()
        self.kept.write_report(report)
        if self._stream is not None and not self._stream.close(_LOG_SECONDS):
            logger.warning("lease %d: the service has not taken all of the log", self.lease_id)
        sent = send_report(self.calls, report, self._abandoned)
        self._finish()
        if sent:
            self.kept.remove()
        return sent

    def drop(self) -> None:
        """Forgets a lost lease."""
        self._finish()
        self.kept.remove()

    def abandon(self) -> None:
        """The agent must end now: whatever still waits for the service stops waiting."""
        self._abandon()

    def _abandon(self) -> None:
        self._abandoned.set()
        if self._stream is not None:
            self._stream.give_up()

    def _finish(self) -> None:
        self._ended.set()
        self._wake.set()
        if self._stream is not None:
            self._stream.give_up()
        if self._beats.is_alive():
            self._beats.join(_MOST_BEAT_SECONDS)

    # Its beats

    def _beat_all(self) -> None:
        """Says that the job is worked on, at once when a step begins, until the report is acknowledged."""
        seconds = min(self.grant.lease_seconds / 4, _MOST_BEAT_SECONDS)
        answered = time.monotonic()
        while not self._ended.is_set():
            self._wake.clear()
            try:
                answer = self.calls.beat(self._step, patience=0.0)
            except LeaseLost as lost:
                self.lose(lost.message)
                return
            except RunnerError as error:
                if time.monotonic() - answered > self.grant.lease_seconds:
                    self.lose(f"no beat was answered for {self.grant.lease_seconds:g} s: {error}")
                    return
            else:
                answered = time.monotonic()
                if answer.cancel:
                    self.cancelled.set()
            if (also := self.each_beat) is not None:
                also()
            self._wake.wait(seconds)


def send_report(calls: LeaseCalls, report: JobReport, abandoned: threading.Event) -> bool:
    """Sends a report until it is acknowledged, or refused for good. False where `abandoned` was set before."""
    while not abandoned.is_set():
        try:
            calls.report(report, _REPORT_PATIENCE, abandoned)
        except LeaseLost as lost:
            logger.warning(
                "lease %d: the report has no effect, the lease is lost: %s", calls.lease_id, lost.message
            )
        except Refused as refused:
            logger.error("lease %d: the report is refused: %s", calls.lease_id, refused)
        except Unreachable as error:
            logger.warning("lease %d: the report still waits: %s", calls.lease_id, error)
            continue
        return True
    return False
