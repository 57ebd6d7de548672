"""One step of a job: its command line, environment and limits, confined or not, and how its run ended."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci_dispatch.kpis import Side
from ci_dispatch.model import Gpu, Job, Notice, Step, StepRun, Tree
from ci_dispatch.runner import sandbox
from ci_dispatch.runner.base import Watcher, Workplace
from ci_dispatch.runner.cgroup import Group
from ci_dispatch.runner.devices import device_files, visible
from ci_dispatch.runner.limits import Deadline, DiskGuard, MemoryGuard, ProcessGuard
from ci_dispatch.runner.logs import Log
from ci_dispatch.runner.process import Command, Ended, Guard, run
from ci_dispatch.runner.room import Place, Room
from ci_dispatch.runner.sandbox import Confinement, View

_MB = 1 << 20
_OUT = re.compile(r"\$OUT(?![A-Za-z0-9_])|\$\{OUT\}")


@dataclass(frozen=True, slots=True)
class Paths:
    """Where a step finds its folders, as it sees them."""

    tree: str
    out: str
    home: str
    cache: str
    scratch: str


class Steps:
    """Runs steps of one job in its room, within the time that the job has left."""

    def __init__(
        self,
        job: Job,
        gpus: Sequence[Gpu],
        room: Room,
        workplace: Workplace,
        confinement: Confinement,
        group: Group,
        log: Log,
        watcher: Watcher,
    ) -> None:
        self._job = job
        self._gpus = gpus
        self._room = room
        self._workplace = workplace
        self._confinement = confinement
        self._group = group
        self._log = log
        self._watcher = watcher
        self._ends_at: float | None = None
        self._disk = DiskGuard(_written(room), job.spec.disk_mb * _MB)
        self.runs: list[StepRun] = []
        self.notices: list[Notice] = []

    def run(self, step: Step, out: Path, tree: Tree = "head", side: Side = "head", round: int = 0) -> StepRun:
        """Run a step in a tree to its end; its processes are gone then. `side` and `round` say which run of several it is."""
        label = step.name if side == "head" and step.name != "bench" else f"{step.name} {side} {round}"
        self._watcher.begin(label)
        self._log.note(f"{label}: {' '.join(step.argv)}")
        ended = self._ended(step, self._room.places[tree], out)
        if ended.unconfined:
            self.notices.append(Notice(kind="agent", detail=f"{label}: {ended.detail}"))
        ran = StepRun(
            name=step.name,
            side=side,
            round=round,
            ending=ended.ending,
            status=ended.status,
            seconds=round_seconds(ended.seconds),
            detail=ended.detail[:2_000],
        )
        status = "" if ran.status is None else f" {ran.status}"
        self._log.note(f"{label}: {ran.ending}{status} after {ran.seconds:.2f} s {ran.detail}".rstrip())
        self.runs.append(ran)
        return ran

    def _ended(self, step: Step, place: Place, out: Path) -> Ended:
        now = time.monotonic()
        if self._ends_at is None:
            self._ends_at = now + self._job.spec.running_minutes * 60
        paths = self._paths(place, out)
        variables = environment(self._job, self._gpus, self._workplace.passed, paths)
        argv = [_OUT.sub(lambda _: paths.out, argument) for argument in step.argv]
        problem = self._missing(argv[0], place.tree, variables["PATH"])
        if problem:
            return Ended("not_started", 0.0, detail=problem)

        def command(status: int) -> Command:
            line: Sequence[str] = argv
            if self._confinement.works:
                line = sandbox.arguments(self._confinement, self._view(place, out), argv, status)
            return Command(
                argv=line,
                environment=variables,
                cwd=Path("/") if self._confinement.works else place.tree,
                confined=self._confinement.works,
                cgroups=self._group.join_files,
                limits={"RLIMIT_CORE": 0, "RLIMIT_FSIZE": self._job.spec.disk_mb * _MB},
                cpus=cpus(self._job.spec.cpus, self._group),
                uid=self._room.uid,
            )

        kills = self._group.memory_kills()
        ended = run(
            command,
            self._log,
            self._guards(now + step.timeout, step.timeout),
            self._watcher.cancelled,
            self._workplace.grace_seconds,
        )
        if ended.ending == "lost":
            self._group.kill()
        return explain(ended, self._group.memory_kills() - kills, self._job)

    def _guards(self, by: float, timeout: float) -> list[Guard]:
        spec = self._job.spec
        assert self._ends_at is not None
        detail = f"the step has {timeout:g} s"
        if self._ends_at < by:
            by, detail = self._ends_at, f"all steps together have {spec.running_minutes:g} minutes"
        guards: list[Guard] = [Deadline(by, detail), self._disk]
        if "memory" not in self._group.controllers:
            guards.append(MemoryGuard(spec.memory_mb * _MB))
        if "pids" not in self._group.controllers and not self._confinement.works:
            guards.append(ProcessGuard(spec.processes))
        return guards

    def _paths(self, place: Place, out: Path) -> Paths:
        if self._confinement.works:
            return Paths(sandbox.TREE, sandbox.OUT, sandbox.HOME, sandbox.CACHE, sandbox.TMP)
        scratch = place.home / "tmp"
        scratch.mkdir(exist_ok=True)
        return Paths(str(place.tree), str(out), str(place.home), str(place.cache), str(scratch))

    def _view(self, place: Place, out: Path) -> View:
        spec = self._job.spec
        return View(
            tree=place.tree,
            out=out,
            home=place.home,
            cache=place.cache,
            etc=self._room.etc,
            uid=self._room.uid if self._room.uid is not None else os.geteuid(),
            readonly=self._workplace.readonly,
            devices=tuple(device_files(self._gpus)),
            shared_bytes=spec.memory_mb * _MB // 2,
            processes=None if "pids" in self._group.controllers else spec.processes,
        )

    def _missing(self, program: str, tree: Path, path: str) -> str:
        """Why a program cannot be there, in words; empty where it may be. What lies in the tree is for the step to find."""
        if "/" in program:
            file = tree / program
            return "" if os.path.lexists(file) or program.startswith("/") else f"no {program} in the tree"
        found = shutil.which(program, path=path)
        if found is None:
            return f"no command {program} on this host's PATH ({path})"
        if self._confinement.works and not sandbox.is_seen(Path(found), self._workplace.readonly):
            return f"{found} lies outside what jobs see; name its folder among the runner's read-only ones"
        return ""


def environment(job: Job, gpus: Sequence[Gpu], passed: Mapping[str, str], paths: Paths) -> dict[str, str]:
    """All variables of a step: what the operator passes, and ours, which win. Nothing of the agent's own."""
    return {
        "PATH": sandbox.PATH,
        **passed,
        "HOME": paths.home,
        "LANG": "C.UTF-8",
        "CI": "true",
        "OUT": paths.out,
        "TMPDIR": paths.scratch,
        "WHITESMOKE_HEAD_SHA": job.head_sha,
        "WHITESMOKE_BASE_SHA": job.base_sha,
        "CUDA_VISIBLE_DEVICES": visible(gpus),
        "XDG_CACHE_HOME": f"{paths.cache}/xdg",
        "TRITON_CACHE_DIR": f"{paths.cache}/triton",
        "CUDA_CACHE_PATH": f"{paths.cache}/cuda",
        "TORCHINDUCTOR_CACHE_DIR": f"{paths.cache}/inductor",
        "WHITESMOKE_KERNEL_CACHE": f"{paths.cache}/kernels",
    }


def cpus(wanted: int | None, group: Group) -> tuple[int, ...]:
    """Processors to run on, where no control group limits their time: the last ones, which systems use least."""
    if wanted is None or "cpu" in group.controllers:
        return ()
    return tuple(sorted(os.sched_getaffinity(0))[-wanted:])


def explain(ended: Ended, memory_kills: int, job: Job) -> Ended:
    """Names the limit where the kernel enforced one."""
    if ended.ending not in ("exited", "signalled") or ended.status == 0:
        return ended
    if memory_kills > 0:
        detail = f"its processes used more than {job.spec.memory_mb:,} MiB"
        return Ended("memory", ended.seconds, ended.status, detail)
    if ended.status == -signal.SIGXFSZ:
        detail = f"it wrote a file of more than {job.spec.disk_mb:,} MiB"
        return Ended("disk", ended.seconds, ended.status, detail)
    return ended


def _written(room: Room) -> list[Path]:
    """Folders that the job writes: its own, and caches that lie elsewhere."""
    caches = {place.cache for place in room.places.values()}
    return [room.folder, *(cache for cache in caches if not cache.is_relative_to(room.folder))]


def round_seconds(seconds: float) -> float:
    """To milliseconds: more is not known."""
    return round(seconds, 3)
