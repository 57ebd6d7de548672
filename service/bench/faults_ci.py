"""The flow of CI: a comment, the gate, a run, jobs leased, reported and judged, checks and one comment.

Web process, worker and runner are one process here, so each point kills them together. In the phase `runner dies` the
next process is a day's hour later and has another runner, and the first one's word comes when its lease is lost; in the
others the runner survives the service, and goes on with what it has.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from service.bench.faults_runner import KPIS, ScriptedRunner, desk_of, executed_twice, haunt
from service.bench.faults_wire import Tripwire, WiredDatabase, WiredForge, Wrong
from service.engines import Opened
from service.forge.local import LocalForge
from service.forge.local_events import comment_event, pull_event
from service.store import deliveries
from service.store.ci_reaper import reap
from service.store.ci_tables import jobs, kpis, leases, runs
from service.store.database import Database
from service.store.deliveries import NewDelivery
from service.store.migrations import upgrade
from service.store.schema import deliveries as table_of_deliveries
from service.store.schema import outbox, work
from service.worker.keeper import tend
from service.worker.lanes import work_off
from service.worker.station import CI_LANE, QUICK_LANE, REVIEW, Station

REPO = "local/kernels"
DIES, LIVES, PUSHED = "runner dies", "runner lives on", "pushed over"
_START = datetime(2026, 9, 1, 12, tzinfo=UTC)
_MOST_TURNS, _LEAST_TURNS = 60, 3
_STEP, _PAUSE = timedelta(seconds=6), timedelta(minutes=16)
_POLICY = """\
ci:
  mode: runner
  jobs:
    - name: smoke
      paths: ["*.py"]
      steps: [{name: smoke, argv: ["true"], timeout: 60}]
    - name: bench
      paths: ["*.py"]
      steps: [{name: bench, argv: ["true"], timeout: 60}]
      perf: {rounds: 2, rules: [{names: "*", threshold: null}]}
    - name: docs
      paths: ["docs/**"]
      steps: [{name: build, argv: ["true"], timeout: 60}]
"""
_RUN = ("smoke", "bench")


class CiFlow:
    """No job runs to effect twice, none is lost, no check stays open."""

    name = "ci"
    phases: Sequence[str] = (DIES, LIVES, PUSHED)
    chained = False

    def build(self, world: Path) -> None:
        repo = world / "repo"
        repo.mkdir()
        _git(repo, "init", "--quiet", "--initial-branch=main")
        for branch, text in (("main", "1\n"), ("pull", "2\n"), ("next", "3\n")):
            if branch != "main":
                _git(repo, "switch", "--quiet", "--create", branch)
            (repo / "model.py").write_text(text)
            (repo / ".whitesmoke.yml").write_text(_POLICY)
            _git(repo, "add", "--all")
            _git(repo, "commit", "--quiet", "--message", branch)
        _git(repo, "switch", "--quiet", "--detach", "main")
        _git(repo, "branch", "first", "pull")
        database = Database(_url(world))
        upgrade(database)
        database.close()

    def happen(self, world: Path, phase: str) -> None:
        database = Database(_url(world))
        state = _forge(world, database, _START).as_user("ada").open_pull(REPO, "pull", "main")
        _deliver(database, "opened", "pull_request", pull_event("opened", state, state.author), _START)
        later = _START + timedelta(minutes=5)
        forge = _forge(world, database, later)
        comment_id = forge.as_user("owner").create_comment(REPO, 1, "lgtm ready to ci")
        comment = next(one for one in forge.comments(REPO, 1) if one.id == comment_id)
        _deliver(database, "said", "issue_comment", comment_event(forge.pull(REPO, 1), comment), later)
        database.close()

    def work(self, world: Path, phase: str, wire: Tripwire) -> None:
        life = _Life(world, phase, wire)
        life.live()

    def inspect(self, world: Path, phase: str) -> Wrong:
        database = Database(_url(world))
        try:
            return _inspect(world, phase, database)
        finally:
            database.close()


class _Life:
    """One process's, until nothing is left to do."""

    def __init__(self, world: Path, phase: str, wire: Tripwire) -> None:
        starts = world / "starts"
        number = len(starts.read_text()) if starts.exists() else 0
        starts.write_text("." * (number + 1))
        self._world, self._phase = world, phase
        again = timedelta(hours=number) if phase == DIES else timedelta(0)
        self._time = world / "time"
        told = datetime.fromisoformat(self._time.read_text()) if self._time.exists() else _START
        self._now = max(told, _START + timedelta(minutes=10)) + again + _STEP
        self._plain = Database(_url(world))
        self._database = WiredDatabase(_url(world), wire)
        self._desk = desk_of(self._database, world, self._clock)
        memory = world / "runner.json"
        self._ghost = world / "ghost.json"
        if phase == DIES and memory.exists():
            memory.rename(self._ghost)
        if not memory.exists():
            ScriptedRunner.arrive(self._plain, memory, f"host-{number}", self._clock)
        self._runner = ScriptedRunner(self._desk, wire, memory, world / "executed")
        self._station = Station(
            database=self._database,
            forge=WiredForge(_forge(world, self._database, _START), wire),
            forge_name="local",
            open_engine=_no_engine,
            load_items=lambda policy, read: [],
            owner=f"worker-{number}",
            clock=self._clock,
            data=world,
        )

    def _clock(self) -> datetime:
        return self._now

    def live(self) -> None:
        for turn in range(_MOST_TURNS):
            with self._database.write() as connection:
                reap(connection, self._now)
            if turn == 0 and self._ghost.exists():
                haunt(self._desk, self._ghost)
            tend(self._station)
            for lane in (QUICK_LANE, CI_LANE):
                work_off(self._station, lane)
            self._runner.step(self._push if self._phase == PUSHED else lambda: None)
            # A living runner beats every few seconds; what a dead worker held comes back after minutes.
            self._now += _STEP if self._runner.works or turn < _LEAST_TURNS else _PAUSE
            self._time.write_text(self._now.isoformat())
            if turn >= _LEAST_TURNS and not self._runner.works and not _undone(self._plain):
                break
        self._desk.scribe.close()
        self._database.close()
        self._plain.close()

    def _push(self) -> None:
        """The author's, while the first job runs; done again after a kill, it is the same push."""
        _git(self._world / "repo", "update-ref", "refs/heads/pull", "refs/heads/next")
        forge = _forge(self._world, self._plain, self._now)
        state = forge.pull(REPO, 1)
        _deliver(
            self._plain, "pushed", "pull_request", pull_event("synchronize", state, state.author), self._now
        )


