"""The forge: whether it lets the service in, and to all that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from reviewer.errors import ConfigError
from service.doctor.findings import Level, Seen
from service.forge.base import Forge, ForgeError, Permission
from service.manifest import APP_EVENTS, CI_PERMISSIONS, RESOLVING_PERMISSIONS, hook_url, missing_permissions
from service.settings import ServerSettings

if TYPE_CHECKING:
    from service.forge.github.client import Client

_MOST_INSTALLATIONS = 20
_MOST_REPOSITORIES = 20


def check_local(settings: ServerSettings) -> Iterator[Seen]:
    from service.forge.local_git import LocalRepository

    folder = settings.local_repository
    if folder is None:
        raise ConfigError("the local forge has no repository", "set WHITESMOKE_LOCAL_REPOSITORY")
    LocalRepository(folder)
    yield "ok", f"{folder} opens", ""


def check_github(settings: ServerSettings) -> Iterator[Seen]:
    from service.forge.github import make_github
    from service.forge.github.client import Client
    from service.forge.github.credentials import AppKey, UserToken
    from service.forge.github.transport import Transport

    # Refuses what the settings get wrong, in the words that the service would.
    forge = make_github(settings)
    transport = Transport(settings.github_url)
    if settings.github_app_id is not None and settings.github_key is not None:
        key = AppKey(settings.github_app_id, settings.github_key.read_text(), transport)
        yield from _check_app(Client(transport, key), settings)
    else:
        token = UserToken(settings.github_token.get_secret_value().strip())
        login = forge.me("").login
        yield "ok", f"GitHub knows the token's owner {login}", ""
        answer = transport.request("GET", "/user", token.own_authorization())
        yield from check_scopes(answer.headers.get("x-oauth-scopes"))
        yield from _check_repositories(forge, login, settings)


def _check_app(client: Client, settings: ServerSettings) -> Iterator[Seen]:
    app = client.get(None, "/app")
    yield "ok", f"GitHub knows the App {app['slug']}", ""
    yield from _check_asked(app)
    yield from _check_hook(client, settings)
    installed = list(islice(client.pages(None, "/app/installations"), _MOST_INSTALLATIONS))
    if not installed:
        yield "problem", f"the App {app['slug']} is installed nowhere", f"install it from {app['html_url']}"
    for one in installed:
        yield from _check_installation(one)


def _check_asked(app: Mapping[str, Any]) -> Iterator[Seen]:
    page = "on its page at GitHub, under Permissions & events"
    if missing := missing_permissions(app["permissions"]):
        yield "problem", f"the App does not ask for {', '.join(missing)}", f"add that {page}"
    if unheard := [name for name in APP_EVENTS if name not in app["events"]]:
        yield "problem", f"the App is not told of {', '.join(unheard)}", f"subscribe to that {page}"
    if any(app["permissions"].get(name) != level for name, level in RESOLVING_PERMISSIONS.items()):
        yield (
            "ok",
            "without contents: write GitHub lets no App resolve threads or merge: they stay open, and "
            "`merge: {automatic: true}` merges nothing",
            "",
        )
    if any(app["permissions"].get(name) != level for name, level in CI_PERMISSIONS.items()):
        yield (
            "ok",
            "without actions: write GitHub lets no App start workflows: `mode: native` cannot work",
            "",
        )


def _check_hook(client: Client, settings: ServerSettings) -> Iterator[Seen]:
    hook = client.get(None, "/app/hook/config")
    url = hook.get("url")
    if not url:
        wanted = hook_url(settings.public_url or "https://HOST")
        yield "problem", "the App has no webhook", f"make it active, with the URL {wanted}"
        return
    if settings.public_url and url != hook_url(settings.public_url):
        yield "problem", f"the webhook goes to {url}", f"set it to {hook_url(settings.public_url)}"
    if not hook.get("secret"):
        yield (
            "problem",
            "the webhook has no secret at GitHub",
            "enter there what WHITESMOKE_WEBHOOK_SECRET is",
        )
    if hook.get("content_type") != "json":
        yield "problem", "the webhook sends forms", "set its content type to application/json"
    if str(hook.get("insecure_ssl", "0")) != "0":
        yield "warning", "GitHub does not check the certificate of the webhook's address", "let it check"
    newest = next(client.pages(None, "/app/hook/deliveries"), None)
    if newest is None:
        yield "ok", f"the webhook goes to {url}; nothing was sent yet", ""
    elif 200 <= newest["status_code"] < 300:
        yield "ok", f"the webhook goes to {url}, and the newest delivery arrived", ""
    else:
        yield (
            "warning",
            f"the newest delivery to {url} failed: {newest['status_code']} {newest['status']}",
            "start the service, and compare the secrets where the status is 401",
        )


def _check_installation(one: Mapping[str, Any]) -> Iterator[Seen]:
    account = (one.get("account") or {}).get("login", one["id"])
    if one.get("suspended_at"):
        yield "problem", f"{account} has suspended the App", f"ask for it at {one['html_url']}"
        return
    missing = missing_permissions(one["permissions"])
    if missing:
        yield (
            "problem",
            f"{account} has not granted {', '.join(missing)}",
            f"accept the new permissions at {one['html_url']}",
        )
    else:
        chosen = "all repositories" if one["repository_selection"] == "all" else "chosen repositories"
        yield "ok", f"installed on {account} ({chosen}) with all permissions", ""


def check_scopes(header: str | None) -> Iterator[Seen]:
    """By X-OAuth-Scopes, which GitHub sends for classic tokens only."""
    if header is None:
        return
    scopes = {scope.strip() for scope in header.split(",")}
    if "repo" not in scopes:
        public = "public_repo" in scopes
        level: Level = "warning" if public else "problem"
        reach = "opens public repositories only" if public else "opens no repository"
        yield level, f"the token {reach}", "give it the scope repo"


def _check_repositories(forge: Forge, login: str, settings: ServerSettings) -> Iterator[Seen]:
    if not settings.repositories:
        yield (
            "warning",
            "no repository is named: what happens while the service is down is missed",
            "set WHITESMOKE_REPOSITORIES to owner/name",
        )
    for name in settings.repositories[:_MOST_REPOSITORIES]:
        yield _check_rights(forge, name, login)
    yield (
        "ok",
        f"GitHub cannot be asked for webhooks with a token: {hook_url(settings.public_url or 'https://HOST')} "
        f"must be told of {', '.join(APP_EVENTS)}",
        "",
    )


def _check_rights(forge: Forge, repo: str, login: str) -> Seen:
    try:
        right = forge.permission(repo, login)
    except ForgeError as error:
        # GitHub's answer to those who may not write.
        if error.status != 403:
            raise
        right = Permission.READ
    if right is Permission.NONE:
        return "problem", f"the token does not open {repo}", "check its name, and the token's access to it"
    if right < Permission.WRITE:
        return "problem", f"{login} may not write to {repo}", "grant it, since commit statuses need it"
    return "ok", f"{login} may write to {repo}", ""
