from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from github import Auth, Github, GithubIntegration

from tests.standin.github import GitHub, Repo
from tests.standin.github.fixture import hub
from tests.standin.github.state import App

__all__ = ["hub"]

# PyGithub waits and retries by itself unless told not to.
_EAGER: dict[str, Any] = {"retry": None, "seconds_between_requests": 0, "seconds_between_writes": 0}

TEXT = "".join(f"line {number}\n" for number in range(1, 61))


@pytest.fixture
def repo(hub: GitHub) -> Repo:
    return hub.create_repo("acme/app", files={"a.py": TEXT, "b.py": "b\n"})


@pytest.fixture
def client(hub: GitHub) -> Iterator[Callable[[str], Github]]:
    """PyGithub with a user's personal token; it does not retry by itself."""
    opened = []

    def open_for(login: str) -> Github:
        made = Github(
            auth=Auth.Token(hub.token(login)),
            base_url=hub.api_url,
            **_EAGER,
        )
        opened.append(made)
        return made

    yield open_for
    for one in opened:
        one.close()


@pytest.fixture
def as_app(hub: GitHub) -> Callable[[App], Github]:
    """PyGithub as the first installation of an app."""

    def open_for(app: App) -> Github:
        auth = Auth.AppAuth(app.id, app.private_key)
        integration = GithubIntegration(auth=auth, base_url=hub.api_url, **_EAGER)
        installation = auth.get_installation_auth(
            integration.get_installations()[0].id, requester=integration.requester
        )
        return Github(auth=installation, base_url=hub.api_url, **_EAGER)

    return open_for
