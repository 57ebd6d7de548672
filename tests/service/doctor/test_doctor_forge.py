"""What the doctor says of GitHub, as an App and with a token, and of a local repository."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.doctor import Finding, diagnose
from service.doctor.forge import check_scopes
from service.manifest import APP_EVENTS, PERMISSIONS
from tests.kit.checkouts import Repo as GitRepo
from tests.service.doctor.conftest import SECRET, Settings
from tests.standin.github import GitHub
from tests.standin.github.state import App

HOOK = "http://127.0.0.1:1/webhook"
PUBLIC = "http://127.0.0.1:1"

Look = Callable[[App], list[Finding]]


def create(
    hub: GitHub, permissions: dict[str, str] = PERMISSIONS, events: tuple[str, ...] = APP_EVENTS
) -> App:
    return hub.create_app(permissions=permissions, events=events)


@pytest.fixture
def look(hub: GitHub, settings: Settings, tmp_path: Path) -> Look:
    def look(app: App, **more: Any) -> list[Finding]:
        key = tmp_path / "key.pem"
        key.write_text(app.private_key)
        given = {"github_url": hub.api_url, "github_app_id": app.id, "github_key": key, "public_url": PUBLIC}
        return list(diagnose(settings(**{**given, **more}), ["forge"]))

    return look


def told(found: list[Finding]) -> list[str]:
    """What is not ok."""
    return [f"{one.level}: {one.said}; {one.remedy}" for one in found if one.level != "ok"]


# As an App


def test_an_app_made_from_the_manifest_is_ok(hub: GitHub, look: Look) -> None:
    app = create(hub)
    hub.webhook(HOOK, SECRET, app=app)
    hub.hooks.hold()
    hub.install(app, "acme")
    found = look(app)
    assert told(found) == []
    said = "\n".join(one.said for one in found)
    assert "GitHub knows the App whitesmoke" in said
    assert f"the webhook goes to {HOOK}; nothing was sent yet" in said
    assert "installed on acme (all repositories) with all permissions" in said


@pytest.mark.parametrize("name", [name for name in PERMISSIONS if name != "metadata"])
def test_a_permission_that_the_app_does_not_ask_for_is_named(hub: GitHub, look: Look, name: str) -> None:
    lowered = {"write": "read", "read": "none"}[PERMISSIONS[name]]
    permissions = {**PERMISSIONS, name: lowered}
    if lowered == "none":
        del permissions[name]
    app = create(hub, permissions)
    hub.webhook(HOOK, SECRET, app=app)
    hub.hooks.hold()
    hub.install(app, "acme")
    asked, granted = told(look(app))
    assert f"problem: the App does not ask for {name}: {PERMISSIONS[name]};" in asked
    assert f"problem: acme has not granted {name}: {PERMISSIONS[name]};" in granted


@pytest.mark.parametrize("name", APP_EVENTS)
def test_an_event_that_the_app_is_not_told_of_is_named(hub: GitHub, look: Look, name: str) -> None:
    app = create(hub, events=tuple(one for one in APP_EVENTS if one != name))
    hub.webhook(HOOK, SECRET, app=app)
    hub.hooks.hold()
    hub.install(app, "acme")
    (problem,) = told(look(app))
    assert f"problem: the App is not told of {name}; subscribe to that" in problem


def test_threads_that_cannot_be_resolved_are_mentioned(hub: GitHub, look: Look) -> None:
    assert "they stay open" in str(look(create(hub)))
    assert "they stay open" not in str(look(create(hub, {**PERMISSIONS, "contents": "write"})))


def test_workflows_that_cannot_be_started_are_mentioned(hub: GitHub, look: Look) -> None:
    assert "mode: native" in str(look(create(hub)))
    assert "mode: native" not in str(look(create(hub, {**PERMISSIONS, "actions": "write"})))


def test_an_app_that_is_installed_nowhere_is_a_problem(hub: GitHub, look: Look) -> None:
    app = create(hub)
    hub.webhook(HOOK, SECRET, app=app)
    (problem,) = told(look(app))
    assert "installed nowhere; install it from http" in problem


def test_a_suspended_installation_is_a_problem(hub: GitHub, look: Look) -> None:
    app = create(hub)
    hub.webhook(HOOK, SECRET, app=app)
    hub.hooks.hold()
    hub.install(app, "acme").suspended = True
    (problem,) = told(look(app))
    assert "acme has suspended the App" in problem


def test_an_app_without_a_webhook_is_a_problem(hub: GitHub, look: Look) -> None:
    app = create(hub)
    hub.install(app, "acme")
    (problem,) = told(look(app))
    assert f"the App has no webhook; make it active, with the URL {HOOK}" in problem


def test_a_webhook_that_goes_elsewhere_is_a_problem(hub: GitHub, look: Look) -> None:
    app = create(hub)
    hub.webhook("http://127.0.0.1:1/other", SECRET, app=app)
    hub.hooks.hold()
    hub.install(app, "acme")
    (problem,) = told(look(app))
    assert f"goes to http://127.0.0.1:1/other; set it to {HOOK}" in problem


def test_a_delivery_that_did_not_arrive_is_told(hub: GitHub, look: Look) -> None:
    app = create(hub)
    hub.webhook(HOOK, SECRET, app=app)
    hub.install(app, "acme")
    hub.hooks.settle()
    (warning,) = told(look(app))
    assert f"warning: the newest delivery to {HOOK} failed" in warning


def test_a_key_of_another_app_is_a_problem(hub: GitHub, look: Look) -> None:
    app, other = create(hub), hub.create_app("other")
    other.id = app.id
    (problem,) = told(look(other))
    assert "GitHub answered 401 to GET /app" in problem
    assert "check the token, or the App's id and key" in problem


def test_a_key_that_is_none_is_a_problem(hub: GitHub, look: Look, tmp_path: Path) -> None:
    (problem,) = told(look(create(hub), github_key=tmp_path / "none.pem"))
    assert "cannot read the key" in problem


def test_a_github_that_is_down_is_a_problem(hub: GitHub, look: Look) -> None:
    app = create(hub)
    hub.fail("GET /app", 503, times=9)
    (problem,) = told(look(app))
    assert "GitHub answered 503 to GET /app" in problem


def test_nothing_prints_the_key(hub: GitHub, look: Look) -> None:
    app = create(hub)
    assert "PRIVATE KEY" not in str(look(app))
    assert app.private_key.splitlines()[1] not in str(look(app))


# With a token


def with_token(hub: GitHub, settings: Settings, **more: Any) -> list[Finding]:
    given = {"github_url": hub.api_url, "github_token": hub.token("whitesmoke-user"), **more}
    return list(diagnose(settings(**given), ["forge"]))


def test_a_token_that_may_write_is_ok(hub: GitHub, settings: Settings) -> None:
    hub.create_repo("acme/app").grant("whitesmoke-user", "write")
    found = with_token(hub, settings, repositories=("acme/app",))
    assert told(found) == []
    said = "\n".join(one.said for one in found)
    assert "the token's owner whitesmoke-user" in said
    assert "whitesmoke-user may write to acme/app" in said
    assert "https://smoke.example/webhook must be told of check_run" in said


def test_a_token_that_may_not_write_is_a_problem(hub: GitHub, settings: Settings) -> None:
    hub.create_repo("acme/app")
    hub.create_repo("acme/hidden", private=True)
    public, hidden, absent = told(
        with_token(hub, settings, repositories=("acme/app", "acme/hidden", "acme/none"))
    )
    assert "whitesmoke-user may not write to acme/app" in public
    assert "does not open acme/hidden" in hidden
    assert "does not open acme/none" in absent


def test_a_token_that_is_not_valid_is_a_problem_told_without_it(hub: GitHub, settings: Settings) -> None:
    (problem,) = told(with_token(hub, settings, github_token="ghp_thisoneisnotatoken"))
    assert "GitHub answered 401 to GET /user" in problem
    assert "thisoneisnotatoken" not in problem


def test_a_token_without_repositories_is_told(hub: GitHub, settings: Settings) -> None:
    (warning,) = told(with_token(hub, settings))
    assert "set WHITESMOKE_REPOSITORIES" in warning


@pytest.mark.parametrize(
    ("header", "levels"),
    [
        (None, []),
        ("repo, workflow", []),
        ("public_repo", ["warning"]),
        ("gist", ["problem"]),
        ("", ["problem"]),
    ],
)
def test_the_scopes_of_a_classic_token(header: str | None, levels: list[str]) -> None:
    assert [level for level, _, _ in check_scopes(header)] == levels


# Local


def test_a_local_repository_opens(settings: Settings, tmp_path: Path) -> None:
    GitRepo(tmp_path / "repo").commit({"a.py": "x = 1\n"}, "start")
    (found,) = diagnose(settings(forge="local", local_repository=tmp_path / "repo"), ["forge"])
    assert (found.level, found.said) == ("ok", f"{tmp_path / 'repo'} opens")


def test_a_folder_without_a_repository_is_a_problem(settings: Settings, tmp_path: Path) -> None:
    (problem,) = told(list(diagnose(settings(forge="local", local_repository=tmp_path), ["forge"])))
    assert "not a git repository" in problem
    (problem,) = told(list(diagnose(settings(forge="local"), ["forge"])))
    assert "set WHITESMOKE_LOCAL_REPOSITORY" in problem
