"""Limits that no kernel interface enforces here: watched while the step runs, which is ended when it passes one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from ci_dispatch.runner.process import Stop
from ci_dispatch.runner.supervise import descendants

_MB = 1 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")
_RESERVE = 1 << 30
"""Bytes that a job leaves free on the host's disk, whatever it may write itself."""
_DU_SECONDS = 60


class Deadline:
    """Ends a step that runs too long. `by` is on the clock of `time.monotonic`."""

    def __init__(self, by: float, detail: str) -> None:
        self._by = by
        self._detail = detail

    def check(self, supervisor: int) -> Stop | None:
        return Stop("timed_out", self._detail) if time.monotonic() >= self._by else None


class MemoryGuard:
    """Memory of all processes together, several times a second. Shared pages count once."""

    def __init__(self, limit: int, every: float = 0.2) -> None:
        self._limit = limit
        self._pace = _Pace(every)

    def check(self, supervisor: int) -> Stop | None:
        if not self._pace.is_due():
            return None
        pids = [pid for pid, _ in descendants(supervisor)]
        # Resident pages are cheap to ask for but count shared ones often; only their sum is worth the exact question.
        if sum(map(_resident, pids)) <= self._limit or sum(map(_proportional, pids)) <= self._limit:
            return None
        return Stop("memory", f"its processes used more than {self._limit // _MB:,} MiB", at_once=True)


class ProcessGuard:
    """Processes and threads, where nothing refuses a fork beyond the limit."""

    def __init__(self, limit: int, every: float = 0.1) -> None:
        self._limit = limit
        self._pace = _Pace(every)

    def check(self, supervisor: int) -> Stop | None:
        if not self._pace.is_due() or sum(_threads(pid) for pid, _ in descendants(supervisor)) <= self._limit:
            return None
        return Stop("processes", f"it had more than {self._limit:,} processes and threads", at_once=True)


class DiskGuard:
    """What a job has written below its folders, in all of its steps, deleted files that it holds open included; and what is left for
    the host.

    Walking the folders takes time, so free space on the disk, which costs nothing to ask for, says when to: at the latest when as much
    was written by anybody as half of what this job has left.
    """

    def __init__(
        self, folders: Sequence[Path], limit: int, reserve: int = _RESERVE, every: float = 5.0
    ) -> None:
        self._folders = folders
        self._limit = limit
        self._every = every
        self._before = sum(map(used_bytes, folders))
        self._used = 0
        self._free = _free_bytes(folders[0])
        # A host that has little left from the start is not this job's doing, and no reason to stop it.
        self._reserve = min(reserve, self._free // 2)
        self._due = time.monotonic() + every

    def check(self, supervisor: int) -> Stop | None:
        free = _free_bytes(self._folders[0])
        if free < self._reserve and self._measure(supervisor) > 0:
            return Stop("disk", "the host's disk is nearly full", at_once=True)
        written = self._free - free
        if written < (self._limit - self._used) // 2 + 1 and time.monotonic() < self._due:
            return None
        if self._measure(supervisor) <= self._limit:
            return None
        return Stop("disk", f"it wrote more than {self._limit // _MB:,} MiB", at_once=True)

    def _measure(self, supervisor: int) -> int:
        self._free = _free_bytes(self._folders[0])
        began = time.monotonic()
        held = _deleted_bytes(supervisor, os.stat(self._folders[0]).st_dev)
        self._used = max(sum(map(used_bytes, self._folders)) - self._before + held, 0)
        self._due = time.monotonic() + max(self._every, 10 * (time.monotonic() - began))
        return self._used


def used_bytes(folder: Path) -> int:
    """Bytes that a folder takes on its disk. `du` walks however deep the job nested its folders."""
    try:
        ran = subprocess.run(
            ["du", "-s", "-x", "-B1", "--", str(folder)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DU_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 0
    first = ran.stdout.split(b"\t", 1)[0]
    return int(first) if first.isdigit() else 0


class _Pace:
    def __init__(self, every: float) -> None:
        self._every = every
        self._due = 0.0

    def is_due(self) -> bool:
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = now + self._every
        return True


def _free_bytes(folder: Path) -> int:
    about = os.statvfs(folder)
    return about.f_bavail * about.f_frsize


def _deleted_bytes(supervisor: int, device: int) -> int:
    """Of files on a device that have no name any more and that the processes below hold open."""
    found: dict[int, int] = {}
    for pid, _ in descendants(supervisor):
        with contextlib.suppress(OSError):
            for handle in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    about = os.stat(handle.path)
                    if about.st_nlink == 0 and about.st_dev == device:
                        found[about.st_ino] = about.st_blocks * 512
    return sum(found.values())


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0


def _proportional(pid: int) -> int:
    """A process's share of memory; its resident pages where the kernel does not tell."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return _resident(pid)


def _threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0
