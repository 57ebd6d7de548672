"""Runs a job on this host from its first step to its report: evidence of what happened, no verdict."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field

from ci_dispatch import golden
from ci_dispatch.model import Comparison, Gpu, Job, JobReport, Notice, Sample, Step, StepRun
from ci_dispatch.runner.artifacts import Collector
from ci_dispatch.runner.base import SourceError, Sources, Watcher, Workplace
from ci_dispatch.runner.cgroup import Group, Limits, make_group, own_hierarchies
from ci_dispatch.runner.logs import Log
from ci_dispatch.runner.measure import measure
from ci_dispatch.runner.room import Room, RoomError, open_room
from ci_dispatch.runner.sandbox import Confinement, confinement
from ci_dispatch.runner.steps import Steps, cpus

_MB = 1 << 20


@dataclass(slots=True)
class _Evidence:
    comparisons: list[Comparison] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    bad_numbers: list[str] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    runs: list[StepRun] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


def execute(
    job: Job, gpus: Sequence[Gpu], sources: Sources, watcher: Watcher, workplace: Workplace
) -> JobReport:
    """Run a job's steps in order until one fails, in a fresh folder that is gone afterwards, with all its processes.

    Args:
        job: what to run. One that is not trusted runs only where it can be confined.
        gpus: those it leased; it sees no others.
        sources: gives the files of its commits.
        watcher: sees it run, and may cancel it.
        workplace: this runner's place on the host.

    Returns:
        What the runner saw. Failures of the host and of `sources` are notices in it, not exceptions.
    """
    found = confinement(workplace.sandboxed)
    log = Log(workplace.log_bytes, watcher.log)
    collector = Collector(watcher.keep, workplace.artifact_bytes)
    evidence = _Evidence()
    if found.works or job.trusted:
        _try(job, gpus, sources, watcher, workplace, found, log, collector, evidence)
    else:
        detail = f"a job from a fork runs only where it can be confined: {found.problem}"
        evidence.notices.append(Notice(kind="agent", where="before", detail=detail))
    return JobReport(
        runs=tuple(evidence.runs),
        comparisons=tuple(evidence.comparisons),
        samples=tuple(evidence.samples),
        bad_numbers=tuple(evidence.bad_numbers),
        notices=tuple(evidence.notices),
        artifacts=tuple(collector.artifacts),
        left_out=collector.left_out,
        cancelled=watcher.cancelled.is_set(),
        gpus=tuple(gpu.uuid for gpu in gpus),
        sandboxed=found.works,
        environment=evidence.environment,
        log_bytes=log.bytes,
        log_tail=log.tail(),
    )


def _try(
    job: Job,
    gpus: Sequence[Gpu],
    sources: Sources,
    watcher: Watcher,
    workplace: Workplace,
    found: Confinement,
    log: Log,
    collector: Collector,
    evidence: _Evidence,
) -> None:
    spec = job.spec
    try:
        with open_room(job, workplace, found.works) as room:
            room.fetch("head", sources)
            if spec.goldens or spec.perf:
                room.fetch("base", sources)
            group = make_group(
                room.folder.name, Limits(spec.memory_mb * _MB, spec.processes, spec.cpus), own_hierarchies()
            )
            steps = Steps(job, gpus, room, workplace, found, group, log, watcher)
            evidence.runs, evidence.notices = steps.runs, steps.notices
            evidence.environment = _environment(job, room, found, group)
            try:
                _run_all(job, steps, room, log, watcher, collector, evidence)
            finally:
                group.close()
    except SourceError as error:
        evidence.notices.append(Notice(kind="source", where="before", detail=str(error)[:2_000]))
    except RoomError as error:
        evidence.notices.append(Notice(kind="agent", where="before", detail=str(error)[:2_000]))
    except OSError as error:
        # Of the host: what a job may do to its own files is met where they are read.
        evidence.notices.append(Notice(kind="agent", detail=f"this host failed: {error}"[:2_000]))


def _run_all(
    job: Job, steps: Steps, room: Room, log: Log, watcher: Watcher, collector: Collector, evidence: _Evidence
) -> None:
    for step in job.spec.steps:
        if watcher.cancelled.is_set():
            return
        if step.name == "bench" and job.spec.perf is not None:
            measured = measure(job, job.spec.perf, step, steps, room, log, collector)
            evidence.samples += measured.samples
            evidence.bad_numbers += measured.bad_numbers
            if measured.failed:
                return
        elif not _run_one(job, step, steps, room, collector, evidence):
            return


def _run_one(
    job: Job, step: Step, steps: Steps, room: Room, collector: Collector, evidence: _Evidence
) -> bool:
    out = room.out(step.name)
    ran = steps.run(step, out)
    if ran.ending == "cancelled":
        return False
    if step.name == "smoke" and ran.ending == "exited":
        # A smoke step that noticed by itself that answers differ ends with a failure; which ones differ is worth knowing all the same.
        for one in job.spec.goldens:
            kept = room.places["base"].tree / one.kept
            evidence.comparisons.append(golden.compare(one, out / one.output, kept, job.spec.arch))
    collector.collect(out, step.name)
    return ran.ending == "exited" and ran.status == 0


def _environment(job: Job, room: Room, found: Confinement, group: Group) -> dict[str, str]:
    """How the job was confined and what held its limits."""
    if found.works:
        sandbox = f"bubblewrap, {'user ' + str(room.uid) if room.uid is not None else 'user namespace'}"
        processes = "resource limit"
    else:
        sandbox, processes = f"none: {found.problem}", "watched"
    spec = job.spec
    limited = "processor set" if cpus(spec.cpus, group) else "none"
    held = group.controllers
    return {
        "sandbox": sandbox,
        "limit.memory": f"{spec.memory_mb} MiB, {'control group' if 'memory' in held else 'watched'}",
        "limit.processes": f"{spec.processes}, {'control group' if 'pids' in held else processes}",
        "limit.cpu": f"{spec.cpus or 'all'}, {'control group' if 'cpu' in held else limited}",
        "limit.disk": f"{spec.disk_mb} MiB, watched, and a resource limit a file",
        "cache": room.cache,
        "kernel": platform.release(),
    }
