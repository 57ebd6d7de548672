"""Writes of the API's threads, committed together where the database has one writer at a time.

On SQLite each commit waits for the disk, and writers that meet sleep before they try again. Here they stand in a line,
and whoever waits at the same time shares one commit. On PostgreSQL each write is a transaction of its own: rows of
different callers would otherwise be locked together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

import sqlalchemy as sa

from service.batches import batches
from service.store.database import Database

T = TypeVar("T")

Write = Callable[[sa.Connection], T]
_BATCH = 64


class Scribe:
    """Safe to share between threads, of which none may be its own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._line: SimpleQueue[tuple[Write[Any], Future[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ci-scribe", daemon=True)

    def start(self) -> None:
        if self._database.is_sqlite:
            self._thread.start()

    def close(self) -> None:
        """Commits what waits, then ends. No `write` may follow."""
        if self._database.is_sqlite:
            self._line.put(None)
            self._thread.join()

    def write(self, change: Write[T]) -> T:
        """What `change` returns, once it is committed. What it raises undoes it alone."""
        if not self._database.is_sqlite:
            with self._database.write() as connection:
                return change(connection)
        answer: Future[T] = Future()
        self._line.put((change, answer))
        return answer.result()

    def _run(self) -> None:
        for batch in batches(self._line, _BATCH):
            self._commit(batch)

    def _commit(self, batch: list[tuple[Write[Any], Future[Any]]]) -> None:
        done: list[tuple[Future[Any], Any, Exception | None]] = []
        try:
            with self._database.write() as connection:
                for change, answer in batch:
                    try:
                        with connection.begin_nested():
                            done.append((answer, change(connection), None))
                    except Exception as error:  # noqa: BLE001 - it is raised where the change was asked for
                        done.append((answer, None, error))
        except Exception as error:  # noqa: BLE001 - the same, for all: nothing was committed
            for _, answer in batch:
                answer.set_exception(error)
            return
        for answer, value, failure in done:
            if failure is None:
                answer.set_result(value)
            else:
                answer.set_exception(failure)
