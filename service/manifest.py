"""The GitHub App that the service needs: permissions, events, and the manifest that creates it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from reviewer.errors import ConfigError
from service.events import EVENTS
from service.intake.webhook import PATH

PERMISSIONS = {
    "checks": "write",
    "contents": "read",
    "issues": "write",
    "metadata": "read",
    "pull_requests": "write",
}
"""By GitHub's names. An App makes check runs, so that it needs no commit statuses."""

RESOLVING_PERMISSIONS = {"contents": "write"}
"""GitHub resolves a thread for an App only if it may write contents; the service does so only to merge, where the
policy says `merge: {automatic: true}`."""

CI_PERMISSIONS = {"actions": "write"}
"""For approving workflow runs and starting them again, with `mode: native`."""

# GitHub sends these to every App and refuses them in a manifest.
_UNASKED = frozenset({"ping", "installation", "installation_repositories"})

APP_EVENTS = tuple(sorted(EVENTS - _UNASKED))

_LEVELS = ("none", "read", "write", "admin")
_LONGEST_NAME = 34


def make_manifest(name: str, url: str, *, resolve_threads: bool, ci: bool) -> dict[str, Any]:
    """What GitHub's "new App" page takes as `manifest`; `url` is the service's address as GitHub reaches it.

    Raises `ConfigError` for a name or an address that GitHub would refuse.
    """
    if not 1 <= len(name) <= _LONGEST_NAME:
        raise ConfigError(
            f"an App's name has 1 to {_LONGEST_NAME} characters, not {len(name)}", "choose another --name"
        )
    if not url.startswith(("https://", "http://")):
        raise ConfigError(
            f"{url!r} is not the service's address", "give --url https://HOST or set WHITESMOKE_PUBLIC_URL"
        )
    return {
        "name": name,
        "url": url,
        "hook_attributes": {"url": hook_url(url), "active": True},
        "public": False,
        "default_permissions": {
            **PERMISSIONS,
            **(RESOLVING_PERMISSIONS if resolve_threads else {}),
            **(CI_PERMISSIONS if ci else {}),
        },
        "default_events": list(APP_EVENTS),
    }


def make_link(web_url: str, organisation: str, manifest: dict[str, Any]) -> str:
    """The address of GitHub's "new App" form, filled in as the manifest says but for the webhook's secret.

    `organisation` is "" for an App of the person's own.
    """
    owner = f"/organizations/{quote(organisation, safe='')}" if organisation else ""
    fields = {
        "name": manifest["name"],
        "url": manifest["url"],
        "public": "false",
        "webhook_active": "true",
        "webhook_url": manifest["hook_attributes"]["url"],
        **manifest["default_permissions"],
        "events[]": manifest["default_events"],
    }
    return f"{web_url.rstrip('/')}{owner}/settings/apps/new?{urlencode(fields, doseq=True)}"


def hook_url(public_url: str) -> str:
    """Where GitHub delivers to."""
    return public_url.rstrip("/") + PATH


def missing_permissions(granted: dict[str, str]) -> list[str]:
    """What of `PERMISSIONS` is not there, as `checks: write`."""
    return [
        f"{name}: {level}"
        for name, level in PERMISSIONS.items()
        if _LEVELS.index(granted.get(name, "none")) < _LEVELS.index(level)
    ]
