"""Tokens of installations: one at a time, renewed before they end, and never told."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from github.Requester import HTTPRequestsConnectionClass
from pydantic import SecretStr

from reviewer.errors import ConfigError
from service.forge.base import ForgeError, Permission
from service.forge.github import locate_git, make_github
from service.forge.github.forge import GitHubForge
from service.settings import ServerSettings
from tests.service.forge_github.connect import Connect
from tests.standin.github import GitHub, Repo
from tests.standin.github.state import App

Count = Callable[[str, str], int]


def test_one_token_serves_an_installation_and_all_its_repositories(
    forge: GitHubForge, hub: GitHub, repo: Repo, count: Count
) -> None:
    hub.create_repo("acme/lib")
    for name in ("acme/app", "acme/lib", "ACME/app"):
        assert list(forge.open_pulls(name)) == []
    assert count("POST", "/access_tokens") == 1


def test_each_installation_has_its_own_token(forge: GitHubForge, hub: GitHub, app: App, count: Count) -> None:
    hub.install(app, "globex")
    hub.create_repo("globex/private", private=True)
    assert list(forge.open_pulls("acme/app")) == []
    assert list(forge.open_pulls("globex/private")) == []
    assert count("POST", "/access_tokens") == 2


def test_a_token_is_renewed_before_it_ends(
    hub: GitHub, app: App, repo: Repo, connect: Connect, count: Count
) -> None:
    later = 0.0
    connect.clock = lambda: time.time() + later
    forge = connect.app(hub, app)
    list(forge.open_pulls("acme/app"))
    later = 3600 - 330
    list(forge.open_pulls("acme/app"))
    assert count("POST", "/access_tokens") == 1
    later = 3600 - 270
    list(forge.open_pulls("acme/app"))
    assert count("POST", "/access_tokens") == 2


def test_a_token_that_github_ended_is_renewed_and_the_call_made_once(
    forge: GitHubForge, hub: GitHub, repo: Repo, count: Count
) -> None:
    pull = repo.open_pull(files={"a.py": "x\n"})
    forge.pull("acme/app", 1)
    hub.world.tokens.clear()
    forge.create_comment("acme/app", 1, "hello")
    assert [one.body for one in pull.comments] == ["hello"]
    assert count("POST", "/access_tokens") == 2


def test_threads_that_need_a_token_at_once_share_one(forge: GitHubForge, repo: Repo, count: Count) -> None:
    for number in range(8):
        repo.open_pull(branch=f"topic-{number}", files={"a.py": f"{number}\n"}, title=f"Pull {number + 1}")
    with ThreadPoolExecutor(8) as pool:
        titles = list(pool.map(lambda number: forge.pull("acme/app", number).title, range(1, 9)))
    assert titles == [f"Pull {number}" for number in range(1, 9)]
    assert count("POST", "/access_tokens") == 1


def test_no_thread_gets_the_answer_to_another_ones_question(
    forge: GitHubForge, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    roles = ("none", "read", "triage", "write")
    for role in roles:
        repo.grant(f"{role}-user", role)
    prepare = HTTPRequestsConnectionClass.request

    def prepare_slowly(*arguments: Any) -> None:
        prepare(*arguments)
        time.sleep(0.01)

    monkeypatch.setattr(HTTPRequestsConnectionClass, "request", prepare_slowly)
    asked = [f"{role}-user" for role in roles] * 4
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda login: forge.permission("acme/app", login), asked))
    assert got == [Permission(number) for number in range(4)] * 4


def test_asking_for_a_token_survives_a_failure(forge: GitHubForge, hub: GitHub, count: Count) -> None:
    hub.fail("POST /app/installations/*/access_tokens", 502)
    assert list(forge.open_pulls("acme/app")) == []
    assert count("POST", "/access_tokens") == 2


def test_a_repository_without_the_app_says_so(forge: GitHubForge, hub: GitHub) -> None:
    hub.create_repo("globex/other")
    with pytest.raises(ForgeError, match="not installed on globex/other; install it") as refused:
        list(forge.open_pulls("globex/other"))
    assert (refused.value.status, refused.value.retry_after) == (404, None)


def test_an_installation_made_anew_is_found(forge: GitHubForge, hub: GitHub, app: App, repo: Repo) -> None:
    assert list(forge.open_pulls("acme/app")) == []
    hub.world.installations.clear()
    hub.world.tokens.clear()
    hub.install(app, "acme")
    with pytest.raises(ForgeError, match="not installed"):
        list(forge.open_pulls("acme/app"))
    assert list(forge.open_pulls("acme/app")) == []


def test_no_token_or_key_is_logged(
    forge: GitHubForge, hub: GitHub, repo: Repo, caplog: pytest.LogCaptureFixture
) -> None:
    repo.open_pull(files={"a.py": "x\n"})
    with caplog.at_level(logging.DEBUG), caplog.at_level(logging.DEBUG, logger="github"):
        forge.me("acme/app")
        with forge.checkout(forge.pull("acme/app", 1)):
            pass
    assert caplog.text
    sent = {one.headers.get("authorization", "").partition(" ")[2] for one in hub.requests} - {""}
    assert len(sent) >= 3
    assert not [secret for secret in (*sent, *hub.world.tokens) if secret in caplog.text]


# From the settings


def settings(tmp_path: Path, hub: GitHub, **more: object) -> ServerSettings:
    return ServerSettings(data=tmp_path, github_url=hub.api_url, **more)  # type: ignore[arg-type]


def test_an_app_is_made_from_the_settings(tmp_path: Path, hub: GitHub, app: App, repo: Repo) -> None:
    key = tmp_path / "key.pem"
    key.write_text(app.private_key)
    forge = make_github(settings(tmp_path, hub, github_app_id=app.id, github_key=key))
    assert list(forge.open_pulls("acme/app")) == []


def test_a_user_is_made_from_the_settings(tmp_path: Path, hub: GitHub, repo: Repo) -> None:
    forge = make_github(settings(tmp_path, hub, github_token=SecretStr(hub.token("bob"))))
    assert forge.me("acme/app").login == "bob"


def test_settings_that_sign_nobody_in_are_told(tmp_path: Path, hub: GitHub) -> None:
    with pytest.raises(ConfigError, match="WHITESMOKE_GITHUB_TOKEN"):
        make_github(settings(tmp_path, hub))
    with pytest.raises(ConfigError, match="WHITESMOKE_GITHUB_KEY"):
        make_github(settings(tmp_path, hub, github_app_id=7))
    with pytest.raises(ConfigError, match=r"cannot read .*none\.pem"):
        make_github(settings(tmp_path, hub, github_app_id=7, github_key=tmp_path / "none.pem"))
    garbled = tmp_path / "garbled.pem"
    garbled.write_text("-----BEGIN RSA PRIVATE KEY-----\nno\n-----END RSA PRIVATE KEY-----\n")
    with pytest.raises(ConfigError, match=r"garbled\.pem is not an App's private key"):
        make_github(settings(tmp_path, hub, github_app_id=7, github_key=garbled))


@pytest.mark.parametrize(
    ("api", "git"),
    [
        ("https://api.github.com", "https://github.com"),
        ("https://api.octo.ghe.com/", "https://octo.ghe.com"),
        ("https://git.example.org/api/v3", "https://git.example.org"),
        ("https://git.example.org:8443/api/v3/", "https://git.example.org:8443"),
    ],
)
def test_repositories_are_cloned_from_beside_the_api(api: str, git: str) -> None:
    assert locate_git(api) == git


@pytest.mark.parametrize(
    "api", ["", "api.github.com", "ftp://api.github.com", "https://user:pw@api.github.com"]
)
def test_an_address_that_is_none_is_told(api: str) -> None:
    with pytest.raises(ConfigError, match="WHITESMOKE_GITHUB_URL"):
        locate_git(api)