def _undone(database: Database) -> list[str]:
    """What still waits for somebody."""
    found: list[str] = []
    with database.read() as connection:
        for table in (work, outbox):
            rows = connection.execute(sa.select(table.c.kind, table.c.state).where(table.c.kind != REVIEW))
            found += [
                f"{table.name} {kind} is {state}"
                for kind, state in rows
                if state not in ("done", "superseded")
            ]
        for table, ended in (
            (table_of_deliveries, ("done",)),
            (runs, ("finished", "superseded")),
            (jobs, ("finished",)),
            (leases, ("reported", "returned", "lost", "untaken")),
        ):
            left = connection.execute(sa.select(table.c.state).where(table.c.state.not_in(ended)))
            found += [f"a row of {table.name} is {state}" for state in left.scalars()]
    return found


def _inspect(world: Path, phase: str, database: Database) -> Wrong:
    forge = _forge(world, database, _START)
    head = _git(world / "repo", "rev-parse", "first")
    me = forge.me(REPO).login
    bodies = [
        one.body for one in forge.conversation(REPO, 1) if one.author.login == me and one.kind == "comment"
    ]
    comments = [body for body in bodies if body.startswith("<!-- whitesmoke:ci ")]
    checks = [one for one in forge.checks(REPO, head) if one.name.startswith("whitesmoke/ci/")]
    outcomes: dict[str, list[str]] = defaultdict(list)
    with database.read() as connection:
        for job in connection.execute(sa.select(jobs.c.name, jobs.c.outcome).order_by(jobs.c.id)):
            outcomes[job.name].append(job.outcome)
        count_of_runs = connection.execute(sa.select(sa.func.count()).select_from(runs)).scalar_one()
        numbers = Counter(connection.execute(sa.select(kpis.c.name)).scalars())
    lost = _undone(database)
    lost += [f"check {one.name} is {one.status}" for one in checks if one.status != "completed"]
    lost += [f"check {name} is missing" for name in {*_RUN, "docs"} - {_short(one.name) for one in checks}]
    lost += ["there is no run"] * (not count_of_runs) + ["the comment is missing"] * (not comments)
    twice = Counter(one.name for one in checks)
    duplicated = [f"{count} checks {name}" for name, count in twice.items() if count > 1]
    duplicated += ["a run too many"] * (count_of_runs > 1)
    duplicated += [f"{len(bodies)} comments stand"] * (len(bodies) > 1)
    duplicated += [f"{count} rows of KPI {name}" for name, count in numbers.items() if count > 1]
    duplicated += [f"{key} was begun twice" for key in executed_twice(world / "executed")]
    for name in _RUN:
        wrong = _ended(outcomes[name], phase)
        lost += [f"{name}: {wrong}"] * bool(wrong)
        duplicated += [f"{name} passed twice"] * (outcomes[name].count("passed") > 1)
    if phase != PUSHED:
        lost += [f"KPI {name} is missing" for name in set(KPIS) - set(numbers)]
        lost += [f"check {one.name} is {one.conclusion}" for one in checks if one.conclusion != "success"]
        lost += ["the comment is not up to date"] * any(body.count("**passed**") < 2 for body in comments)
    return lost, duplicated


def _ended(outcomes: list[str], phase: str) -> str:
    """What is wrong with how the attempts at a job ended; "" where nothing is."""
    if phase == PUSHED:
        right = set(outcomes) <= {"superseded", "passed"} and len(outcomes) == 1
    elif phase == LIVES:
        right = outcomes == ["passed"]
    else:
        right = outcomes in (["passed"], ["infra", "passed"])
    return "" if right else f"its attempts ended as {outcomes}"


def _short(check: str) -> str:
    return check.rpartition("/")[2]


@asynccontextmanager
async def _no_engine(_: object) -> AsyncIterator[Opened]:
    yield Opened(None, _START)


def _deliver(database: Database, guid: str, event: str, payload: dict[str, Any], at: datetime) -> None:
    row = NewDelivery(guid=guid, event=event, headers={}, body=json.dumps(payload).encode(), received_at=at)
    with database.write() as connection:
        deliveries.add_deliveries(connection, [row])


def _forge(world: Path, database: Database, at: datetime) -> LocalForge:
    return LocalForge(database, {REPO: world / "repo"}, owner="owner", clock=lambda: at)


def _url(world: Path) -> str:
    return f"sqlite:///{world / 'service.db'}"


def _git(folder: Path, *arguments: str) -> str:
    """Deaf to the user's settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for role in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{role}_NAME": "Ada", f"GIT_{role}_EMAIL": "ada@example.org"}
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()
