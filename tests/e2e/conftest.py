"""A service over a real git repository, a real SQLite file and the local forge, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.checkouts import Repo
from tests.kit.engines import ScriptedEngine
from tests.kit.rounds import BASE, HEAD, answers, finding
from tests.kit.service import Service


def finds_the_fault() -> ScriptedEngine:
    """Every rep finds the fault of `HEAD`, and rechecks say that it is still there."""
    return answers(lambda rep: {"findings": [finding()]})


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """Branch `pull`, checked out, makes the change of `tests.kit.rounds` to `main`."""
    repo = Repo(tmp_path / "repo")
    repo.commit(BASE)
    repo.git("switch", "--quiet", "-c", "pull")
    repo.commit(HEAD)
    return repo


@pytest.fixture
def service(tmp_path: Path, repo: Repo) -> Service:
    return Service(tmp_path, repo, finds_the_fault)


@pytest.fixture
def service_with(tmp_path: Path, repo: Repo) -> Callable[[Callable[[], ScriptedEngine]], Service]:
    return lambda engine: Service(tmp_path, repo, engine)
