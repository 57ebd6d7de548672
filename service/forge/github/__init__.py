"""The GitHub forge: `make_github` builds it from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from reviewer.errors import ConfigError

if TYPE_CHECKING:
    from service.forge.base import Forge
    from service.forge.github.credentials import Credentials
    from service.forge.github.transport import Transport
    from service.settings import ServerSettings

__all__ = ["make_github"]


def make_github(settings: ServerSettings) -> Forge:
    """The forge that the settings name; nothing is asked of GitHub yet. Make one in each process.

    Raises `ConfigError` for an address or a key that cannot be used.
    """
    # PyGithub takes its time to import.
    from service.forge.clones import Clones
    from service.forge.github.client import Client
    from service.forge.github.forge import GitHubForge
    from service.forge.github.transport import Transport

    transport = Transport(settings.github_url)
    client = Client(transport, _credentials(settings, transport))
    clones = Clones(settings.data / "clones", settings.disk_limit_mb << 20)
    return GitHubForge(client, clones, locate_git(settings.github_url))


def locate_git(api_url: str) -> str:
    """Where repositories are cloned from: https://api.github.com serves https://github.com, and an Enterprise
    Server's https://HOST/api/v3 serves https://HOST."""
    parts = urlsplit(api_url)
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.username or parts.password:
        raise ConfigError(
            "WHITESMOKE_GITHUB_URL is not the address of an API",
            "give https://api.github.com, or https://HOST/api/v3",
        )
    host = parts.netloc.removeprefix("api.")
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/").removesuffix("/api/v3"), "", ""))


def _credentials(settings: ServerSettings, transport: Transport) -> Credentials:
    from service.forge.github.credentials import AppKey, UserToken

    if settings.github_app_id is None:
        token = settings.github_token.get_secret_value().strip()
        if not token:
            raise ConfigError(
                "no way to sign in to GitHub is configured",
                "set WHITESMOKE_GITHUB_APP_ID and WHITESMOKE_GITHUB_KEY, or WHITESMOKE_GITHUB_TOKEN",
            )
        return UserToken(token)
    if settings.github_key is None:
        raise ConfigError(
            f"the GitHub App {settings.github_app_id} has no key", "set WHITESMOKE_GITHUB_KEY to its PEM file"
        )
    try:
        key = AppKey(settings.github_app_id, settings.github_key.read_text(), transport)
        key.own_authorization()
    except OSError as error:
        raise ConfigError(
            f"cannot read the key {settings.github_key}: {error.strerror}", "check the file's permissions"
        ) from error
    except Exception as error:
        raise ConfigError(
            f"{settings.github_key} is not an App's private key", "download it again from the App's page"
        ) from error
    return key
