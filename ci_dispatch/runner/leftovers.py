"""Processes and folders that jobs of an agent left when it was killed. They are removed before a GPU is offered again."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ci_dispatch.runner.room import remove

logger = logging.getLogger(__name__)

_WAIT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process; `started` (clock ticks since boot) tells it from a later one with its id."""

    pid: int
    started: int
    command: str


def find_leftovers(folder: Path) -> list[Leftover]:
    """Processes that work below a folder: by working or root directory, program, HOME or TMPDIR, an open file, or a sandbox that mounts
    part of it. Never this one or one that it descends from. What ends meanwhile, or may not be read, is left out."""
    spared = set(_ancestors(os.getpid()))
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in spared and _works_below(entry, folder):
            one = _describe(entry)
            if one is not None:
                found.append(one)
    return found


def end_leftovers(folder: Path, seconds: float = _WAIT_SECONDS) -> list[Leftover]:
    """Kills them, those that they start meanwhile too, until none is left or the time is over; answers all that were found."""
    ended: dict[tuple[int, int], Leftover] = {}
    deadline = time.monotonic() + seconds
    while found := find_leftovers(folder):
        for one in found:
            ended[one.pid, one.started] = one
            _kill(one)
        if time.monotonic() >= deadline:
            break
        time.sleep(0.05)
    return list(ended.values())


def sweep(jobs: Path) -> None:
    """Ends and removes what an earlier agent's jobs left below their folder; what stays is named in the log."""
    for one in end_leftovers(jobs):
        logger.warning("process %d of an earlier job is ended: %s", one.pid, one.command)
    for one in find_leftovers(jobs):
        logger.error("process %d of an earlier job cannot be ended: %s", one.pid, one.command)
    for folder in jobs.iterdir() if jobs.is_dir() else ():
        remove(folder)
        if folder.exists():
            logger.error("the folder %s of an earlier job cannot be removed", folder)


def _works_below(process: Path, folder: Path) -> bool:
    inside = str(folder.resolve())
    for link in ("cwd", "root", "exe"):
        if _is_below(_target(process / link), inside):
            return True
    places = [os.fsencode(f"{name}={inside}/") for name in ("HOME", "TMPDIR", "OUT")]
    if any(variable.startswith(tuple(places)) for variable in _content(process / "environ").split(b"\0")):
        return True
    if any(_is_below(target, inside) for target in _open_files(process)):
        return True
    return _target(process / "ns/mnt") != _target(Path("/proc/self/ns/mnt")) and _mounts_below(
        process, inside
    )


def _mounts_below(process: Path, inside: str) -> bool:
    """Whether a mount namespace shows part of a folder: its mounts name device and path within the device's file system."""
    device, within = _place_on_device(inside)
    return any(mount[2] == device and _is_below(mount[3], within) for mount in _mounts(process / "mountinfo"))


def _place_on_device(folder: str) -> tuple[str, str]:
    own = [
        mount for mount in _mounts(Path("/proc/self/mountinfo")) if _is_below(folder, mount[4].rstrip("/"))
    ]
    if not own:
        return "", folder
    nearest = max(own, key=lambda mount: len(mount[4]))
    return nearest[2], nearest[3].rstrip("/") + folder.removeprefix(nearest[4].rstrip("/"))


def _mounts(file: Path) -> list[list[str]]:
    """Lines of a mountinfo: id, parent, device, path within it, where it is mounted, and more."""
    return [line.split() for line in _content(file).decode(errors="replace").splitlines()]


def _is_below(target: str, inside: str) -> bool:
    # The kernel marks the path of a removed file; the process is one of ours all the same.
    return target.removesuffix(" (deleted)") == inside or target.startswith(f"{inside}/")


def _open_files(process: Path) -> Iterator[str]:
    try:
        handles = list((process / "fd").iterdir())
    except OSError:
        return
    for handle in handles:
        yield _target(handle)


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _describe(process: Path) -> Leftover | None:
    fields = _stat(process)
    # A zombie holds nothing; its parent has to collect it.
    if fields is None or fields[0] == "Z":
        return None
    command = _content(process / "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    return Leftover(int(process.name), int(fields[19]), command[:200])


def _stat(process: Path) -> list[str] | None:
    """The fields of /proc/PID/stat from the third on: the second, the name, may hold anything."""
    content = _content(process / "stat").decode(errors="replace")
    return content[content.rindex(")") + 2 :].split() if ")" in content else None


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 0:
        yield pid
        fields = _stat(Path("/proc") / str(pid))
        pid = int(fields[1]) if fields else 0


def _kill(one: Leftover) -> None:
    """Through a handle on the process, so that its id cannot pass to another one between looking and killing."""
    try:
        handle = os.pidfd_open(one.pid)
    except OSError:
        return
    try:
        fields = _stat(Path("/proc") / str(one.pid))
        if fields is not None and int(fields[19]) == one.started:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)
