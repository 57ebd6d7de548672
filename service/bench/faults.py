"""What survives a kill: the flow from webhook to posted round, killed once at each of its points.

The points are found by running the flow once and noting every database commit and every call to the forge, each
before and after. Then the flow runs again for every point, in a process that kills itself there (SIGKILL), and once
more to the end, as the next worker would. Nothing may be lost, and nothing may stand twice.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from service.engines import Opened
from service.forge.base import PullState
from service.forge.local import LocalForge
from service.forge.local_events import comment_event, pull_event
from service.store import deliveries
from service.store.database import Database
from service.store.deliveries import NewDelivery
from service.store.migrations import upgrade
from service.store.schema import deliveries as table_of_deliveries
from service.store.schema import outbox, work
from service.worker.keeper import tend
from service.worker.lanes import work_off
from service.worker.station import LANES, Station

REPO = "local/quire"
PHASES = ("opened", "pushed", "commanded")
_START = datetime(2026, 9, 1, 12, tzinfo=UTC)
_PATIENCE = 4


@dataclass(slots=True)
class Tripwire:
    """Counts points as they are passed, and kills the process at number `kill_at` (from 1; 0 for never)."""

    kill_at: int = 0
    passed: list[str] = field(default_factory=list)

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
        place = _caller()
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


@dataclass(frozen=True, slots=True)
class Point:
    """One place to be killed at: the `number`-th point that a phase passes."""

    phase: str
    number: int
    name: str


@dataclass(frozen=True, slots=True)
class FaultsResult:
    """`lost` and `duplicated` name what was wrong and at which point; both are empty in a sound service."""

    points: int
    runs: int
    lost: tuple[str, ...]
    duplicated: tuple[str, ...]
    by_name: dict[str, int]


def run(
    sample: int | None = None, progress: Callable[[int, int], None] = lambda done, total: None
) -> FaultsResult:
    """Kills at every point, or at `sample` of them spread evenly."""
    with tempfile.TemporaryDirectory(prefix="whitesmoke-faults-") as name:
        folder = Path(name)
        stages, points = _rehearse(folder)
        chosen: Sequence[Point] = points
        if sample is not None and sample < len(points):
            chosen = [points[index * len(points) // sample] for index in range(sample)]
        lost: list[str] = []
        duplicated: list[str] = []
        for done, point in enumerate(chosen, start=1):
            world = folder / "run"
            shutil.copytree(stages[point.phase], world)
            _in_child(partial(_work, world, Tripwire(point.number)), killed=True)
            _in_child(partial(_work, world, Tripwire()))
            wrong = _inspect(world, point.phase)
            where = f"{point.phase} {point.number} ({point.name})"
            lost += [f"{what}, killed at {where}" for what in wrong[0]]
            duplicated += [f"{what}, killed at {where}" for what in wrong[1]]
            shutil.rmtree(world)
            progress(done, len(chosen))
        names = Counter(point.name for point in chosen)
        return FaultsResult(
            len(points), len(chosen), tuple(lost), tuple(duplicated), dict(sorted(names.items()))
        )


def render(result: FaultsResult) -> str:
    """The table for people."""
    width = max((len(name) for name in result.by_name), default=0)
    return "\n".join(
        [
            *(f"{name:<{width}}  {count:>4} runs" for name, count in result.by_name.items()),
            f"points {result.points}, runs {result.runs}, lost {len(result.lost)}, duplicated {len(result.duplicated)}",
            *(f"LOST {one}" for one in result.lost),
            *(f"TWICE {one}" for one in result.duplicated),
        ]
    )


def render_json(result: FaultsResult) -> str:
    figures = asdict(result) | {"lost": len(result.lost), "duplicated": len(result.duplicated)}
    return json.dumps(figures | {"wrong": [*result.lost, *result.duplicated]}, indent=2)


def _rehearse(folder: Path) -> tuple[dict[str, Path], list[Point]]:
    """The world before each phase, and every point that the phases pass."""
    from service.demo.sample import build

    world = folder / "rehearsal"
    world.mkdir()
    build(world / "quire")
    database = Database(_url(world))
    upgrade(database)
    database.close()
    stages: dict[str, Path] = {}
    points: list[Point] = []
    for phase in PHASES:
        _happen(world, phase)
        stages[phase] = folder / phase
        shutil.copytree(world, stages[phase])
        log = folder / f"{phase}.json"

        def rehearse(log: Path = log) -> None:
            wire = Tripwire()
            _work(world, wire)
            log.write_text(json.dumps(wire.passed))

        _in_child(rehearse)
        wrong = _inspect(world, phase)
        if any(wrong):
            raise RuntimeError(f"the flow is wrong without any fault, in phase {phase}: {wrong}")
        passed = json.loads(log.read_text())
        points += [Point(phase, number, name) for number, name in enumerate(passed, start=1)]
    return stages, points


def _happen(world: Path, phase: str) -> None:
    """What people do, and the delivery that tells of it."""
    from service.demo.sample import push_fix

    database = Database(_url(world))
    forge = _forge(world, database)
    ada, owner = forge.as_user("ada"), forge.as_user("owner")
    if phase == "opened":
        state = ada.open_pull(REPO, "pull", "main")
        _deliver(database, phase, "pull_request", pull_event("opened", state, state.author))
    elif phase == "pushed":
        push_fix(world / "quire")
        state = forge.pull(REPO, 1)
        _deliver(database, phase, "pull_request", pull_event("synchronize", state, state.author))
    else:
        comment_id = owner.create_comment(REPO, 1, "/dismiss F5 it is cheap\n/explain F5")
        comment = next(one for one in forge.comments(REPO, 1) if one.id == comment_id)
        _deliver(database, phase, "issue_comment", comment_event(forge.pull(REPO, 1), comment))
    database.close()


def _work(world: Path, wire: Tripwire) -> None:
    """A worker's life: an hour after the last one's, so that its leases have run out, until nothing is due."""
    starts = world / "starts"
    started = len(starts.read_text()) if starts.exists() else 0
    starts.write_text("." * (started + 1))
    minutes = 0

    def clock() -> datetime:
        return _START + timedelta(hours=started + 1, minutes=minutes)

    database = WiredDatabase(_url(world), wire)

    from reviewer.engines.recording import Replay
    from service.demo.play import RECORDING

    @asynccontextmanager
    async def opener(_: object) -> AsyncIterator[Opened]:
        yield Opened(Replay(RECORDING), clock())

    station = Station(
        database=database,
        forge=WiredForge(_forge(world, database), wire),
        forge_name="local",
        open_engine=opener,
        # Detectors have no effects outside, and would take most of the time.
        load_items=lambda policy, read: [],
        owner=f"worker-{started}",
        clock=clock,
    )
    for _ in range(_PATIENCE):
        tend(station)
        for lane in LANES:
            work_off(station, lane)
        minutes += 16
    database.close()


def _inspect(world: Path, phase: str) -> tuple[list[str], list[str]]:
    """What is missing, and what stands twice, after a phase."""
    database = Database(_url(world))
    forge = _forge(world, database)
    me = forge.me(REPO).login
    state: PullState = forge.pull(REPO, 1)
    said = Counter(
        (entry.kind, entry.body.split("\n", 1)[0])
        for entry in forge.conversation(REPO, 1)
        if entry.author.login == me
    )
    kinds = Counter(kind for kind, _ in said.elements())
    rounds = 1 if phase == "opened" else 2
    lost: list[str] = []
    with database.read() as connection:
        waiting = connection.execute(
            sa.select(sa.func.count())
            .select_from(table_of_deliveries)
            .where(table_of_deliveries.c.state != "done")
        ).scalar_one()
        undone = [
            f"{table.name} {row.kind} is {row.state}"
            for table in (work, outbox)
            for row in connection.execute(sa.select(table.c.kind, table.c.state))
            if row.state not in ("done", "superseded")
        ]
    lost += [f"{waiting} deliveries are not done"] * bool(waiting) + undone
    lost += ["the comment is missing"] * (
        not any("round " in first for kind, first in said if kind == "comment")
    )
    lost += ["a review is missing"] * (kinds["review"] < rounds)
    lost += ["no inline comments"] * (not kinds["inline"])
    lost += ["the answer is missing"] * (phase == "commanded" and kinds["comment"] < 2)
    checks = [one for one in forge.checks(REPO, state.head_sha) if one.name == "whitesmoke/review"]
    lost += ["the check is missing"] * (not checks) + ["the check is unfinished"] * any(
        one.status != "completed" for one in checks
    )
    duplicated = [
        f"{kind} {first} stands {count} times" for (kind, first), count in said.items() if count > 1
    ]
    duplicated += ["a review too many"] * (kinds["review"] > rounds)
    duplicated += ["a comment too many"] * (kinds["comment"] > (2 if phase == "commanded" else 1))
    duplicated += ["a check too many"] * (len(checks) > 1)
    database.close()
    return lost, duplicated


def _deliver(database: Database, guid: str, event: str, payload: dict[str, Any]) -> None:
    row = NewDelivery(
        guid=guid, event=event, headers={}, body=json.dumps(payload).encode(), received_at=_START
    )
    with database.write() as connection:
        deliveries.add_deliveries(connection, [row])


def _forge(world: Path, database: Database) -> LocalForge:
    return LocalForge(database, {REPO: world / "quire"}, owner="owner", clock=lambda: _START)


def _url(world: Path) -> str:
    return f"sqlite:///{world / 'service.db'}"


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
        raise RuntimeError(f"a worker ended with status {status}, killed as planned: {by_signal}")
