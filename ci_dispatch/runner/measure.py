"""Interleaved runs of a bench step: base, base again and head, round by round, in changing order."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ci_dispatch import kpis
from ci_dispatch.kpis import Side
from ci_dispatch.model import Job, Perf, Sample, Step, StepRun
from ci_dispatch.runner.artifacts import Collector
from ci_dispatch.runner.harness import harness_files, lay_over
from ci_dispatch.runner.logs import Log
from ci_dispatch.runner.room import Room
from ci_dispatch.runner.steps import Steps

_ORDERS: tuple[tuple[Side, Side, Side], ...] = (
    ("base", "base_again", "head"),
    ("head", "base_again", "base"),
    ("base_again", "head", "base"),
    ("base", "head", "base_again"),
    ("head", "base", "base_again"),
    ("base_again", "base", "head"),
)


@dataclass(slots=True)
class Measured:
    """What the runs gave. `failed` is set where the head's bench did not end well."""

    samples: list[Sample] = field(default_factory=list)
    bad_numbers: list[str] = field(default_factory=list)
    failed: bool = False


def order(round: int) -> tuple[Side, Side, Side]:
    """Which side runs when: over six rounds each is in each place twice, and follows each other one equally often."""
    return _ORDERS[round % len(_ORDERS)]


def measure(
    job: Job, perf: Perf, bench: Step, steps: Steps, room: Room, log: Log, collector: Collector
) -> Measured:
    """Run all rounds. A base that cannot be built or run is left out from then on: its numbers are missing, which judges nothing."""
    measured = Measured()
    build = next((step for step in job.spec.steps if step.name == "build"), None)
    base_works = build is None or _ended_well(steps.run(build, room.out("build-base"), "base", "base"))
    if not base_works:
        log.note("the base does not build: only the head is measured")
    files = harness_files(room.places["base"].tree, perf.harness)
    lay_over(room.places["base"].tree, room.places["head"].tree, files, room.uid)
    if files:
        log.note(f"{len(files)} harness files are the base's on both sides")
    for round in range(perf.rounds):
        for side in order(round):
            if side != "head" and not base_works:
                continue
            out = room.out(f"bench-{round}-{side}")
            ran = steps.run(bench, out, "head" if side == "head" else "base", side, round)
            samples, bad = _read(out, perf, side, round) if _ended_well(ran) else ([], [])
            collector.collect(out, out.name)
            if ran.ending == "cancelled":
                measured.failed = True
                return measured
            measured.samples += samples
            if side == "head":
                measured.bad_numbers += bad
                if not _ended_well(ran):
                    measured.failed = True
                    return measured
            elif bad or not _ended_well(ran):
                base_works = False
                log.note(f"the base gave no numbers in round {round}: only the head is measured from here on")
                for problem in bad:
                    log.note(problem)
    return measured


def _read(out: Path, perf: Perf, side: Side, round: int) -> tuple[list[Sample], list[str]]:
    return kpis.read(out / perf.output, side, round, below=out)


def _ended_well(ran: StepRun) -> bool:
    return ran.ending == "exited" and ran.status == 0
