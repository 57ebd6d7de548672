"""A service over a real git repository, a real SQLite file and the local forge, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit.checkouts import Repo
from tests.kit.engines import ScriptedEngine
from tests.kit.github_service import GitHubService, github_service
from tests.kit.rounds import BASE, HEAD, answers, finding
from tests.kit.service import Service
from tests.standin.github import GitHub
from tests.standin.github import Repo as GitHubRepo
from tests.standin.github.fixture import hub

__all__ = ["hub"]


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


@pytest.fixture
def cache(hub: GitHub) -> GitHubRepo:
    """acme/cache on GitHub, as `tests.kit.rounds` has it before the change."""
    return hub.create_repo("acme/cache", files=BASE)


@pytest.fixture
def github(hub: GitHub, cache: GitHubRepo, tmp_path: Path) -> Iterator[GitHubService]:
    """A service for acme/cache as an App."""
    with github_service(tmp_path, hub, cache) as service:
        yield service


@pytest.fixture
def with_token(hub: GitHub, cache: GitHubRepo, tmp_path: Path) -> Iterator[GitHubService]:
    """A service for acme/cache with a user's token."""
    with github_service(tmp_path, hub, cache, token=True) as service:
        yield service
