"""The steps that bring a database to the schema of this version.

A change of `schema.py` comes with a new module in `versions/` whose `down_revision` is the last one; a test compares
the two. Steps only go forward: to go back, restore a backup.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError

from service.forge import local_tables  # noqa: F401 - its tables are part of the schema
from service.store import ci_tables  # noqa: F401 - the same
from service.store.database import Database
from service.store.errors import StoreError

# Any number that no one else takes a lock on.
_LOCK = 7_741_320_114


def upgrade(database: Database) -> None:
    """Brings the database to this version, all steps or none; several processes may ask at once.

    Raises `StoreError` where a newer whitesmoke wrote it.
    """
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    with database.write() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise StoreError(
                f"database {database.name} was written by another version of whitesmoke: {error}",
                "use that version, or restore a backup of this one",
            ) from error


def is_current(database: Database) -> bool:
    """Whether the database has the schema of this version."""
    with database.read() as connection:
        found = MigrationContext.configure(connection).get_current_revision()
    return found == ScriptDirectory(str(Path(__file__).parent)).get_current_head()
