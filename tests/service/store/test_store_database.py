from __future__ import annotations

import sqlite3
import stat
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from service.store import audit
from service.store.backup import backup
from service.store.database import Database
from service.store.errors import StoreError
from service.store.migrations import is_current
from tests.kit.postgres import Cluster

NOW = datetime(2026, 9, 1, 12, 0, tzinfo=UTC)


def record(database: Database) -> None:
    with database.write() as connection:
        audit.record(connection, NOW, "ada", "dismiss", "acme/app#7 F1", {})


def recorded(database: Database) -> int:
    with database.read() as connection:
        return len(audit.entries(connection, "acme/app#7 F1", 100))


def held_open(database: Database, seconds: float) -> threading.Thread:
    """Another connection that holds the write lock for a while; returns once it does."""
    locked = threading.Event()

    def hold() -> None:
        with database.write() as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = version_num")
            locked.set()
            time.sleep(seconds)

    thread = threading.Thread(target=hold)
    thread.start()
    locked.wait()
    return thread


def test_sqlite_syncs_every_commit_and_keeps_foreign_keys(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    with database.read() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    database.close()
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'store.db'}")
    with database.write() as connection:
        connection.exec_driver_sql("CREATE TABLE t (x)")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    database.close()
    assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}


def test_what_raises_is_rolled_back(database: Database) -> None:
    def fail() -> None:
        with database.write() as connection:
            audit.record(connection, NOW, "ada", "dismiss", "acme/app#7 F1", {})
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert recorded(database) == 0


def test_a_reader_cannot_write(database: Database) -> None:
    def write() -> None:
        with database.read() as connection:
            audit.record(connection, NOW, "ada", "dismiss", "acme/app#7 F1", {})

    with pytest.raises(StoreError, match=r"read-?only"):
        write()
    record(database)
    assert recorded(database) == 1


def test_a_writer_waits_for_another(sqlite_url: str) -> None:
    database = Database(sqlite_url, patience=30)
    holder = held_open(database, 1.5)
    record(database)
    holder.join()
    assert recorded(database) == 1
    database.close()


def test_a_database_that_stays_locked_is_named_and_nothing_is_written(sqlite_url: str) -> None:
    database = Database(sqlite_url, patience=0)
    holder = held_open(database, 1.6)
    with pytest.raises(StoreError, match=r"store\.db: database is locked; another process holds it"):
        record(database)
    assert recorded(database) == 0
    holder.join()
    record(database)
    assert recorded(database) == 1
    database.close()


def test_a_full_disk_is_named_and_what_was_there_is_intact(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    record(database)

    def fill() -> None:
        with database.write() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
            audit.record(connection, NOW, "ada", "dismiss", "acme/app#7 F1", {"body": "x" * 1_000_000})

    with pytest.raises(StoreError, match="disk is full; free some disk space"):
        fill()
    assert recorded(database) == 1
    database.close()


def test_a_server_that_is_away_is_named_without_its_password() -> None:
    database = Database("postgresql://ada:s3cret@127.0.0.1:1/store", patience=0)
    with pytest.raises(StoreError, match=r"ada:\*\*\*@127\.0\.0\.1:1/store") as caught:
        record(database)
    assert "s3cret" not in str(caught.value)
    assert "reachable" in str(caught.value)


def test_a_server_connection_that_was_cut_is_replaced(postgres: Cluster) -> None:
    database = Database(postgres.create("cut", template="migrated"))
    record(database)
    killer = Database(postgres.url("postgres"))
    with killer.write() as connection:
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'cut'"
        assert connection.exec_driver_sql(cut).scalar() is True
    record(database)
    assert recorded(database) == 2
    database.close()
    killer.close()


def test_a_missing_table_asks_for_the_migrations(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    database = Database(f"sqlite:///{tmp_path / 'empty.db'}")
    with pytest.raises(StoreError, match="no such table: audit; run the migrations"):
        record(database)
    server: Cluster = request.getfixturevalue("postgres")
    database = Database(server.create("empty"))
    with pytest.raises(StoreError, match='"audit" does not exist; run the migrations'):
        record(database)
    database.close()


@pytest.mark.parametrize("url", ["", "store.db", "mysql://host/db", "sqlite://", "sqlite:///:memory:"])
def test_a_url_that_names_no_database_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match="write sqlite:////path"):
        Database(url)


def test_a_file_that_is_no_database_or_has_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database, but long enough to be read as the header of one\n" * 9)
    with pytest.raises(StoreError, match=r"text\.db: file is not a database"):
        record(Database(f"sqlite:///{tmp_path / 'text.db'}"))
    with pytest.raises(StoreError, match=r"absent/store\.db cannot be opened: No such file"):
        Database(f"sqlite:///{tmp_path / 'absent' / 'store.db'}")


def test_wrong_values_are_the_callers_mistake_not_the_databases_state(database: Database) -> None:
    with pytest.raises(sa.exc.IntegrityError), database.write() as connection:
        connection.exec_driver_sql("INSERT INTO audit (actor) VALUES ('ada')")


def test_a_backup_taken_while_others_write_is_whole(sqlite_url: str, tmp_path: Path) -> None:
    database = Database(sqlite_url)
    with database.write() as connection:
        audit.record(connection, NOW, "ada", "fill", "disk", {"body": "x" * 20_000_000})
    stop, written = threading.Event(), 0

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            record(database)
            written += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        backup(database, tmp_path / "copy.db")
    finally:
        stop.set()
        writer.join()

    with sqlite3.connect(tmp_path / "copy.db") as plain:
        assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    plain.close()
    copy = Database(f"sqlite:///{tmp_path / 'copy.db'}")
    assert is_current(copy)
    assert recorded(copy) <= written
    assert written > 0
    with copy.read() as connection:
        assert audit.entries(connection, "disk", 1)[0].detail == {"body": "x" * 20_000_000}
    copy.close()
    database.close()
    left = {path.name for path in tmp_path.iterdir() if "partial" in path.name}
    assert left == set()


def test_a_backup_that_cannot_be_written_leaves_the_older_one(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(sqlite_url)
    target = tmp_path / "copy.db"
    target.write_bytes(b"older")

    def full(_: Path, __: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StoreError, match=r"cannot be copied to .*copy\.db: .*No space left"):
        backup(database, target)
    assert target.read_bytes() == b"older"
    with pytest.raises(StoreError, match="cannot be copied"):
        backup(database, tmp_path / "absent" / "copy.db")
    assert {path.name for path in tmp_path.glob("copy*")} == {"copy.db"}
    database.close()


def test_postgresql_is_backed_up_by_its_own_tools(postgres: Cluster, tmp_path: Path) -> None:
    database = Database(postgres.url("migrated"))
    with pytest.raises(StoreError, match="use pg_dump"):
        backup(database, tmp_path / "copy.db")
