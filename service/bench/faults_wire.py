"""Killing a flow once at each of its points: every database commit and every outward call, each before and after.

The points are found by running the flow once and noting them. Then the flow runs again for every point, in a process
that kills itself there (SIGKILL), and once more to the end, as the next process would.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa

from service.forge.local import LocalForge
from service.store.database import Database


@dataclass(slots=True)
class Tripwire:
    """Counts points as they are passed, and kills the process at number `kill_at` (from 1; 0 for never).

    `within` names what is done, where the one who commits is a thread that does not know.
    """

    kill_at: int = 0
    passed: list[str] = field(default_factory=list)
    within: str = ""

    def reach(self, name: str) -> None:
        self.passed.append(name)
        if len(self.passed) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


class WiredDatabase(Database):
    """A database with a point before and after every commit."""

    def __init__(self, url: str, wire: Tripwire) -> None:
        super().__init__(url)
        self._wire = wire

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        place = self._wire.within or _caller()
        with super().write() as connection:
            yield connection
            self._wire.reach(f"before commit of {place}")
        self._wire.reach(f"after commit of {place}")


class WiredForge:
    """A forge with a point before and after every call."""

    def __init__(self, forge: LocalForge, wire: Tripwire) -> None:
        self._forge = forge
        self._wire = wire

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._forge, name)

        def wired(*arguments: Any, **options: Any) -> Any:
            self._wire.reach(f"before forge.{name}")
            answer = call(*arguments, **options)
            if isinstance(answer, Iterator):
                answer = iter(list(answer))
            self._wire.reach(f"after forge.{name}")
            return answer

        return wired


Wrong = tuple[list[str], list[str]]
"""What is lost, and what stands twice, in words."""


class Flow(Protocol):
    """What happens in a folder of its own, its world. Phases follow each other there if `chained`; else each begins anew."""

    name: str
    phases: Sequence[str]
    chained: bool

    def build(self, world: Path) -> None: ...

    def happen(self, world: Path, phase: str) -> None:
        """What people do, and the deliveries that tell of it."""

    def work(self, world: Path, phase: str, wire: Tripwire) -> None:
        """A process's life, until nothing is left to do."""

    def inspect(self, world: Path, phase: str) -> Wrong: ...


@dataclass(frozen=True, slots=True)
class Point:
    """One place to be killed at: the `number`-th point that a phase passes."""

    phase: str
    number: int
    name: str


@dataclass(frozen=True, slots=True)
class FlowResult:
    """`lost` and `duplicated` name what was wrong and at which point; both are empty in a sound service."""

    flow: str
    points: int
    runs: int
    lost: tuple[str, ...]
    duplicated: tuple[str, ...]
    by_name: dict[str, int]


def kill_everywhere(
    flow: Flow, folder: Path, sample: int | None, progress: Callable[[int, int], None]
) -> FlowResult:
    """Kills at every point of the flow, or at `sample` of them spread evenly. Raises `RuntimeError` where it is wrong unharmed."""
    stages, points = _rehearse(flow, folder)
    chosen: Sequence[Point] = points
    if sample is not None and sample < len(points):
        chosen = [points[index * len(points) // sample] for index in range(sample)]
    lost: list[str] = []
    duplicated: list[str] = []
    for done, point in enumerate(chosen, start=1):
        world = folder / "run"
        shutil.copytree(stages[point.phase], world)
        _in_child(partial(flow.work, world, point.phase, Tripwire(point.number)), killed=True)
        _in_child(partial(flow.work, world, point.phase, Tripwire()))
        wrong = flow.inspect(world, point.phase)
        where = f"{point.phase} {point.number} ({point.name})"
        lost += [f"{what}, killed at {where}" for what in wrong[0]]
        duplicated += [f"{what}, killed at {where}" for what in wrong[1]]
        shutil.rmtree(world)
        progress(done, len(chosen))
    names = Counter(point.name for point in chosen)
    return FlowResult(
        flow.name, len(points), len(chosen), tuple(lost), tuple(duplicated), dict(sorted(names.items()))
    )


def _rehearse(flow: Flow, folder: Path) -> tuple[dict[str, Path], list[Point]]:
    """The world before each phase, and every point that the phases pass."""
    built, world = folder / "built", folder / "rehearsal"
    built.mkdir()
    flow.build(built)
    shutil.copytree(built, world)
    stages: dict[str, Path] = {}
    points: list[Point] = []
    for place, phase in enumerate(flow.phases):
        if place and not flow.chained:
            shutil.rmtree(world)
            shutil.copytree(built, world)
        flow.happen(world, phase)
        stages[phase] = folder / f"stage-{place}"
        shutil.copytree(world, stages[phase])
        log = folder / f"points-{place}.json"

        def rehearse(phase: str = phase, log: Path = log) -> None:
            wire = Tripwire()
            flow.work(world, phase, wire)
            log.write_text(json.dumps(wire.passed))

        _in_child(rehearse)
        wrong = flow.inspect(world, phase)
        if any(wrong):
            raise RuntimeError(f"the flow is wrong without any fault, in phase {phase}: {wrong}")
        passed = json.loads(log.read_text())
        points += [Point(phase, number, name) for number, name in enumerate(passed, start=1)]
    return stages, points


def _caller() -> str:
    """The function of ours that opened a transaction."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"] in (__name__, "contextlib"):
        frame = frame.f_back
    return f"{frame.f_globals['__name__'].removeprefix('service.')}.{frame.f_code.co_name}"


def _in_child(body: Callable[[], None], *, killed: bool = False) -> None:
    """Runs `body` in a forked process. Raises `RuntimeError` where it ends otherwise than expected."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        try:
            body()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a fork must never return into its parent's code
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    by_signal = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if by_signal != killed or (not killed and status != 0):
        raise RuntimeError(f"a process ended with status {status}, killed as planned: {by_signal}")
