from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from service.forge.local import LocalForge
from service.store.database import Database
from service.store.schema import metadata
from tests.kit.checkouts import Repo

REPO = "acme/cache"
PAGES = "".join(f"line {number}\n" for number in range(1, 41))


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """`main` with 40 numbered lines; `topic` changes line 10 and removes line 30."""
    repo = Repo(tmp_path / "repo")
    repo.commit({"pages.txt": PAGES, "other.txt": "untouched\n"}, "Begin")
    repo.git("checkout", "--quiet", "-b", "topic")
    changed = PAGES.replace("line 10\n", "line ten\n").replace("line 30\n", "")
    repo.commit({"pages.txt": changed}, "Spell the tenth line")
    return repo


@pytest.fixture
def forge(repo: Repo, tmp_path: Path) -> Iterator[LocalForge]:
    """Seen as the bot; olga runs the process. A second passes at each look at the clock."""
    database = Database(f"sqlite:///{tmp_path / 'forge.db'}")
    sa.event.listen(database.engine, "connect", lambda one, _: one.execute("PRAGMA synchronous=OFF"))
    with database.write() as connection:
        metadata.create_all(connection)
    seconds = itertools.count()
    yield LocalForge(
        database,
        {REPO: repo.folder},
        owner="olga",
        clock=lambda: datetime(2026, 9, 1, tzinfo=UTC) + timedelta(seconds=next(seconds)),
    )
    database.close()


@pytest.fixture
def ada(forge: LocalForge) -> LocalForge:
    """The forge as ada sees it, who has opened pull request 1."""
    ada = forge.as_user("ada")
    ada.open_pull(REPO, "topic", "main", body="Spelled out.")
    return ada
