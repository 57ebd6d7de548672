from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from service.forge.clone import Source
from service.forge.clones import Clones
from service.forge.github.forge import GitHubForge
from tests.service.forge_github.connect import Connect
from tests.standin.github import GitHub, Repo
from tests.standin.github.fixture import hub
from tests.standin.github.state import App

__all__ = ["hub"]

TEXT = "".join(f"line {number}\n" for number in range(1, 61))


@pytest.fixture
def repo(hub: GitHub) -> Repo:
    return hub.create_repo("acme/app", files={"a.py": TEXT, "b.py": "b\n", "lib/c.py": "needle = 1\n"})


@pytest.fixture
def app(hub: GitHub) -> App:
    made = hub.create_app()
    hub.install(made, "acme")
    return made


@pytest.fixture
def connect(tmp_path: Path) -> Connect:
    return Connect(tmp_path)


@pytest.fixture
def forge(hub: GitHub, app: App, repo: Repo, connect: Connect) -> GitHubForge:
    """As the App, installed on acme."""
    return connect.app(hub, app)


@pytest.fixture
def count(hub: GitHub) -> Callable[[str, str], int]:
    """How many requests of this method went to a path that ends so."""
    return lambda method, ending: sum(
        one.method == method and one.path.endswith(ending) for one in hub.requests
    )


# Clones


@pytest.fixture
def token(hub: GitHub) -> str:
    return hub.token("whitesmoke-user")


@pytest.fixture
def source(repo: Repo, token: str) -> Source:
    return Source(repo.clone_url, "x-access-token", lambda: token)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "clones"


@pytest.fixture
def clones(folder: Path) -> Clones:
    return Clones(folder, 1 << 30)


@pytest.fixture
def fetches(hub: GitHub) -> Callable[[], int]:
    return lambda: sum(one.path.endswith("git-upload-pack") for one in hub.requests)
