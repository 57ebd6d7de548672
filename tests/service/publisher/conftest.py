from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.publisher.desk import Desk, make_repo, open_desk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with open_desk(make_repo(tmp_path / "repo"), tmp_path / "forge.db") as desk:
        yield desk
