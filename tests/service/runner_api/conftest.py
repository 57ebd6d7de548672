"""The runners' API over real HTTP, on SQLite and PostgreSQL."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ci_dispatch.protocol import PREFIX
from service.intake.app import create_app
from service.intake.server import Server
from service.intake.settings import IntakeSettings
from service.intake.sink import sink_into
from service.runner_api.desk import Desk
from service.runner_api.files import CiFiles
from service.runner_api.limits import Limits
from service.runner_api.router import make_router
from service.store import runners
from service.store.database import Database
from service.store.migrations import upgrade
from service.store.schema import metadata
from tests.kit.ci import Ci, inventory
from tests.kit.postgres import Cluster, Unavailable, cluster


class Clock:
    """The real clock, which tests set forward or back."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    @property
    def now(self) -> datetime:
        return self()

    @now.setter
    def now(self, moment: datetime) -> None:
        self.ahead = moment - datetime.now(UTC)


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Api:
    """One web process, and a client that sends what it is told."""

    port: int
    ci: Ci
    files: CiFiles
    rings: list[str]
    headers: dict[str, str] = field(default_factory=dict)

    def call(
        self, method: str, path: str, token: str = "", body: Any = b"", *, raw: bool = False, **headers: str
    ) -> Answer:
        """`body` is a model, bytes, or what JSON can say."""
        sent = body if isinstance(body, bytes) else _json(body)
        if token:
            headers["authorization"] = f"Bearer {token}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path if raw else PREFIX + path, sent, headers)
            answer = connection.getresponse()
            return Answer(
                answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
            )
        finally:
            connection.close()

    def token(self, **values: Any) -> str:
        with self.ci.database.write() as connection:
            return runners.create_token(connection, self.ci.clock(), timedelta(hours=1), **values)

    def register(self, name: str = "h1", gpus: int = 0, **values: Any) -> str:
        """A new runner's secret."""
        shown = inventory(gpus, host=name, **values)
        answer = self.call(
            "POST", "/runners", self.token(), {"name": name, "inventory": shown.model_dump(mode="json")}
        )
        assert answer.status == 201, answer.body
        secret: str = answer.json["secret"]
        return secret

    def claim(self, secret: str, wait: float = 0) -> Answer:
        return self.call("POST", f"/runners/self/claim?wait={wait}", secret)

    def grant(self, secret: str, wait: float = 20) -> tuple[str, str, Any]:
        """A lease's path, its token, and the whole grant."""
        answer = self.claim(secret, wait)
        assert answer.status == 200, answer
        return f"/leases/{answer.json['lease_id']}", answer.json["token"], answer.json

    def metric(self, line: str) -> float:
        for each in self.call("GET", "/metrics", raw=True).body.decode().splitlines():
            if each.startswith(line + " "):
                return float(each.rpartition(" ")[2])
        return 0.0


def _json(body: Any) -> bytes:
    dumped: str = body.model_dump_json() if hasattr(body, "model_dump_json") else json.dumps(body)
    return dumped.encode()


@contextmanager
def running(database: Database, folder: Path, clock: Clock, limits: Limits) -> Iterator[Api]:
    rings: list[str] = []
    files = CiFiles(folder)
    desk = Desk(database, files, lambda: rings.append("quick"), limits, clock)
    settings = IntakeSettings(secrets=(b"secret",), events=frozenset())
    app = create_app(settings, sink_into(database), {}, lambda ids: None, [partial(make_router, desk)])
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    server = Server(app, "127.0.0.1", 0, paced=(PREFIX,))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started and thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.started
    try:
        yield Api(listener.getsockname()[1], Ci(database, clock), files, rings)
    finally:
        server.should_exit = True
        thread.join(40)
        assert not thread.is_alive()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("migrated") / "empty.db"
    made = Database(f"sqlite:///{path}")
    upgrade(made)
    made.close()
    return path


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    try:
        with cluster() as started:
            made = Database(started.create("api"))
            upgrade(made)
            made.close()
            yield started
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def sqlite(tmp_path: Path, migrated_file: Path) -> Iterator[Database]:
    shutil.copy(migrated_file, tmp_path / "ci.db")
    opened = Database(f"sqlite:///{tmp_path / 'ci.db'}")
    yield opened
    opened.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite")
        return
    started: Cluster = request.getfixturevalue("postgres")
    tables = ", ".join(table.name for table in metadata.sorted_tables)
    with psycopg.connect(started.url("api"), autocommit=True) as connection:
        connection.execute(f"TRUNCATE {tables} RESTART IDENTITY".encode())
    opened = Database(started.url("api"))
    yield opened
    opened.close()


@pytest.fixture
def api(database: Database, tmp_path: Path, clock: Clock) -> Iterator[Api]:
    with running(database, tmp_path / "data", clock, Limits()) as started:
        yield started


@pytest.fixture
def start(sqlite: Database, tmp_path: Path, clock: Clock) -> Callable[..., Any]:
    """`with start(**limits) as api:`, on SQLite."""

    def started(**limits: Any) -> Any:
        return running(sqlite, tmp_path / "data", clock, Limits(**limits))

    return started
