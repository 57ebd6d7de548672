"""The app itself: installations, tokens, deliveries of its webhook, and rate limits."""

from __future__ import annotations

from tests.standin.github.answer import Answer, Refused, not_found
from tests.standin.github.auth import issue_token
from tests.standin.github.hooks import Delivery
from tests.standin.github.render import apps, base, repos
from tests.standin.github.routing import Call, route
from tests.standin.github.state import App, Installation

_DELIVERIES = "/app/hook/deliveries"


@route("GET /rate_limit")
def rate_limit(call: Call) -> Answer:
    return Answer(200, call.limits.overview(call.actor))


@route("GET /app", role="app")
def get_app(call: Call) -> Answer:
    app = _app(call)
    count = len(_installations(call))
    return Answer(200, {**base.app(call.world, app), "installations_count": count})


@route("GET /apps/{app_slug}")
def get_app_by_slug(call: Call) -> Answer:
    found = next((one for one in call.world.apps.values() if one.slug == call.params["app_slug"]), None)
    if found is None:
        raise not_found()
    return Answer(200, base.app(call.world, found))


@route("GET /app/hook/config", role="app")
def get_hook_config(call: Call) -> Answer:
    app = _app(call)
    hook = next((one for one in call.hooks.hooks if one.app is app), None)
    shown = {"content_type": "json", "insecure_ssl": "0"}
    # The secret is shown as stars, where there is one.
    return Answer(200, shown if hook is None else {**shown, "url": hook.url, "secret": "********"})


@route("GET /app/installations", role="app")
def list_installations(call: Call) -> Answer:
    return call.page(_installations(call), lambda one: apps.installation(call.world, one))


@route("GET /app/installations/{installation_id}", role="app")
def get_installation(call: Call) -> Answer:
    return Answer(200, apps.installation(call.world, _installation(call)))


@route("GET /repos/{owner}/{repo}/installation", role="app")
def installation_of_repo(call: Call) -> Answer:
    app = _app(call)
    repo = call.world.repos.get(f"{call.params['owner']}/{call.params['repo']}".lower())
    found = next(
        (one for one in call.world.installations if one.app is app and repo and one.account is repo.owner),
        None,
    )
    if found is None:
        raise not_found()
    return Answer(200, apps.installation(call.world, found))


@route("POST /app/installations/{installation_id}/access_tokens", role="app")
def create_token(call: Call) -> Answer:
    found = _installation(call)
    if found.suspended:
        raise Refused(403, "This installation has been suspended")
    made = issue_token(call.world, found.app.bot, found)
    for name, level in (call.body.get("permissions") or {}).items():
        if found.app.permissions.get(name) not in (level, "write"):
            raise Refused(422, "The permissions requested are not granted to this installation.")
        made.permissions = dict(call.body["permissions"])
    return Answer(201, apps.token(made))


@route("GET /installation/repositories")
def list_repositories(call: Call) -> Answer:
    if call.actor.installation is None:
        raise Refused(403, "You must authenticate with an installation access token")
    account = call.actor.installation.account
    found = [one for one in call.world.repos.values() if one.owner is account]
    return call.page(found, lambda one: repos.repository(call.world, one), "repositories")


@route(f"GET {_DELIVERIES}", role="app")
def list_deliveries(call: Call) -> Answer:
    found = [one for one in reversed(_deliveries(call)) if one.status_code]
    wanted = call.query.get("status")
    if wanted:
        found = [one for one in found if (wanted == "success") == (one.status_code < 400)]
    size = max(1, min(int(call.query.get("per_page", 30)), 100))
    start = int(call.query["cursor"].removeprefix("v1_")) if "cursor" in call.query else 0
    shown = [apps.delivery_item(one) for one in found[start : start + size]]
    headers = {}
    if start + size < len(found):
        # This list goes by cursor, not by page.
        headers["Link"] = f'<{call.url}?per_page={size}&cursor=v1_{start + size}>; rel="next"'
    return Answer(200, shown, headers)


@route(f"GET {_DELIVERIES}/{{delivery_id}}", role="app")
def get_delivery(call: Call) -> Answer:
    return Answer(200, apps.delivery(_delivery(call)))


@route(f"POST {_DELIVERIES}/{{delivery_id}}/attempts", role="app")
def redeliver(call: Call) -> Answer:
    call.hooks.redeliver(_delivery(call))
    return Answer(202, {})


def _app(call: Call) -> App:
    if call.actor.app is None or call.actor.installation is not None:
        raise Refused(401, "A JSON web token could not be decoded")
    return call.actor.app


def _installations(call: Call) -> list[Installation]:
    app = _app(call)
    return [one for one in call.world.installations if one.app is app]


def _installation(call: Call) -> Installation:
    wanted = call.integer(call.params["installation_id"])
    found = next((one for one in _installations(call) if one.id == wanted), None)
    if found is None:
        raise not_found()
    return found


def _deliveries(call: Call) -> list[Delivery]:
    app = _app(call)
    return [one for one in call.hooks.deliveries if one.hook.app is app]


def _delivery(call: Call) -> Delivery:
    wanted = call.integer(call.params["delivery_id"])
    found = next((one for one in _deliveries(call) if one.id == wanted), None)
    if found is None:
        raise not_found()
    return found
