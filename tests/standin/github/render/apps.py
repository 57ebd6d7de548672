"""Installations, their tokens, and webhook deliveries as the app sees them."""

from __future__ import annotations

from tests.standin.github.hooks import Delivery
from tests.standin.github.render.base import Json, time, user
from tests.standin.github.state import Installation, Token, World


def installation(world: World, one: Installation) -> Json:
    url = f"{world.api_url}/app/installations/{one.id}"
    return {
        "id": one.id,
        "account": user(world, one.account),
        "repository_selection": "all",
        "access_tokens_url": f"{url}/access_tokens",
        "repositories_url": f"{world.api_url}/installation/repositories",
        "html_url": f"{world.html_url}/settings/installations/{one.id}",
        "app_id": one.app.id,
        "app_slug": one.app.slug,
        "target_id": one.account.id,
        "target_type": one.account.type,
        "permissions": {"metadata": "read", **one.app.permissions},
        "events": list(one.app.events),
        "created_at": time(one.created_at),
        "updated_at": time(one.created_at),
        "single_file_name": None,
        "has_multiple_single_files": False,
        "single_file_paths": [],
        "suspended_by": None,
        "suspended_at": time(world.now()) if one.suspended else None,
    }


def token(one: Token) -> Json:
    return {
        "token": one.value,
        "expires_at": time(one.expires_at),
        "permissions": {"metadata": "read", **one.permissions},
        "repository_selection": "all",
    }


def delivery_item(one: Delivery) -> Json:
    return {
        "id": one.id,
        "guid": one.guid,
        "delivered_at": time(one.created_at),
        "redelivery": one.redelivery,
        "duration": one.duration,
        "status": one.status,
        "status_code": one.status_code,
        "event": one.event,
        "action": one.action,
        "installation_id": one.installation,
        "repository_id": one.repo.id if one.repo else None,
        "throttled_at": None,
    }


def delivery(one: Delivery) -> Json:
    return {
        **delivery_item(one),
        "url": one.hook.url,
        "request": {"headers": one.headers, "payload": one.payload},
        "response": {"headers": {}, "payload": one.response},
    }
