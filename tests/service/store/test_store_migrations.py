from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from service.store.database import Database
from service.store.errors import StoreError
from service.store.migrations import is_current, upgrade
from service.store.schema import metadata
from tests.kit.postgres import Cluster


def _definitions(database: Database) -> set[str]:
    """Every table and index as the database itself writes it down."""
    if database.is_sqlite:
        query = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name != 'alembic_version'"
    else:
        query = (
            "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename != 'alembic_version' "
            "UNION ALL SELECT conrelid::regclass || pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text != 'alembic_version' "
            "UNION ALL SELECT concat_ws(' ', table_name, ordinal_position, column_name, data_type, is_nullable) "
            "FROM information_schema.columns WHERE table_schema = 'public' AND table_name != 'alembic_version'"
        )
    with database.read() as connection:
        return {_normal(row[0]) for row in connection.exec_driver_sql(query)}


def _normal(sql: str) -> str:
    """The order in which constraints are written means nothing."""
    text = re.sub(r"\s+", " ", sql.replace("(", " ( ").replace(")", " ) "))
    return ", ".join(sorted(part.strip() for part in re.split(r", (?=CONSTRAINT)|\) $", text)))


@pytest.fixture(params=["sqlite", "postgresql"])
def created(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """What the models alone would create."""
    if request.param == "sqlite":
        return Database(f"sqlite:///{tmp_path / 'created.db'}")
    running: Cluster = request.getfixturevalue("postgres")
    return Database(running.create(f"created_{tmp_path.name[-20:]}"))


def test_migrations_build_what_the_models_describe(created: Database, request: pytest.FixtureRequest) -> None:
    with created.write() as connection:
        metadata.create_all(connection)
    kind = "sqlite_url" if created.is_sqlite else "postgres"
    found = request.getfixturevalue(kind)
    migrated = Database(found if created.is_sqlite else found.url("migrated"))

    with migrated.read() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, metadata) == []
    assert _definitions(migrated) == _definitions(created)
    assert len(_definitions(created)) > 25

    migrated.close()
    created.close()


def test_upgrading_twice_changes_nothing(database: Database) -> None:
    before = _definitions(database)
    upgrade(database)
    assert _definitions(database) == before
    assert is_current(database)


def test_an_empty_database_is_not_current(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'empty.db'}")
    assert not is_current(database)
    upgrade(database)
    assert is_current(database)


def test_processes_that_start_together_upgrade_once(created: Database) -> None:
    others = [Database(created.engine.url.render_as_string(hide_password=False)) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(upgrade, others))
    assert all(is_current(other) for other in others)
    for each in (created, *others):
        each.close()


def test_a_database_of_a_newer_version_is_refused_and_stays_as_it_is(created: Database) -> None:
    upgrade(created)
    with created.write() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    before = _definitions(created)
    with pytest.raises(StoreError, match="another version"):
        upgrade(created)
    assert not is_current(created)
    assert _definitions(created) == before
    created.close()


def test_a_step_that_fails_halfway_leaves_nothing(created: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    from alembic import op

    real = op.create_table

    def failing(name: str, *items: object, **options: object) -> object:
        if name == "outbox":
            raise RuntimeError("power cut")
        return real(name, *items, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(op, "create_table", failing)
    with pytest.raises(RuntimeError, match="power cut"):
        upgrade(created)
    assert _definitions(created) == set()
    created.close()
