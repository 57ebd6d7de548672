"""One database by URL: transactions, their retries, and errors that say what to do."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from service.store.errors import StoreError

# How long one attempt waits for another's write lock before it is tried again.
_LOCK_WAIT_MS = 1_000
_RETRY_PAUSE_S = 0.05


class Database:
    """SQLite (`sqlite:////absolute/path.db`) or PostgreSQL (`postgresql://user:password@host/name`).

    Safe to share between threads. A forked child opens its own. `patience` is how many seconds a transaction
    waits for a locked or unreachable database before it raises `StoreError`.
    """

    def __init__(self, url: str, *, patience: float = 10.0) -> None:
        self._patience = patience
        parsed = _parse(url)
        self.name = parsed.render_as_string(hide_password=True)
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        if self.is_sqlite:
            _create(Path(str(parsed.database)))
            # Errors must not show what was written: payloads are other people's.
            self.engine = sa.create_engine(parsed, hide_parameters=True)
            sa.event.listen(self.engine, "connect", _configure_sqlite)
            sa.event.listen(self.engine, "begin", _begin_sqlite)
        else:
            self.engine = sa.create_engine(
                parsed,
                hide_parameters=True,
                pool_pre_ping=True,
                connect_args={"connect_timeout": 10, "options": f"-c lock_timeout={_LOCK_WAIT_MS * 10}"},
            )

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction that may write; committed at the end, rolled back where the body raises.

        On SQLite it holds the one write lock from its first moment, so keep it short.
        """
        with self._transaction(writes=True) as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A transaction that can only read; on SQLite it never waits for a writer."""
        with self._transaction(writes=False) as connection:
            yield connection

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def _transaction(self, *, writes: bool) -> Iterator[sa.Connection]:
        connection = self._begin(writes)
        try:
            with connection:
                yield connection
                connection.commit()
        except (sa.exc.IntegrityError, sa.exc.DataError):
            # A caller's mistake, not the database's state.
            raise
        except sa.exc.DBAPIError as error:
            raise self._explained(error) from error

    def _begin(self, writes: bool) -> sa.Connection:
        deadline = time.monotonic() + self._patience
        while True:
            connection = None
            try:
                connection = self.engine.connect()
                connection.execution_options(whitesmoke_writes=writes, **self._access(writes))
                connection.begin()
                return connection
            except sa.exc.DBAPIError as error:
                if connection is not None:
                    connection.close()
                may_pass = isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError)
                if not may_pass or time.monotonic() > deadline:
                    raise self._explained(error) from error
                time.sleep(_RETRY_PAUSE_S)

    def _access(self, writes: bool) -> dict[str, bool]:
        return {} if self.is_sqlite else {"postgresql_readonly": not writes}

    def _explained(self, error: sa.exc.DBAPIError) -> StoreError:
        said = str(error.orig).strip().partition("\n")[0]
        if "locked" in said or "lock timeout" in said:
            remedy = "another process holds it for long: try again, and look for one that hangs"
        elif "full" in said or "No space left" in said:
            remedy = "free some disk space"
        elif "readonly" in said:
            remedy = "make the file and its folder writable"
        elif "no such table" in said or "does not exist" in said:
            remedy = "run the migrations"
        else:
            remedy = "check that it is running and reachable, then try again"
        return StoreError(f"database {self.name}: {said}", remedy)


def _parse(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise StoreError(
            "the database URL cannot be read", "write sqlite:////path or postgresql://..."
        ) from None
    backend = parsed.get_backend_name()
    if backend == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise StoreError(f"database {backend} is not known", "write sqlite:////path or postgresql://...")
    if parsed.database in (None, "", ":memory:"):
        raise StoreError("the database URL names no file", "write sqlite:////path")
    return parsed


def _create(path: Path) -> None:
    try:
        create_private(path)
    except OSError as error:
        raise StoreError(
            f"database {path} cannot be opened: {error.strerror}", "choose another folder"
        ) from error


def create_private(path: Path) -> None:
    """Makes sure that the file exists; a new one is for its owner alone, as it will hold private payloads.

    SQLite gives the log beside it the same mode.
    """
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))


def _configure_sqlite(connection: sqlite3.Connection, _: Any) -> None:
    # SQLAlchemy's begin event starts transactions (below); the driver must not start others on its own.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={_LOCK_WAIT_MS}")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("whitesmoke_writes")
    connection.exec_driver_sql(f"PRAGMA query_only={'OFF' if writes else 'ON'}")
    # A transaction that reads first and writes later could find its snapshot outdated: writers say so at once.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
