"""Users, apps, labels and times: what everything else is made of."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any
from urllib.parse import quote

from tests.standin.github.state import App, Label, Reaction, Repository, User, World

Json = dict[str, Any]

REACTIONS = ("+1", "-1", "laugh", "confused", "heart", "hooray", "rocket", "eyes")


def time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def node_id(kind: str, number: int) -> str:
    return f"{kind}_{base64.urlsafe_b64encode(str(number).encode()).decode().rstrip('=')}"


def read_node_id(text: str) -> tuple[str, int]:
    """(kind, id); raises ValueError where it is not one of ours."""
    kind, _, coded = text.partition("_")
    return kind, int(base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)))


def user(world: World, one: User) -> Json:
    url = f"{world.api_url}/users/{quote(one.login)}"
    page = one.login.removesuffix("[bot]")
    return {
        "login": one.login,
        "id": one.id,
        "node_id": node_id("U", one.id),
        "avatar_url": f"{world.html_url}/avatars/u/{one.id}",
        "gravatar_id": "",
        "url": url,
        "html_url": f"{world.html_url}/{'apps/' if one.type == 'Bot' else ''}{page}",
        "followers_url": f"{url}/followers",
        "following_url": f"{url}/following{{/other_user}}",
        "gists_url": f"{url}/gists{{/gist_id}}",
        "starred_url": f"{url}/starred{{/owner}}{{/repo}}",
        "subscriptions_url": f"{url}/subscriptions",
        "organizations_url": f"{url}/orgs",
        "repos_url": f"{url}/repos",
        "events_url": f"{url}/events{{/privacy}}",
        "received_events_url": f"{url}/received_events",
        "type": one.type,
        "site_admin": False,
    }


def app(world: World, one: App) -> Json:
    return {
        "id": one.id,
        "slug": one.slug,
        "node_id": node_id("A", one.id),
        "owner": user(world, one.owner),
        "name": one.slug,
        "description": "",
        "external_url": "https://example.org",
        "html_url": f"{world.html_url}/apps/{one.slug}",
        "created_at": time(one.created_at),
        "updated_at": time(one.created_at),
        "permissions": {"metadata": "read", **one.permissions},
        "events": list(one.events),
    }


def label(world: World, repo: Repository, one: Label) -> Json:
    return {
        "id": one.id,
        "node_id": node_id("LA", one.id),
        "url": f"{world.api_url}/repos/{repo.full_name}/labels/{quote(one.name)}",
        "name": one.name,
        "color": one.color,
        "default": False,
        "description": one.description,
    }


def reaction(world: World, one: Reaction) -> Json:
    return {
        "id": one.id,
        "node_id": node_id("REA", one.id),
        "user": user(world, one.user),
        "content": one.content,
        "created_at": time(one.created_at),
    }


def reactions(url: str, given: list[Reaction]) -> Json:
    counts = {name: sum(one.content == name for one in given) for name in REACTIONS}
    return {"url": f"{url}/reactions", "total_count": len(given), **counts}


def association(repo: Repository, one: User) -> str:
    if one is repo.owner:
        return "OWNER"
    if repo.roles.get(one.login.lower(), "none") != "none":
        return "COLLABORATOR"
    merged = any(pull.merged_at and pull.user is one for pull in repo.pulls.values())
    return "CONTRIBUTOR" if merged else "NONE"
