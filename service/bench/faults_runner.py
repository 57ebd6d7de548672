"""A runner of the faults' flow: it speaks to the store as the API does, runs nothing, and remembers in a file what it has."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Literal, TypeVar

from ci_dispatch.model import Inventory, JobReport, JobSpec, Sample, StepRun
from ci_dispatch.protocol import Beat, Grant, Registration
from reviewer.model import Frozen
from service.bench.faults_wire import Tripwire
from service.runner_api.desk import Desk
from service.runner_api.files import CiFiles
from service.runner_api.limits import Limits
from service.store import runners
from service.store.database import Database
from service.store.errors import StoreError
from service.store.fleet import assign_due
from service.store.types import Clock

KPIS = ("copy us", "norm us")
_INVENTORY = Inventory(arch="cpu", sandbox=True)
_ROUNDS = 2

T = TypeVar("T")


class Memory(Frozen):
    """What a runner's process knows. `begun` is whether the job's first step has."""

    name: str
    token: str
    secret: str = ""
    grant: Grant | None = None
    begun: bool = False

    def save(self, path: Path) -> None:
        fresh = path.with_suffix(".new")
        fresh.write_text(self.model_dump_json())
        fresh.rename(path)


class ScriptedRunner:
    """One call after the other, each a pair of points. `path` is its memory; `executed` gets a line for each job that it begins."""

    def __init__(self, desk: Desk, wire: Tripwire, path: Path, executed: Path) -> None:
        self._desk = desk
        self._wire = wire
        self._path = path
        self._executed = executed
        self.memory = Memory.model_validate_json(path.read_text())

    @classmethod
    def arrive(cls, database: Database, path: Path, name: str, clock: Clock) -> None:
        """A host that has a registration token and nothing else."""
        with database.write() as connection:
            token = runners.create_token(connection, clock(), timedelta(days=1))
        Memory(name=name, token=token).save(path)

    @property
    def works(self) -> bool:
        return self.memory.grant is not None

    def step(self, begun: Callable[[], None]) -> None:
        """The next thing that it does; `begun` happens while a job's first step runs."""
        desk, memory = self._desk, self.memory
        if not memory.secret:
            asked = Registration(name=memory.name, inventory=_INVENTORY, nonce="n" * 32)
            registered = self._call("register", lambda: desk.register(memory.token, asked))
            self._remember(secret=registered.secret)
        elif memory.grant is None:
            self._claim()
        elif not memory.begun:
            self._begin(memory.grant)
            begun()
        else:
            self._end(memory.grant)

    def _claim(self) -> None:
        desk = self._desk
        me = desk.who(self.memory.secret)
        self._call("beat", lambda: desk.beat(me, Beat(inventory=_INVENTORY)))
        grant = self._call("claim", lambda: desk.listen(me, 30))
        if grant is None:
            assign_due(desk.database, desk.clock)
            grant = self._call("fetch", lambda: desk.fetch(me.id))
        if grant is not None:
            self._remember(grant=grant)

    def _begin(self, grant: Grant) -> None:
        desk = self._desk
        first = grant.job.spec.steps[0].name
        try:
            desk.source(desk.use(grant.lease_id, grant.token), "head").close()
            self._call("begin", lambda: desk.beat_lease(grant.lease_id, grant.token, first))
        except StoreError:
            self._remember(grant=None)
            return
        with self._executed.open("a") as file:
            file.write(f"{grant.job.key}\n")
        self._remember(begun=True)

    def _end(self, grant: Grant) -> None:
        desk = self._desk
        first = grant.job.spec.steps[0].name
        with suppress(StoreError):
            answer = self._call("lease beat", lambda: desk.beat_lease(grant.lease_id, grant.token, first))
            lease = desk.find(grant.lease_id, grant.token)
            self._call("log", lambda: desk.append_log(lease, grant.token, 0, b"it ran\n"))
            said = JobReport(cancelled=True) if answer.cancel else passing(grant.job.spec)
            self._report(grant, said)
            # As one whose answer was dropped on the way.
            self._report(grant, said)
        self._remember(grant=None, begun=False)

    def _report(self, grant: Grant, said: JobReport) -> None:
        body = said.model_dump_json().encode()
        self._call("report", lambda: self._desk.report(grant.lease_id, grant.token, body))

    def _remember(self, **changed: object) -> None:
        self.memory = self.memory.model_copy(update=changed)
        self.memory.save(self._path)

    def _call(self, name: str, call: Callable[[], T]) -> T:
        self._wire.reach(f"before the runner's {name}")
        self._wire.within = f"the runner's {name}"
        try:
            return call()
        finally:
            self._wire.within = ""
            self._wire.reach(f"after the runner's {name}")


def haunt(desk: Desk, path: Path) -> None:
    """A runner that was thought dead says that its job failed. Its lease must be lost, or have had its report."""
    grant = Memory.model_validate_json(path.read_text()).grant
    if grant is None:
        return
    failed = StepRun(name=grant.job.spec.steps[0].name, ending="exited", status=1, seconds=1)
    said = JobReport(runs=(failed,), samples=passing(grant.job.spec).samples)
    with suppress(StoreError):
        desk.report(grant.lease_id, grant.token, said.model_dump_json().encode())


def passing(spec: JobSpec) -> JobReport:
    """What a runner says of a job whose steps all ended well."""
    sides: tuple[Literal["head", "base", "base_again"], ...] = ("head", "base", "base_again")
    runs = [StepRun(name=step.name, ending="exited", status=0, seconds=1) for step in spec.steps]
    if spec.perf is None:
        return JobReport(runs=tuple(runs))
    places = [(side, turn) for turn in range(_ROUNDS) for side in sides]
    bench = [
        StepRun(name="bench", side=side, round=turn, ending="exited", status=0, seconds=1)
        for side, turn in places
    ]
    samples = [
        Sample(name=name, side=side, round=turn, value=10.0, unit="us")
        for name in KPIS
        for side, turn in places
    ]
    return JobReport(runs=tuple(bench), samples=tuple(samples))


def desk_of(database: Database, data: Path, clock: Clock) -> Desk:
    """The API's calls, with their writer's thread at work."""
    desk = Desk(database, CiFiles(data), lambda: None, Limits(), clock)
    desk.scribe.start()
    return desk


def executed_twice(executed: Path) -> list[str]:
    """Jobs that runners have begun more than once."""
    lines = executed.read_text().splitlines() if executed.exists() else []
    return sorted({json.dumps(line) for line in lines if lines.count(line) > 1})
