"""How an app proves who it is, and what it may do then."""

from __future__ import annotations

import time
from collections.abc import Callable

import jwt
import pytest
import requests
from github import Auth, Github, GithubException, GithubIntegration

from tests.standin.github import GitHub, Repo
from tests.standin.github.state import App

AsApp = Callable[[App], Github]


def ask(
    hub: GitHub, path: str, claims: dict[str, object], key: str, algorithm: str = "RS256"
) -> requests.Response:
    token = jwt.encode(claims, key, algorithm=algorithm)
    return requests.get(hub.api_url + path, headers={"Authorization": f"Bearer {token}"}, timeout=10)


def test_an_app_finds_its_installation_and_acts_as_its_bot(hub: GitHub, repo: Repo, as_app: AsApp) -> None:
    app = hub.create_app("smoke")
    hub.install(app, "acme")
    pull = repo.open_pull(files={"a.py": "a\n"})
    as_app(app).get_repo("acme/app").get_pull(1).create_issue_comment("hello")
    [comment] = pull.comments
    assert (comment.user.login, comment.user.type, comment.app) == ("smoke[bot]", "Bot", app)


def test_the_installation_of_a_repository_is_found_and_of_others_not(hub: GitHub, repo: Repo) -> None:
    hub.create_repo("other/app")
    app = hub.create_app()
    made = hub.install(app, "acme")
    seen = GithubIntegration(
        auth=Auth.AppAuth(app.id, app.private_key),
        base_url=hub.api_url,
        retry=None,
        seconds_between_requests=0,
    )
    assert seen.get_repo_installation("acme", "app").id == made.id
    assert seen.get_app().slug == "whitesmoke"
    with pytest.raises(GithubException, match="404"):
        seen.get_repo_installation("other", "app")


@pytest.mark.parametrize(
    ("issued", "lasts", "status"),
    [(-60, 600, 200), (0, 3600, 401), (-7200, 3600, 401), (600, 900, 401)],
)
def test_an_apps_token_is_accepted_for_its_time_and_ten_minutes_at_most(
    hub: GitHub, issued: int, lasts: int, status: int
) -> None:
    app = hub.create_app()
    now = int(time.time())
    claims = {"iat": now + issued, "exp": now + issued + lasts, "iss": str(app.id)}
    assert ask(hub, "/app", claims, app.private_key).status_code == status


def test_a_token_signed_by_another_key_or_method_is_refused(hub: GitHub) -> None:
    app, other = hub.create_app(), hub.create_app("other")
    now = int(time.time())
    claims = {"iat": now, "exp": now + 300, "iss": str(app.id)}
    assert ask(hub, "/app", claims, other.private_key).status_code == 401
    assert ask(hub, "/app", claims, "a secret that is long enough to sign with", "HS256").status_code == 401
    assert ask(hub, "/app", {**claims, "iss": "1"}, app.private_key).status_code == 401
    assert ask(hub, "/repos/acme/app", claims, app.private_key).status_code == 403


def test_an_installation_token_lasts_an_hour(hub: GitHub, repo: Repo) -> None:
    app = hub.create_app()
    made = hub.install(app, "acme")
    integration = GithubIntegration(
        auth=Auth.AppAuth(app.id, app.private_key), base_url=hub.api_url, retry=None
    )
    token = integration.get_access_token(made.id).token
    with Github(auth=Auth.Token(token), base_url=hub.api_url, retry=None, seconds_between_requests=0) as seen:
        assert seen.get_repo("acme/app").name == "app"
        hub.pass_time(3601)
        with pytest.raises(GithubException, match="401"):
            seen.get_repo("acme/app")


def test_an_app_may_do_what_it_was_given_and_no_more(hub: GitHub, repo: Repo, as_app: AsApp) -> None:
    app = hub.create_app(permissions={"pull_requests": "read", "contents": "read"})
    hub.install(app, "acme")
    repo.open_pull(files={"a.py": "a\n"})
    seen = as_app(app).get_repo("acme/app")
    pull = seen.get_pull(1)
    assert pull.title == "A change"
    for refused in (
        lambda: pull.create_issue_comment("x"),
        lambda: seen.create_check_run("x", pull.head.sha),
        lambda: pull.create_review(body="x", event="COMMENT"),
        lambda: list(seen.get_workflow_runs()),
    ):
        with pytest.raises(GithubException, match="Resource not accessible by integration"):
            refused()


def test_an_app_does_nothing_where_it_is_not_installed(hub: GitHub, as_app: AsApp) -> None:
    hub.create_repo("other/open").open_pull(files={"a.py": "a\n"})
    hub.create_repo("other/closed", private=True)
    app = hub.create_app()
    hub.install(app, "acme")
    seen = as_app(app)
    with pytest.raises(GithubException, match="403"):
        seen.get_repo("other/open").get_pull(1).create_issue_comment("x")
    with pytest.raises(GithubException, match="404"):
        seen.get_repo("other/closed")


def test_an_app_reads_where_its_webhooks_go_and_a_user_which_scopes_the_token_has(hub: GitHub) -> None:
    app = hub.create_app()
    hub.webhook("http://127.0.0.1:9/webhook", "s", app=app)
    now = int(time.time())
    shown = ask(
        hub, "/app/hook/config", {"iat": now, "exp": now + 60, "iss": str(app.id)}, app.private_key
    ).json()
    assert (shown["url"], shown["secret"]) == ("http://127.0.0.1:9/webhook", "********")
    assert requests.get(f"{hub.api_url}/apps/whitesmoke", timeout=10).json()["id"] == app.id
    mine = requests.get(
        f"{hub.api_url}/user", headers={"Authorization": f"token {hub.token('bob')}"}, timeout=10
    )
    assert mine.headers["X-OAuth-Scopes"] == "repo"


@pytest.mark.parametrize("header", ["token nonsense", "Bearer nonsense", "Digest x"])
def test_bad_credentials_are_401(hub: GitHub, header: str) -> None:
    answer = requests.get(f"{hub.api_url}/user", headers={"Authorization": header}, timeout=10)
    assert (answer.status_code, answer.json()["message"]) == (401, "Bad credentials")
