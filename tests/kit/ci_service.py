"""A whole service with CI over the local forge: workers in a thread, the web process's API on loopback, runners as
processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from reviewer.checklist import load_items
from reviewer.policy import ReviewPolicy
from service.engines import Opened
from service.events import EVENTS
from service.forge.base import Check
from service.forge.local import LocalForge
from service.forge.local_events import comment_event, pull_event, review_event
from service.intake.app import create_app
from service.intake.settings import IntakeSettings
from service.intake.sink import sink_into
from service.runner_api.desk import Desk
from service.runner_api.files import CiFiles
from service.runner_api.limits import Limits
from service.runner_api.router import make_router
from service.store import deliveries, jobs, runners
from service.store.database import Database
from service.store.deliveries import NewDelivery
from service.store.jobs import StoredJob
from service.store.lease import OPEN
from service.store.migrations import upgrade
from service.store.types import utc_now
from service.worker.keeper import tend
from service.worker.lanes import work_off
from service.worker.station import LANES, Station
from tests.kit.checkouts import Repo
from tests.kit.github_service import serving

NAME = "local/repo"
WAIT_SECONDS = 60.0


class CiService:
    """`owner` has every permission; pull requests are ada's, from branches of the repository."""

    def __init__(self, folder: Path, repo: Repo) -> None:
        self.folder = folder
        self.repo = repo
        self.database = Database(f"sqlite:///{folder / 'service.db'}")
        upgrade(self.database)
        self.skew = timedelta(0)
        self.limits = Limits()
        self.forge = LocalForge(self.database, {NAME: repo.folder}, owner="owner", clock=self.clock)
        self._rung = threading.Event()
        self._over = threading.Event()
        self._guid = 0
        self.station = self.new_station("test")
        self.address = ""

    def new_station(self, owner: str) -> Station:
        @asynccontextmanager
        async def opener(policy: ReviewPolicy) -> AsyncIterator[Opened]:
            yield Opened(None, utc_now())

        return Station(
            database=self.database,
            forge=self.forge,
            forge_name="local",
            open_engine=opener,
            load_items=lambda policy, read: load_items(policy.checklists or (), read),
            owner=owner,
            clock=self.clock,
            ring=lambda lane: self._rung.set(),
            data=self.folder,
        )

    def clock(self) -> datetime:
        """The service's. A test sets it forward or back by `skew`; runners have their own."""
        return utc_now() + self.skew

    @contextmanager
    def up(self) -> Iterator[CiService]:
        """The web process's API and the workers."""
        desk = Desk(self.database, CiFiles(self.folder), self._rung.set, self.limits, self.clock)
        settings = IntakeSettings(secrets=(b"secret",), events=EVENTS)
        app = create_app(
            settings, sink_into(self.database), {}, lambda ids: None, [partial(make_router, desk)]
        )
        worker = threading.Thread(target=self._work, daemon=True)
        with serving(app) as self.address:
            worker.start()
            try:
                yield self
            finally:
                self._over.set()
                self._rung.set()
                worker.join(30)
        self.database.close()

    def _work(self) -> None:
        while not self._over.is_set():
            self._rung.clear()
            tend(self.station)
            for lane in LANES:
                if lane != "review":
                    work_off(self.station, lane)
            self._rung.wait(0.2)

    # People

    def open(self, branch: str, author: str = "ada") -> int:
        state = self.forge.as_user(author).open_pull(NAME, branch, "main", title="A change")
        self._deliver("pull_request", pull_event("opened", state, state.author))
        return state.number

    def push(self, number: int, before: str = "") -> None:
        state = self.forge.pull(NAME, number)
        self._deliver("pull_request", pull_event("synchronize", state, state.author))

    def say(self, number: int, login: str, body: str) -> int:
        comment_id = self.forge.as_user(login).create_comment(NAME, number, body)
        comment = next(one for one in self.forge.comments(NAME, number) if one.id == comment_id)
        self._deliver("issue_comment", comment_event(self.forge.pull(NAME, number), comment))
        return comment_id

    def review(self, number: int, login: str, event: Any, body: str = "Read it.") -> int:
        head = self.forge.pull(NAME, number).head_sha
        review_id = self.forge.as_user(login).create_review(NAME, number, head, body, event, ())
        review = next(one for one in self.forge.reviews(NAME, number) if one.id == review_id)
        self._deliver("pull_request_review", review_event(self.forge.pull(NAME, number), review))
        return review_id

    def _deliver(self, event: str, payload: dict[str, Any]) -> None:
        import json

        self._guid += 1
        row = NewDelivery(
            guid=f"guid-{self._guid}", event=event, headers={}, body=json.dumps(payload).encode(),
            received_at=self.clock(),
        )  # fmt: skip
        with self.database.write() as connection:
            deliveries.add_deliveries(connection, [row])
        self._rung.set()

    # Runners

    def token(self) -> str:
        """Registers one runner."""
        with self.database.write() as connection:
            return runners.create_token(connection, self.clock(), ttl=timedelta(hours=1))

    @contextmanager
    def runner(self, name: str = "one", *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """A real runner's process, drained at the end."""
        token = self.token()
        folder = self.folder / f"runner-{name}"
        folder.mkdir(exist_ok=True)
        log = (self.folder / f"runner-{name}.log").open("ab")
        process = subprocess.Popen(
            [
                sys.executable, "-m", "service.cli.main", "runner", "--url", self.address, "--arch", "cpu",
                "--folder", str(folder / "place"), "--name", name, *options,
            ],
            env={**os.environ, "WHITESMOKE_RUNNER_TOKEN": token},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            log.close()

    # What is seen

    def jobs(self, number: int) -> list[StoredJob]:
        """All attempts for the pull request's head."""
        from service.store import pulls

        state = self.forge.pull(NAME, number)
        with self.database.read() as connection:
            pull = pulls.find(connection, "local", NAME, number)
            return [] if pull is None else jobs.of_pull(connection, pull.id, state.head_sha)

    def checks(self, number: int, head_sha: str = "") -> dict[str, Check]:
        sha = head_sha or self.forge.pull(NAME, number).head_sha
        return {check.name: check for check in self.forge.checks(NAME, sha)}

    def conclusion(self, number: int, job: str, head_sha: str = "") -> str | None:
        """Of a job's check; None while there is none."""
        check = self.checks(number, head_sha).get(f"whitesmoke/ci/{job}")
        return None if check is None else check.conclusion

    def said(self, number: int) -> list[str]:
        """The bot's comments, oldest first."""
        me = self.forge.me(NAME).login
        found = self.forge.conversation(NAME, number)
        return [one.body for one in found if one.kind == "comment" and one.author.login == me]

    def report(self, number: int) -> str:
        """The comment on CI; "" before there is one."""
        return next((body for body in self.said(number) if body.startswith("<!-- whitesmoke:ci ")), "")

    def wait(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"{what}\n{self.logs()}"
            time.sleep(0.05)

    def settle(self) -> None:
        """Until nothing is left to work off: deliveries, questions to the gate, what is to be posted."""

        def is_idle() -> bool:
            with self.database.read() as connection:
                counted = (*self.station.work.counts(connection), *self.station.outbox.counts(connection))
                waiting = deliveries.received(connection, 1)
            return not waiting and all(state not in OPEN for kind, state in counted if kind != "review")

        self.wait(is_idle, "something is left to do")

    def logs(self) -> str:
        return "\n".join(
            path.read_text(errors="replace")[-3000:] for path in self.folder.glob("runner-*.log")
        )
