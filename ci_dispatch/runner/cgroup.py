"""Control groups, version 1 or 2: limits on a job as a whole, where this process may make groups below its own."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "whitesmoke-"
_AGENT = f"{_PREFIX}agent"
_CONTROLLERS = ("memory", "pids", "cpu")
_PERIOD_US = 100_000


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where groups can be made for a controller. `version` is that of the interface."""

    folder: Path
    version: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a job as a whole; `cpus` is None where it may use all."""

    memory_bytes: int
    processes: int
    cpus: float | None = None


class Group:
    """One job's group in each hierarchy."""

    def __init__(self, folders: Mapping[str, Path], versions: Mapping[str, int]) -> None:
        self._folders = dict(folders)
        self._versions = dict(versions)

    @property
    def controllers(self) -> frozenset[str]:
        """Those that enforce a limit."""
        return frozenset(self._folders)

    @property
    def join_files(self) -> tuple[str, ...]:
        """A process that writes 0 to each of them is in the group."""
        return tuple(str(folder / "cgroup.procs") for folder in dict.fromkeys(self._folders.values()))

    def memory_kills(self) -> int:
        """How many of its processes the kernel has killed for want of memory."""
        folder = self._folders.get("memory")
        if folder is None:
            return 0
        name = "memory.events" if self._versions["memory"] == 2 else "memory.oom_control"
        return parse_counts(_read(folder / name)).get("oom_kill", 0)

    def kill(self) -> None:
        """Kills what is in the group, without waiting for its end."""
        for folder in dict.fromkeys(self._folders.values()):
            _kill_all(folder)

    def close(self, seconds: float = 2.0) -> None:
        """Ends what is left in the group, and removes it."""
        deadline = time.monotonic() + seconds
        for folder in dict.fromkeys(self._folders.values()):
            while folder.is_dir():
                self.kill()
                try:
                    folder.rmdir()
                except OSError:
                    if time.monotonic() >= deadline:
                        break
                    time.sleep(0.01)


def hierarchies(own: str, mounts: str) -> dict[str, Hierarchy]:
    """For each controller this process's own group, from the contents of /proc/self/cgroup and /proc/self/mountinfo.

    A controller of version 1 where that is mounted, else version 2's unified hierarchy, whether or not it offers it there.
    """
    places: dict[str, tuple[Path, str, int]] = {}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or not kind[0].startswith("cgroup"):
            continue
        place = Path(fields[4].replace("\\040", " "))
        if kind[0] == "cgroup2":
            places[""] = (place, fields[3], 2)
        else:
            places |= {name: (place, fields[3], 1) for name in kind[2].split(",") if name in _CONTROLLERS}
    found = {}
    for line in own.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            if name in places:
                place, root, version = places[name]
                inside = path.removeprefix(root.rstrip("/")).lstrip("/")
                found[name] = Hierarchy(place / inside, version)
    unified = found.pop("", None)
    if unified is not None:
        for name in _CONTROLLERS:
            found.setdefault(name, unified)
    return {name: found[name] for name in _CONTROLLERS if name in found}


def own_hierarchies() -> dict[str, Hierarchy]:
    """Those of this process; empty where the system has none."""
    places = hierarchies(_read(Path("/proc/self/cgroup")), _read(Path("/proc/self/mountinfo")))
    # An agent that moved one level down still makes its groups where it came from.
    return {
        name: Hierarchy(place.folder.parent, place.version) if place.folder.name == _AGENT else place
        for name, place in places.items()
    }


def make_group(name: str, limits: Limits, places: Mapping[str, Hierarchy]) -> Group:
    """A group with the limits that can be set here; `Group.controllers` says which. Never fails: what cannot be set is missing."""
    folders: dict[str, Path] = {}
    versions: dict[str, int] = {}
    for place in set(places.values()):
        _sweep(place.folder)
    name = f"{_PREFIX}{os.getpid()}-{name}"
    for controller, place in places.items():
        if controller == "cpu" and limits.cpus is None:
            continue
        folder = place.folder / name
        with contextlib.suppress(OSError):
            if place.version == 2:
                _offer(place.folder, controller)
            folder.mkdir(exist_ok=True)
            for file, value in settings(controller, place.version, limits).items():
                (folder / file).write_text(value)
            _tighten(controller, place.version, folder, limits)
            folders[controller], versions[controller] = folder, place.version
    for place in places.values():
        folder = place.folder / name
        if folder not in folders.values():
            with contextlib.suppress(OSError):
                folder.rmdir()
    return Group(folders, versions)


def settings(controller: str, version: int, limits: Limits) -> dict[str, str]:
    """What is written where to enforce a controller's limit."""
    if controller == "memory":
        name = "memory.max" if version == 2 else "memory.limit_in_bytes"
        return {name: str(limits.memory_bytes)}
    if controller == "pids":
        return {"pids.max": str(limits.processes)}
    quota = int((limits.cpus or 0) * _PERIOD_US)
    if version == 2:
        return {"cpu.max": f"{quota} {_PERIOD_US}"}
    return {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(quota)}


def parse_counts(text: str) -> dict[str, int]:
    """Lines of a name and a number, as control files have them."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _sweep(parent: Path) -> None:
    """Removes groups of agents that were killed. The agent's process id in the name tells them from those in use."""
    for folder in parent.glob(f"{_PREFIX}*-*"):
        pid = folder.name.removeprefix(_PREFIX).split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            _kill_all(folder)
            with contextlib.suppress(OSError):
                folder.rmdir()


def _kill_all(folder: Path) -> None:
    for pid in _read(folder / "cgroup.procs").split():
        # Processes that this namespace does not know are 0, which would mean our own group.
        if pid != "0":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(pid), signal.SIGKILL)


def _tighten(controller: str, version: int, folder: Path, limits: Limits) -> None:
    """Swap would be memory beyond the limit; kernels without it have no such file."""
    if controller != "memory":
        return
    name, value = (
        ("memory.swap.max", "0")
        if version == 2
        else ("memory.memsw.limit_in_bytes", str(limits.memory_bytes))
    )
    with contextlib.suppress(OSError):
        (folder / name).write_text(value)


def _offer(parent: Path, controller: str) -> None:
    """Lets groups below `parent` have a controller. Version 2 allows that only in a group without processes of its own, so the agent,
    where it is alone in its delegated group, moves one level down. Raises OSError where it may not."""
    if controller in _read(parent / "cgroup.subtree_control").split():
        return
    if controller not in _read(parent / "cgroup.controllers").split():
        raise FileNotFoundError(f"{parent} has no {controller} controller")
    members = _read(parent / "cgroup.procs").split()
    is_root = not (parent / "cgroup.type").exists()
    if not is_root and members == [str(os.getpid())]:
        (parent / _AGENT).mkdir(exist_ok=True)
        (parent / _AGENT / "cgroup.procs").write_text("0")
    (parent / "cgroup.subtree_control").write_text(f"+{controller}")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
