"""What an earlier life of the agent left: reports that the service has not acknowledged, and jobs that died with it."""

from __future__ import annotations

import logging
import threading

from ci_dispatch.model import JobReport, Notice
from ci_dispatch.runner.client import LeaseCalls, Service
from ci_dispatch.runner.errors import RunnerError
from ci_dispatch.runner.kept import KeptLease
from ci_dispatch.runner.lease import send_report
from ci_dispatch.runner.stream import LogStream

logger = logging.getLogger(__name__)

_LOG_SECONDS = 60.0
_RETURN_PATIENCE = 20.0


def resume(service: Service, kept: list[KeptLease], ended: threading.Event) -> None:
    """Sends the reports that are there, hands back what had not begun, and reports as lost what had. Ends early with `ended`."""
    for lease in kept:
        if ended.is_set():
            return
        calls = LeaseCalls(service, lease.grant.lease_id, lease.grant.token)
        report = lease.report()
        if report is None and not lease.has_begun:
            try:
                calls.give_back("the runner's agent was started again", _RETURN_PATIENCE)
            except RunnerError as error:
                # It has run out, or will.
                logger.info("lease %d of an earlier life: %s", calls.lease_id, error)
            lease.remove()
            continue
        if _send(calls, lease, report or _lost(lease), ended):
            lease.remove()


def _send(calls: LeaseCalls, lease: KeptLease, report: JobReport, ended: threading.Event) -> bool:
    stream = LogStream(calls, lease.log)
    stream.close(_LOG_SECONDS)
    return send_report(calls, report, ended)


def _lost(lease: KeptLease) -> JobReport:
    words = "the runner's agent died while the job ran"
    return JobReport(notices=(Notice(kind="lost", detail=words),), gpus=lease.grant.gpus)
