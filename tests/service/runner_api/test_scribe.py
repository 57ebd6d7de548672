"""Writes that share a commit: each has its own answer, and what fails undoes itself alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from service.runner_api.scribe import Scribe
from service.store import audit
from service.store.database import Database
from service.store.errors import StoreError
from service.store.schema import audit as table
from service.store.types import utc_now


@pytest.fixture
def scribe(database: Database) -> Iterator[Scribe]:
    made = Scribe(database)
    made.start()
    yield made
    made.close()


def note(connection: sa.Connection, text: str) -> str:
    audit.record(connection, utc_now(), "ada", text, "x", {})
    return text


def noted(database: Database) -> list[str]:
    with database.read() as connection:
        return sorted(connection.execute(sa.select(table.c.action)).scalars())


def test_each_gets_what_its_own_change_returned(scribe: Scribe, database: Database) -> None:
    names = [f"n{number:02}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda name: scribe.write(lambda c: note(c, name)), names)) == names
    assert noted(database) == names


def test_what_fails_is_undone_and_the_others_of_its_commit_stay(scribe: Scribe, database: Database) -> None:
    """The first change holds the line up until the others stand in it, so that they share a commit."""
    standing = threading.Event()

    def hold(connection: sa.Connection) -> None:
        standing.wait(20)

    def fail(connection: sa.Connection) -> None:
        note(connection, "of the failed")
        raise StoreError("no", "")

    def write(name: str) -> str:
        if name == "bad":
            with pytest.raises(StoreError, match="no"):
                scribe.write(fail)
            return name
        return scribe.write(lambda connection: note(connection, name))

    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(scribe.write, hold)
        others = [pool.submit(write, name) for name in ("a", "bad", "b")]
        standing.set()
        first.result(30)
        assert [other.result(30) for other in others] == ["a", "bad", "b"]
    assert noted(database) == ["a", "b"]


def test_a_database_that_fails_fails_all_and_the_next_go_on(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    scribe = Scribe(sqlite)
    scribe.start()
    with monkeypatch.context() as broken:

        def refuse() -> object:
            raise StoreError("the database is away", "wait")

        broken.setattr(sqlite, "write", refuse)
        with pytest.raises(StoreError, match="away"):
            scribe.write(lambda connection: note(connection, "lost"))
    assert scribe.write(lambda connection: note(connection, "kept")) == "kept"
    scribe.close()
    assert noted(sqlite) == ["kept"]
