"""Whether a lease's GPUs are well, before its job and after it. What is wrong becomes evidence; no outcome is decided here.

The judgements are functions of readings. `Health` takes the readings and asks each GPU to compute something.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ci_dispatch.model import Notice
from ci_dispatch.runner import probe as probe_script
from ci_dispatch.runner.inventory import Devices, Known, Offer, free_disk_mb, missing_words
from ci_dispatch.runner.nvml import GpuState, Xid

Where = Literal["before", "during", "after"]

PROBE_SECONDS = 30.0
SETTLE_SECONDS = 10.0
"""How long a GPU may take to show that a process that ended has given its memory back."""

FREE_SHARE = 0.9
"""The part of its memory that an idle GPU must have free."""

_POLL_SECONDS = 0.25


def missing_notices(
    states: Sequence[GpuState], known: Mapping[str, Known], offer: Offer, where: Where
) -> list[Notice]:
    """GPUs that the host has had, or declares, and that do not answer."""
    visible = {state.uuid for state in states}
    missing = tuple(uuid for uuid in known if uuid not in visible)
    words = missing_words(len(states), offer, missing)
    if not words:
        return []
    return [Notice(kind="gpu_missing", where=where, gpu=uuid, detail=words) for uuid in missing or ("",)]


def memory_error_notices(states: Sequence[GpuState], where: Where) -> list[Notice]:
    """GPUs whose memory has errors that were not corrected, or repairs that wait for a reset."""
    notices = []
    for state in states:
        if state.ecc_volatile:
            words = f"{state.ecc_volatile} uncorrectable memory errors since the driver was loaded"
        elif state.repair_pending:
            words = "memory rows or pages wait for a reset to be taken out of use"
        else:
            continue
        notices.append(Notice(kind="ecc", where=where, gpu=state.uuid, detail=words))
    return notices


def occupied_notices(states: Sequence[GpuState], where: Where) -> list[Notice]:
    """GPUs that should be idle and are not: processes on them, or memory that no process accounts for."""
    notices = []
    for state in states:
        if state.processes:
            words = "; ".join(
                f"process {one.pid} holds {'an unknown number of' if one.bytes is None else one.bytes} bytes"
                for one in state.processes
            )
            notices.append(Notice(kind="orphan", where=where, gpu=state.uuid, detail=words[:2000]))
        elif state.memory_total - state.memory_used < FREE_SHARE * state.memory_total:
            words = f"{state.memory_used} of {state.memory_total} bytes are in use by no visible process"
            notices.append(Notice(kind="memory", where=where, gpu=state.uuid, detail=words))
    return notices


def disk_notices(free_mb: int, needed_mb: int, folder: Path) -> list[Notice]:
    """Less room below the runner's folder than the job may write."""
    if free_mb >= needed_mb:
        return []
    words = f"{free_mb} MiB are free in {folder}, the job may write {needed_mb}"
    return [Notice(kind="disk", where="before", detail=words)]


def xid_notices(xids: Sequence[Xid], begun: float | None) -> list[Notice]:
    """Errors that the driver reported; `begun` is the first step's monotonic time."""
    return [
        Notice(
            kind="xid",
            gpu=xid.uuid,
            code=xid.number,
            detail=f"Xid {xid.number}",
            after_seconds=None if begun is None else round(xid.at - begun, 3),
        )
        for xid in xids
    ]


Probe = Callable[[str], str]
"""Asks a GPU, by UUID, to compute something; answers what did not work, or nothing."""


