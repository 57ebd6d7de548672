"""The real `whitesmoke serve` on the local forge, all its processes, and a hand on each of them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from service.forge.local import Entry, LocalForge
from service.forge.local_events import PullAction, comment_event, pull_event
from service.publisher.effects import CHECK_NAME
from service.store.database import Database
from service.store.schema import deliveries, outbox, work
from service.webhook_client import deliver
from tests.kit.checkouts import Repo

NAME = "local/repo"
SECRET = b"of the webhook"
SETTLED = ("done", "ignored", "superseded")
_READY_SECONDS, _END_SECONDS = 30.0, 45.0
_MARK = "TESTS_SERVED"


@dataclass
class Served:
    """One service. Its processes are known by a mark in their environment, or by working in its data folder (Valkey
    writes over its environment), so that orphans are found too."""

    folder: Path
    repo: Repo
    environment: dict[str, str]
    arguments: tuple[str, ...]
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = self.folder / "service.log"

    # Its life

    def start(self) -> None:
        """Starts it and waits until it is ready."""
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("WHITESMOKE_", "OPENAI_"))
        }
        own = {
            "WHITESMOKE_DATA": str(self.folder / "data"),
            "WHITESMOKE_PORT": str(self.port),
            "WHITESMOKE_FORGE": "local",
            "WHITESMOKE_LOCAL_REPOSITORY": str(self.repo.folder),
            "WHITESMOKE_WEBHOOK_SECRET": SECRET.decode(),
            "WHITESMOKE_ENGINE": "none",
            # One after the other: earlier reviews are marked half a minute later where theirs is not there yet.
            "WHITESMOKE_CONCURRENCY": "1",
            _MARK: self.mark,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "service.cli.main", "serve", *self.arguments],
                env={**clean, **own, **self.environment},
                stdout=log,
                stderr=log,
            )
        self.wait_until(self.is_ready, _READY_SECONDS, "it is ready")
        self.database = Database(f"sqlite:///{self.folder / 'data' / 'whitesmoke.db'}")
        self.forge = LocalForge(self.database, {NAME: self.repo.folder}, owner="owner")

    def stop(self) -> int:
        """Ends it as a system would; gives its exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(_END_SECONDS)
        finally:
            self.database.close()

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=2):
                return True
        except OSError:
            return False

    def pids(self, *words: str) -> list[int]:
        """Its processes with all of these words in their command line, oldest first; without words, all."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                is_ours = f"{_MARK}={self.mark}".encode() in environment or (
                    (entry / "cwd").readlink().is_relative_to(self.folder / "data")
                )
            except OSError:
                continue
            if is_ours and all(word in command for word in words):
                found.append(int(entry.name))
        return sorted(found)

    # What happens to it

    def open(self) -> int:
        number = self.forge.as_user("ada").open_pull(NAME, "pull", "main", title="Batch the writes").number
        self.tell("opened", number)
        return number

    def tell(self, action: PullAction, number: int) -> None:
        state = self.forge.pull(NAME, number)
        deliver(self.url, SECRET, "pull_request", pull_event(action, state, state.author))

    def say(self, number: int, login: str, body: str) -> None:
        made = self.forge.as_user(login).create_comment(NAME, number, body)
        comment = next(one for one in self.forge.comments(NAME, number) if one.id == made)
        deliver(self.url, SECRET, "issue_comment", comment_event(self.forge.pull(NAME, number), comment))

    # What came of it

    def said(self, number: int, kind: str) -> list[Entry]:
        me = self.forge.me(NAME).login
        entries = self.forge.conversation(NAME, number)
        return [one for one in entries if one.kind == kind and one.author.login == me]

    def check_states(self, number: int) -> list[str]:
        """Of the head's check runs."""
        head = self.forge.pull(NAME, number).head_sha
        return [one.status for one in self.forge.checks(NAME, head) if one.name == CHECK_NAME]

    def rows(self, table: sa.Table) -> list[sa.Row[tuple[object, ...]]]:
        with self.database.read() as connection:
            return list(connection.execute(sa.select(table).order_by(table.c.id)))

    def is_settled(self) -> bool:
        """Whether there was something to do, and all of it is done."""
        states = [row.state for table in (deliveries, work, outbox) for row in self.rows(table)]
        return bool(self.rows(outbox)) and all(state in SETTLED for state in states)

    def wait_until(self, happened: Callable[[], object], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}\n{self.log.read_text()}"
            time.sleep(0.05)


@contextmanager
def served(folder: Path, repo: Repo, *arguments: str, **environment: str) -> Iterator[Served]:
    """Runs `whitesmoke serve` with these arguments and variables. At the end nothing of it may be left running."""
    service = Served(folder, repo, environment, arguments)
    try:
        service.start()
        yield service
        if service.process.poll() is None:
            service.stop()
        left = service.pids()
    finally:
        for pid in service.pids():
            os.kill(pid, signal.SIGKILL)
    assert left == [], f"processes outlived the service: {left}"
