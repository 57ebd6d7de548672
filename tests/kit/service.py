"""A whole service in one process: a station over SQLite and the local forge, worked off step by step."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from reviewer.checklist import load_items
from reviewer.engines.base import Engine
from reviewer.policy import ReviewPolicy
from service.engines import Opened
from service.forge.local import Entry, LocalForge
from service.forge.local_events import comment_event, pull_event
from service.store import deliveries
from service.store.database import Database
from service.store.deliveries import NewDelivery
from service.store.migrations import upgrade
from service.worker.keeper import tend
from service.worker.lanes import work_off
from service.worker.station import LANES, Station
from tests.kit.checkouts import Repo

NAME = "local/repo"


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = datetime(2026, 9, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Service:
    """`deliver` is GitHub's part, `settle` the workers'."""

    def __init__(self, folder: Path, repo: Repo, engine: Callable[[], Engine | None]) -> None:
        self.clock = Clock()
        self.repo = repo
        self.database = Database(f"sqlite:///{folder / 'service.db'}")
        upgrade(self.database)
        self.forge = LocalForge(self.database, {NAME: repo.folder}, owner="owner", clock=self.clock)
        self._guid = 0

        @asynccontextmanager
        async def opener(policy: ReviewPolicy) -> AsyncIterator[Opened]:
            yield Opened(engine(), self.clock())

        self.station = Station(
            database=self.database,
            forge=self.forge,
            forge_name="local",
            open_engine=opener,
            load_items=lambda policy, read: load_items(policy.checklists or (), read),
            owner="test",
            clock=self.clock,
        )

    def deliver(self, event: str, payload: dict[str, Any], guid: str = "") -> None:
        self._guid += 1
        row = NewDelivery(
            guid=guid or f"guid-{self._guid}",
            event=event,
            headers={},
            body=json.dumps(payload).encode(),
            received_at=self.clock(),
        )
        with self.database.write() as connection:
            deliveries.add_deliveries(connection, [row])

    def open(self, head: str = "pull", author: str = "ada") -> int:
        state = self.forge.as_user(author).open_pull(NAME, head, "main", title="Batch the writes")
        self.deliver("pull_request", pull_event("opened", state, state.author))
        return state.number

    def push(self, number: int) -> None:
        state = self.forge.pull(NAME, number)
        self.deliver("pull_request", pull_event("synchronize", state, state.author))

    def say(self, number: int, login: str, body: str) -> int:
        comment_id = self.forge.as_user(login).create_comment(NAME, number, body)
        comment = next(one for one in self.forge.comments(NAME, number) if one.id == comment_id)
        self.deliver("issue_comment", comment_event(self.forge.pull(NAME, number), comment))
        return comment_id

    def settle(self, wait: float = 3600) -> None:
        """Lets the debounce pass and works off everything."""
        for _ in range(10):
            self.clock.forward(wait / 10)
            tend(self.station)
            for lane in LANES:
                work_off(self.station, lane)
        work_off(self.station, LANES[0])

    def said(self, number: int, kind: str = "comment") -> list[Entry]:
        """What the bot said, of one kind."""
        me = self.forge.me(NAME).login
        return [
            one
            for one in self.forge.conversation(NAME, number)
            if one.kind == kind and one.author.login == me
        ]

    def delivery_states(self) -> list[tuple[str, str]]:
        import sqlalchemy as sa

        from service.store.schema import deliveries as table

        with self.database.read() as connection:
            return [tuple(row) for row in connection.execute(sa.select(table.c.state, table.c.error))]
