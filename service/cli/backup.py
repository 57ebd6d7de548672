"""`whitesmoke backup`: a copy of the service's database."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
def backup(file: Path) -> None:
    """Copy the service's SQLite database to FILE while it runs. PostgreSQL has pg_dump."""
    from service.settings import load_settings
    from service.store.backup import backup as copy
    from service.store.database import Database

    database = Database(load_settings().database)
    try:
        copy(database, file)
    finally:
        database.close()
    click.echo(f"{database.name} was copied to {file}")
