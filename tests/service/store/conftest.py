from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from service.forge.base import PullState, User
from service.store.backup import backup
from service.store.database import Database
from service.store.migrations import upgrade
from service.store.schema import metadata
from tests.kit.postgres import Cluster, Unavailable, cluster


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = datetime(2026, 9, 1, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    try:
        with cluster() as running:
            template = Database(running.create("migrated"))
            upgrade(template)
            template.close()
            running.create("store", template="migrated")
            yield running
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "migrated.db"
    template = Database(f"sqlite:///{path}")
    upgrade(template)
    backup(template, path.with_suffix(".copy"))
    template.close()
    return path.with_suffix(".copy")


@pytest.fixture
def sqlite_url(migrated_file: Path, tmp_path: Path) -> str:
    shutil.copy(migrated_file, tmp_path / "store.db")
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """A migrated, empty database of each kind."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite_url"))
    running: Cluster = request.getfixturevalue("postgres")
    # Emptied, not made anew: that takes a tenth of the time.
    tables = ", ".join(table.name for table in metadata.sorted_tables)
    with psycopg.connect(running.url("store"), autocommit=True) as connection:
        connection.execute(f"TRUNCATE {tables} RESTART IDENTITY".encode())
    return running.url("store")


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    opened = Database(url)
    yield opened
    opened.close()


@pytest.fixture
def pull_state() -> PullState:
    return PullState(
        repo="acme/app",
        number=7,
        title="Write into the slot that was asked for",
        body="",
        author=User("ada"),
        head_sha="1" * 40,
        head_ref="topic",
        head_repo="acme/app",
        base_ref="main",
        base_sha="0" * 40,
        draft=False,
        state="open",
        merged=False,
        labels=(),
    )