def probe_gpu(uuid: str, *, library: str = "", seconds: float = PROBE_SECONDS) -> str:
    """The real one, in a process of its own. One that does not end is killed, and left alone where that does not help."""
    script = str(Path(probe_script.__file__))
    environment = {
        name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "LANG") if name in os.environ
    }
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", script, uuid, *([library] if library else [])],
        env={**environment, "CUDA_VISIBLE_DEVICES": uuid},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        # A process that waits within the driver cannot be killed; the agent must not wait with it.
        try:
            process.wait(2.0)
        except subprocess.TimeoutExpired:
            return f"no answer within {seconds:g} s, and the process {process.pid} cannot be killed"
        return f"no answer within {seconds:g} s"
    if process.returncode == 0:
        return ""
    words = output.decode(errors="replace").strip()[:500]
    return words or f"the probe ended with status {process.returncode}"


@dataclass(slots=True)
class Health:
    """Examines GPUs. `known` is asked each time which ones the host must have."""

    devices: Devices
    offer: Offer
    folder: Path
    known: Callable[[], Mapping[str, Known]]
    probe: Probe = probe_gpu
    settle_seconds: float = SETTLE_SECONDS
    _stop: threading.Event = field(default_factory=threading.Event)

    def preflight(self, uuids: Sequence[str], disk_mb: int) -> list[Notice]:
        """What speaks against starting a job on these GPUs now. A lease without any asks for disk alone."""
        notices = disk_notices(free_disk_mb(self.folder), disk_mb, self.folder)
        if not uuids:
            return notices
        states = self.devices.read()
        notices += missing_notices(states, self.known(), self.offer, "before")
        notices += _unseen(states, uuids, "before")
        mine = [state for state in states if state.uuid in uuids]
        notices += memory_error_notices(mine, "before")
        notices += self._occupied(uuids, "before")
        return notices or self._compute(uuids, "before")

    def postflight(self, uuids: Sequence[str], since: float, begun: float | None) -> list[Notice]:
        """What happened to these GPUs since a monotonic moment, and how they are now."""
        if not uuids:
            return []
        states = self.devices.read()
        mine = [state for state in states if state.uuid in uuids]
        notices = xid_notices(self.devices.xids(since, tuple(uuids)), begun)
        notices += _unseen(states, uuids, "after")
        notices += memory_error_notices(mine, "after")
        notices += self._occupied(uuids, "after")
        # One that is known to be gone is not asked as well: that only waits for the time limit.
        return notices + self._compute([state.uuid for state in mine], "after")

    def survey(self, idle: Sequence[str]) -> list[Notice]:
        """What readings alone show, between jobs; `idle` GPUs have no lease."""
        states = self.devices.read()
        notices = missing_notices(states, self.known(), self.offer, "during")
        return notices + memory_error_notices([state for state in states if state.uuid in idle], "during")

    def facts(self, uuids: Sequence[str]) -> dict[str, str]:
        """For a report: whether errors that the driver reports were watched for."""
        if not uuids:
            return {}
        return {"xid_events": "watched" if self.devices.sees_xids else "not available on this host"}

    def stop(self) -> None:
        """Ends waits for GPUs to settle."""
        self._stop.set()

    def _occupied(self, uuids: Sequence[str], where: Where) -> list[Notice]:
        deadline = time.monotonic() + self.settle_seconds
        while True:
            notices = occupied_notices([one for one in self.devices.read() if one.uuid in uuids], where)
            if not notices or time.monotonic() >= deadline or self._stop.wait(_POLL_SECONDS):
                return notices

    def _compute(self, uuids: Sequence[str], where: Where) -> list[Notice]:
        if not uuids:
            return []
        with ThreadPoolExecutor(len(uuids)) as pool:
            answers = list(pool.map(self.probe, uuids))
        return [
            Notice(kind="compute", where=where, gpu=uuid, detail=words)
            for uuid, words in zip(uuids, answers, strict=True)
            if words
        ]


def _unseen(states: Sequence[GpuState], uuids: Sequence[str], where: Where) -> list[Notice]:
    visible = {state.uuid for state in states}
    return [
        Notice(kind="gpu_missing", where=where, gpu=uuid, detail="the leased GPU is not visible")
        for uuid in uuids
        if uuid not in visible
    ]
