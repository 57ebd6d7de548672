"""The flow from webhook to posted round: a pull request is opened, pushed, and spoken to."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from service.bench.faults_wire import Tripwire, WiredDatabase, WiredForge, Wrong
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
_START = datetime(2026, 9, 1, 12, tzinfo=UTC)
_PATIENCE = 4


class ReviewFlow:
    """Nothing may be lost, and nothing may stand twice."""

    name = "review"
    phases: Sequence[str] = ("opened", "pushed", "commanded")
    chained = True

    def build(self, world: Path) -> None:
        from service.demo.sample import build

        build(world / "quire")
        database = Database(_url(world))
        upgrade(database)
        database.close()

    def happen(self, world: Path, phase: str) -> None:
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

    def work(self, world: Path, phase: str, wire: Tripwire) -> None:
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

    def inspect(self, world: Path, phase: str) -> Wrong:
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
