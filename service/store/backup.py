"""A copy of a SQLite database, taken while it is in use."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from service.store.database import Database, create_private
from service.store.errors import StoreError


def backup(database: Database, target: Path) -> None:
    """Copies the database to `target`, which appears whole or not at all, while others go on writing.

    Raises `StoreError` for PostgreSQL, which has its own tools, and where `target` cannot be written.
    """
    if not database.is_sqlite:
        raise StoreError(f"{database.name} is backed up by PostgreSQL's own tools", "use pg_dump")
    source = str(database.engine.url.database)
    partial = target.with_name(target.name + ".partial")
    try:
        try:
            partial.unlink(missing_ok=True)
            create_private(partial)
            _copy(source, partial)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{source} cannot be copied to {target}: {error}", "choose another place") from error


def _copy(source: str, target: Path) -> None:
    with closing(sqlite3.connect(source)) as original, closing(sqlite3.connect(target)) as copy:
        original.backup(copy)
        # The copy is one file: no write-ahead log travels beside it.
        copy.execute("PRAGMA journal_mode=DELETE")
