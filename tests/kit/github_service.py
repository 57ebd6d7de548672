"""A whole service on the GitHub stand-in: its webhooks go over HTTP into the real intake, and a station in this
process, whose clock a test moves, works them off against the stand-in's API."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from reviewer.checklist import load_items
from reviewer.policy import ReviewPolicy
from service.engines import Opened
from service.events import EVENTS
from service.forge.github.forge import GitHubForge
from service.intake.app import create_app
from service.intake.server import Server
from service.intake.settings import IntakeSettings
from service.intake.sink import sink_into
from service.publisher.effects import CHECK_NAME
from service.store.database import Database
from service.store.migrations import upgrade
from service.store.schema import deliveries, outbox, work
from service.worker.keeper import tend
from service.worker.lanes import work_off
from service.worker.reconciler import reconcile
from service.worker.station import LANES, QUICK_LANE, Station
from tests.kit.engines import ScriptedEngine
from tests.kit.rounds import HEAD, PATH, answers, finding
from tests.service.forge_github.connect import Connect
from tests.standin.github import GitHub, Pull, Repo
from tests.standin.github.hub import PERMISSIONS
from tests.standin.github.state import App, CheckRun, CommitStatus, IssueComment, Review, ReviewComment

SECRET = "what the stand-in signs with"
SETTLED = ("done", "ignored", "superseded")


class Clock:
    """Real time, which a test moves on."""

    def __init__(self) -> None:
        self._ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    def forward(self, seconds: float) -> None:
        self._ahead += timedelta(seconds=seconds)


@dataclass
class Model:
    """What every rep says: `findings` when it discovers, `recheck` of a finding that none repeated."""

    findings: Sequence[Mapping[str, Any]] = field(default_factory=lambda: [finding()])
    recheck: str = "still_open"
    engines: list[ScriptedEngine] = field(default_factory=list)

    def open(self) -> ScriptedEngine:
        answer = {"answer": self.recheck, "evidence": "as it stands"}
        self.engines.append(answers(lambda rep: {"findings": list(self.findings)}, recheck=answer))
        return self.engines[-1]


class GitHubService:
    """As an App, or, without one, as the user whitesmoke-user with a token. `intake` is its address."""

    def __init__(self, folder: Path, hub: GitHub, repo: Repo, app: App | None, url: str = "") -> None:
        self.hub = hub
        self.repo = repo
        self.clock = Clock()
        self.model = Model()
        self.login = app.bot.login if app is not None else "whitesmoke-user"
        self.database = Database(url or f"sqlite:///{folder / 'service.db'}")
        upgrade(self.database)
        connect = Connect(folder)
        if app is None:
            repo.grant(self.login, "write")
        self.forge: GitHubForge = connect.app(hub, app) if app is not None else connect.token(hub, self.login)

        @asynccontextmanager
        async def opener(policy: ReviewPolicy) -> AsyncIterator[Opened]:
            yield Opened(self.model.open(), self.clock())

        self.station = Station(
            database=self.database,
            forge=self.forge,
            forge_name="github",
            open_engine=opener,
            load_items=lambda policy, read: load_items(policy.checklists or (), read),
            owner="test",
            ring=self._ring,
            web_url=hub.html_url,
            app_id=app.id if app is not None else None,
            data=folder,
            clock=self.clock,
        )
        intake = IntakeSettings(secrets=(SECRET.encode(),), events=EVENTS)
        self.intake = create_app(intake, sink_into(self.database), {}, lambda ids: None)

    def _ring(self, lane: str) -> None:
        """The quick lane has a worker of its own, which does not wait for a round to end."""
        if lane == QUICK_LANE:
            work_off(self.station, lane)

    def open(self, **options: Any) -> Pull:
        """The pull request of `tests.kit.rounds`, unless told otherwise."""
        return self.repo.open_pull(**{"files": {PATH: HEAD[PATH]}, "title": "Batch the writes", **options})

    def settle(self, wait: float = 3600) -> None:
        """Lets the debounce pass and works off everything, with what GitHub tells of it in turn."""
        for _ in range(10):
            self.hub.hooks.settle()
            self.clock.forward(wait / 10)
            tend(self.station)
            for lane in LANES:
                work_off(self.station, lane)
        self.hub.hooks.settle()
        self._ring(QUICK_LANE)

    def reconcile(self) -> None:
        """As the keeper does; everything that happened counts as missed."""
        reconcile(self.station, [self.repo.name], self.clock() - timedelta(days=30))
        self.settle()

    # What the service left on a pull request

    def comments(self, pull: Pull) -> list[IssueComment]:
        return [one for one in pull.comments if one.user.login == self.login]

    def reviews(self, pull: Pull) -> list[Review]:
        """Comments that were posted by themselves have a review too, an empty one."""
        return [one for one in pull.reviews if one.user.login == self.login and one.body]

    def inline(self, pull: Pull) -> list[ReviewComment]:
        return [one for one in pull.inline_comments if one.user.login == self.login]

    def checks(self, pull: Pull) -> list[CheckRun]:
        return [one for one in pull.checks if one.name == CHECK_NAME]

    def statuses(self, pull: Pull) -> list[CommitStatus]:
        return [one for one in pull.statuses if one.context == CHECK_NAME]

    def look(self, pull: Pull, *older: str) -> None:
        """Counts everything on the pull request, and on older heads of it, as seen."""
        for sha in older:
            self.repo.checks(sha)
            self.repo.statuses(sha)
        _ = pull.comments, pull.reviews, pull.inline_comments, pull.checks, pull.statuses

    def unsettled(self) -> list[str]:
        """Rows of any queue that did not end well, with their reason."""
        with self.database.read() as connection:
            return [
                f"{table.name} {row.id} is {row.state}: {row.error}"
                for table in (deliveries, work, outbox)
                for row in connection.execute(table.select())
                if row.state not in SETTLED
            ]


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """Serves the intake in a thread, on loopback; gives its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(app, "127.0.0.1", 0)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started and thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.started, "the intake did not start"
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


@contextmanager
def github_service(
    folder: Path, hub: GitHub, repo: Repo, *, token: bool = False, url: str = "", merging: bool = False
) -> Iterator[GitHubService]:
    """A service that gets the webhooks of `repo`: of an App installed there, or with `token` of the repository.

    With `merging` the App may write contents, as merging needs.
    """
    contents = {"contents": "write"} if merging else {}
    app = None if token else hub.create_app(permissions={**PERMISSIONS, **contents})
    service = GitHubService(folder, hub, repo, app, url)
    with serving(service.intake) as address:
        if app is not None:
            hub.webhook(f"{address}/webhook", SECRET, app=app)
            hub.install(app, repo.name.partition("/")[0])
        else:
            hub.webhook(f"{address}/webhook", SECRET, repo=repo)
        try:
            yield service
        finally:
            hub.hooks.settle()
    service.database.close()
