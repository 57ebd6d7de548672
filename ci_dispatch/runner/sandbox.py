"""Bubblewrap: what a confined step sees of the host, as the arguments of one command.

As root, bubblewrap sets the mounts up with root's rights and the step runs under another UID. Otherwise a user namespace holds it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ci_dispatch.runner.devices import Device

TREE, OUT, HOME, CACHE, TMP = "/job/tree", "/job/out", "/job/home", "/job/cache", "/tmp"
"""Where a confined step finds its checkout, its output folder, its home, its compiler caches and scratch space."""

_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_READABLE = ("/usr", "/opt")
_ETC = (
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "nsswitch.conf",
    "localtime",
    "mime.types",
    "ssl/certs",
    "ssl/openssl.cnf",
    "ca-certificates.conf",
    "pki",
    "crypto-policies",
)
_CPU_SYS = ("/sys/devices/system/cpu", "/sys/devices/system/node")
_GPU_SYS = ("/sys/bus", "/sys/class", "/sys/dev", "/sys/devices", "/sys/module")
_PROBE_SECONDS = 20
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/cuda/bin"


@dataclass(frozen=True, slots=True)
class Confinement:
    """Whether jobs can be confined here. `problem` says why not."""

    program: str = ""
    as_root: bool = False
    problem: str = ""

    @property
    def works(self) -> bool:
        return bool(self.program)


@dataclass(frozen=True, slots=True)
class View:
    """What one step sees and may use.

    Attributes:
        tree, out, home, cache: folders of the host that the step may write.
        etc: a folder with the files `passwd`, `group` and `hosts` that it sees in /etc.
        uid: whom it runs as, where the agent is root.
        readonly: further folders of the host, at the same path.
        devices: its GPUs' files.
        shared_bytes: size of each of /tmp and /dev/shm.
        processes: the most it may have, where no control group says so.
    """

    tree: Path
    out: Path
    home: Path
    cache: Path
    etc: Path
    uid: int
    readonly: tuple[Path, ...] = ()
    devices: tuple[Device, ...] = ()
    shared_bytes: int = 1 << 30
    processes: int | None = None


def arguments(
    confinement: Confinement, view: View, argv: Sequence[str], status: int | None = None
) -> list[str]:
    """The whole command. Bubblewrap tells descriptor `status` how the step ended, and says nothing there where it could not set up."""
    line = [confinement.program, "--die-with-parent", "--new-session"]
    line += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if not confinement.as_root:
        line += ["--unshare-user"]
    line += ["--hostname", "ci"]
    line += _system()
    line += _scratch(TMP, view.shared_bytes)
    for folder in view.readonly:
        line += [*_parents(str(folder)), "--ro-bind", str(folder), str(folder)]
    # After what the operator named: a folder named too widely must not bring the host's own back.
    line += ["--perms", "0755", "--tmpfs", "/etc"]
    for name in _ETC:
        line += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name in ("passwd", "group", "hosts"):
        line += ["--ro-bind", str(view.etc / name), f"/etc/{name}"]
    line += ["--remount-ro", "/etc"]
    line += ["--proc", "/proc", "--dev", "/dev"]
    for device in view.devices:
        line += ["--dev-bind", str(device.host), device.inside]
    for name in _GPU_SYS if view.devices else _CPU_SYS:
        line += [*_parents(name), "--ro-bind-try", name, name]
    line += _scratch("/dev/shm", view.shared_bytes)
    for host, inside in ((view.tree, TREE), (view.out, OUT), (view.home, HOME), (view.cache, CACHE)):
        line += [*_parents(inside), "--bind", str(host), inside]
    # Folders that bubblewrap made on the way are memory that nothing counts.
    line += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", TREE]
    if status is not None:
        line += ["--json-status-fd", str(status)]
    return [*line, "--", *_lowered(confinement, view), *argv]


def confinement(wanted: bool = True) -> Confinement:
    """Tries bubblewrap as jobs would use it."""
    if not wanted:
        return Confinement(problem="the runner was told to do without")
    program = shutil.which("bwrap")
    if program is None:
        return Confinement(problem="bubblewrap is not installed (its command is bwrap)")
    found = Confinement(program, as_root=os.geteuid() == 0)
    with tempfile.TemporaryDirectory(prefix="whitesmoke-probe-") as name:
        place = Path(name)
        write_etc(place, os.geteuid())
        view = View(place, place, place, place, place, uid=65_534, shared_bytes=1 << 20, processes=1_024)
        try:
            ran = subprocess.run(
                arguments(found, view, ["/usr/bin/env", "true"]),
                env={"PATH": PATH},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PROBE_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Confinement(problem=f"bubblewrap does not run: {error}")
    if ran.returncode != 0:
        said = ran.stderr.decode(errors="replace").strip().splitlines() or [f"status {ran.returncode}"]
        return Confinement(problem=f"bubblewrap cannot confine here: {said[-1][:300]}")
    return found


def write_etc(folder: Path, uid: int) -> None:
    """The files of /etc that name whom a confined step runs as, and itself."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "passwd").write_text(f"root:x:0:0::/nonexistent:/bin/false\nci:x:{uid}:{uid}::{HOME}:/bin/sh\n")
    (folder / "group").write_text(f"root:x:0:\nci:x:{uid}:\n")
    (folder / "hosts").write_text("127.0.0.1 localhost ci\n::1 localhost\n")


def is_seen(path: Path, readonly: Sequence[Path]) -> bool:
    """Whether a confined step sees a host's program at this path."""
    places = (*map(Path, _READABLE), *map(Path, _SYSTEM), *readonly)
    return any(path.is_relative_to(place) for place in places)


def _system() -> list[str]:
    line: list[str] = []
    for place in _READABLE:
        line += ["--ro-bind-try", place, place]
    for place in _SYSTEM:
        path = Path(place)
        if path.is_symlink():
            line += ["--symlink", os.readlink(path), place]
        elif path.is_dir():
            line += ["--ro-bind", place, place]
    return line


def _scratch(place: str, size: int) -> list[str]:
    return ["--perms", "1777", "--size", str(size), "--tmpfs", place]


def _parents(path: str) -> list[str]:
    """Bubblewrap makes them open to their owner alone, and that is root."""
    line: list[str] = []
    for parent in reversed(PurePosixPath(path).parents[:-1]):
        if not parent.is_relative_to("/usr") and not parent.is_relative_to("/opt"):
            line += ["--perms", "0755", "--dir", str(parent)]
    return line


def _lowered(confinement: Confinement, view: View) -> list[str]:
    """Gives up root's rights, and limits processes: inside, so that the namespace's own are what is counted."""
    line: list[str] = []
    if confinement.as_root:
        who = str(view.uid)
        line += ["setpriv", "--reuid", who, "--regid", who, "--clear-groups", "--no-new-privs"]
        line += ["--inh-caps=-all", "--bounding-set=-all", "--"]
    if view.processes is not None:
        line += ["prlimit", f"--nproc={view.processes}:{view.processes}", "--"]
    return line
