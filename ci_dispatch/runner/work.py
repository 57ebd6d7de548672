"""A lease's work in its order: take the GPUs, examine them, run the job, examine them again, give them back, report."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from ci_dispatch.model import Gpu, JobReport, Notice
from ci_dispatch.runner.base import SourceError
from ci_dispatch.runner.clocks import Clocks
from ci_dispatch.runner.host import Execute, Host
from ci_dispatch.runner.lease import Lease
from ci_dispatch.runner.sources import LeaseSources

logger = logging.getLogger(__name__)

_TAKE_SECONDS = 30.0
_OF_THE_HOST = ("orphan", "memory")


def work(
    lease: Lease, host: Host, execute: Execute, runner: str, tell: Callable[[Sequence[Notice]], None]
) -> None:
    """Ends when the lease has ended, in whichever way. `tell` hears of GPUs that are not well before they are given back."""
    grant = lease.grant
    try:
        lease.start()
    except OSError as error:
        lease.hand_back(f"the runner cannot keep a log: {error.strerror}")
    if not (grant.job.trusted or host.offer.sandboxed):
        lease.hand_back("this runner has no sandbox, and the job comes from a fork")
    report = JobReport(cancelled=True, sandboxed=host.offer.sandboxed)
    # GPUs of a lease that was lost are in use until its job is dead.
    if not (lease.is_placed or host.capacity.take(grant.gpus, _TAKE_SECONDS)):
        lease.hand_back("its GPUs are still in use on this runner")
    else:
        try:
            if not lease.cancelled.is_set():
                report = _examined(lease, host, execute, tell)
        except Exception as error:
            # Whatever a job does to the executor, the runner goes on to the next one.
            logger.exception("lease %d: the runner failed", grant.lease_id)
            report = _failed("agent", f"{type(error).__name__}: {error}", host)
        finally:
            lease.each_beat = None
            host.capacity.give(grant.gpus)
    if lease.is_lost:
        lease.drop()
    elif lease.returned_because:
        lease.give_back()
    else:
        lease.report(
            report.model_copy(
                update={
                    "notices": (*report.notices, *lease.notices),
                    "runner": runner,
                    "gpus": grant.gpus,
                }
            )
        )


def _examined(
    lease: Lease, host: Host, execute: Execute, tell: Callable[[Sequence[Notice]], None]
) -> JobReport:
    uuids = lease.grant.gpus
    since = time.monotonic()
    before = host.health.preflight(uuids, lease.grant.job.spec.disk_mb)
    if before:
        tell(before)
        return JobReport(notices=tuple(before), sandboxed=host.offer.sandboxed)
    if lease.cancelled.is_set():
        return JobReport(cancelled=True, sandboxed=host.offer.sandboxed)
    clocks = Clocks()

    def look() -> None:
        clocks.add([one for one in host.devices.read() if one.uuid in uuids])

    # A job may be over before the first beat.
    look()
    lease.each_beat = look
    report = _executed(lease, host, execute)
    after = host.health.postflight(uuids, since, lease.begun_at)
    tell(after)
    # What the job left on a GPU is the host's affair: it says nothing about the job, which is over.
    evidence = [one for one in after if not (one.where == "after" and one.kind in _OF_THE_HOST)]
    return report.model_copy(
        update={
            "notices": (*report.notices, *evidence),
            "environment": {**report.environment, **clocks.facts(), **host.health.facts(uuids)},
        }
    )


def _executed(lease: Lease, host: Host, execute: Execute) -> JobReport:
    grant = lease.grant
    by_uuid: dict[str, Gpu] = {gpu.uuid: gpu for gpu in host.inventory().gpus}
    workplace = replace(host.workplace, log_bytes=grant.log_bytes, artifact_bytes=grant.artifact_bytes)
    sources = LeaseSources(lease.calls, lease.kept.folder, lease.cancelled)
    try:
        return execute(grant.job, [by_uuid[uuid] for uuid in grant.gpus], sources, lease, workplace)
    except SourceError as error:
        return _failed("source", str(error), host)


def _failed(kind: Literal["source", "agent"], words: str, host: Host) -> JobReport:
    return JobReport(notices=(Notice(kind=kind, detail=words[:2000]),), sandboxed=host.offer.sandboxed)
