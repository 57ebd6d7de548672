"""A running intake over real HTTP, and a client that can also misbehave."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from service.intake.app import create_app
from service.intake.server import Server
from service.intake.settings import IntakeSettings
from service.intake.sink import Sink, sink_into
from service.store.database import Database
from service.store.migrations import upgrade
from service.store.schema import deliveries

SECRET = b"a secret that only GitHub knows"
EVENTS = frozenset({"pull_request", "issue_comment"})


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def json(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed


def sign(body: bytes, secret: bytes = SECRET) -> str:
    return "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()


def delivery_headers(body: bytes, secret: bytes = SECRET, **changes: str | None) -> dict[str, str]:
    """GitHub's headers for `body`; changes are by name with `_` for `-`, None leaves a header out."""
    headers: dict[str, str | None] = {
        "x-github-event": "pull_request",
        "x-github-delivery": str(uuid.uuid4()),
        "x-hub-signature-256": sign(body, secret),
        "content-type": "application/json",
        "user-agent": "GitHub-Hookshot/0123456",
    }
    headers |= {name.replace("_", "-"): value for name, value in changes.items()}
    return {name: value for name, value in headers.items() if value is not None}


class Intake:
    """A service on a port of this machine."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.woken: list[int] = []

    def request(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] = {}) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            return Answer(answer.status, answer.read(), {k.lower(): v for k, v in answer.getheaders()})
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, None, {name.replace("_", "-"): v for name, v in headers.items()})

    def deliver(self, body: bytes = b"{}", secret: bytes = SECRET, **changes: str | None) -> Answer:
        return self.request("POST", "/webhook", body, delivery_headers(body, secret, **changes))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def metric(self, name: str, **labels: str) -> float:
        wanted = name + ("{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "}" if labels else "")
        for line in self.get("/metrics").body.decode().splitlines():
            if line.startswith(wanted + " "):
                return float(line.rpartition(" ")[2])
        return 0.0


Serve = Callable[..., Any]


@contextmanager
def running(app: FastAPI, patience: float = 15.0) -> Iterator[int]:
    """Serves `app` in a thread; gives its port. Stops it the way a signal would."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(app, "127.0.0.1", 0, patience=patience)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started and thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.started
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with all migrations: made once, copied for each test."""
    path = tmp_path_factory.mktemp("migrated") / "empty.db"
    made = Database(f"sqlite:///{path}")
    upgrade(made)
    made.close()
    return path


@pytest.fixture
def database(tmp_path: Path, empty_database: Path) -> Iterator[Database]:
    path = tmp_path / "intake.db"
    shutil.copy(empty_database, path)
    made = Database(f"sqlite:///{path}", patience=0.3)
    yield made
    made.close()


@pytest.fixture
def serve(database: Database) -> Serve:
    """`with serve(**settings) as intake:`; `sink`, `checks`, `on_stored` and `patience` may be replaced too."""

    @contextmanager
    def start(
        sink: Any = None, checks: Any = None, on_stored: Any = None, patience: float = 15.0, **settings: Any
    ) -> Iterator[Intake]:
        intake = Intake(0)
        chosen = IntakeSettings(**{"secrets": (SECRET,), "events": EVENTS, **settings})
        app = create_app(chosen, sink or sink_into(database), checks or {}, on_stored or intake.woken.extend)
        with running(app, patience) as intake.port:
            yield intake

    return start


@pytest.fixture(scope="session")
def shared_server() -> Iterator[tuple[Intake, dict[str, Sink]]]:
    """One server for all tests that need nothing special: starting and stopping one takes a while."""
    intake, place = Intake(0), dict[str, Sink]()
    app = create_app(
        IntakeSettings(secrets=(SECRET,), events=EVENTS),
        lambda rows: place["sink"](rows),
        {},
        lambda ids: intake.woken.extend(ids),
    )
    with running(app) as intake.port:
        yield intake, place


@pytest.fixture
def intake(shared_server: tuple[Intake, dict[str, Sink]], database: Database) -> Intake:
    """A service that stores into `database`."""
    started, place = shared_server
    place["sink"] = sink_into(database)
    started.woken = []
    return started


@pytest.fixture
def stored(database: Database) -> Callable[[], list[Any]]:
    """The rows that are in the database now."""

    def read() -> list[Any]:
        with database.read() as connection:
            return list(connection.execute(sa.select(deliveries).order_by(deliveries.c.id)))

    return read


@pytest.fixture
def headers_for() -> Callable[..., dict[str, str]]:
    return delivery_headers


@pytest.fixture
def signature_of() -> Callable[..., str]:
    return sign


@pytest.fixture
def intake_class() -> type[Intake]:
    return Intake
