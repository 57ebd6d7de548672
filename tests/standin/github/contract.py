"""Holds every request, answer and webhook against what GitHub publishes about them."""

from __future__ import annotations

import functools
import json
import threading
from typing import Any

import jsonschema_rs

from tests.standin.github import corrections, openapi
from tests.standin.github.answer import Answer
from tests.standin.github.packages import installed
from tests.standin.github.routing import ROUTES, Call

Json = dict[str, Any]

# What GitHub answers on any operation without listing it there.
_ANYWHERE = (304, 400, 401, 403, 404, 406, 409, 422, 429, 500, 502, 503)


@functools.cache
def _description() -> Json:
    return openapi.load(one.name for one in ROUTES)


@functools.cache
def _registry() -> jsonschema_rs.Registry:
    return jsonschema_rs.Registry([(openapi.BASE, {"components": _description()["components"]})])


@functools.cache
def _validator(schema: str) -> Any:
    return jsonschema_rs.Draft202012Validator(json.loads(schema), registry=_registry(), validate_formats=True)


@functools.cache
def _events() -> Json:
    loaded: Json = json.loads((installed() / "@octokit/webhooks-schemas/schema.json").read_text())
    corrections.correct_events(loaded)
    return loaded


@functools.cache
def _event_validator(name: str) -> Any:
    schema = {"$ref": f"urn:events#/definitions/{name}"}
    registry = jsonschema_rs.Registry([("urn:events", _events())], draft=jsonschema_rs.Draft7)
    return jsonschema_rs.Draft7Validator(schema, registry=registry)


class Contract:
    """Collects `violations`; a test asserts that there are none. Does nothing where `enabled` is False."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.violations: list[str] = []
        self._lock = threading.Lock()

    def report(self, violation: str) -> None:
        with self._lock:
            self.violations.append(violation)

    def check_request(self, name: str, call: Call) -> bool:
        """Whether the request is as the description asks."""
        operation = self._operation(name)
        if operation is None:
            return True
        sound = True
        parameters = {one["name"]: one["schema"] for one in operation["parameters"] if one["in"] == "query"}
        for query, value in call.query.items():
            schema = parameters.get(query)
            if schema is None:
                self.report(f"{name}: unknown query parameter {query!r}")
            else:
                sound &= self._check(f"{name}: query parameter {query}", schema, _typed(schema, value))
        schema = operation["body"]
        if schema is None:
            if call.body:
                self.report(f"{name}: takes no body, got {sorted(call.body)}")
        elif call.body or operation["body_required"]:
            sound &= self._check(f"{name}: request body", schema, call.body)
        return sound

    def check_answer(self, name: str, answer: Answer) -> None:
        operation = self._operation(name)
        if operation is None:
            return
        content = operation["responses"].get(str(answer.status))
        if content is None:
            if answer.status not in _ANYWHERE:
                self.report(f"{name}: GitHub does not answer {answer.status}")
            return
        if isinstance(answer.body, bytes):
            return
        schema = next((one for media, one in content.items() if media.endswith("json")), None)
        if schema is not None:
            self._check(f"{name}: answer {answer.status}", schema, answer.body)
        elif answer.body is not None:
            self.report(f"{name}: answer {answer.status} has no body on GitHub")

    def check_event(self, event: str, payload: Json) -> None:
        if not self.enabled:
            return
        action = payload.get("action")
        name = f"{event}${action}" if action else f"{event}$event"
        if name not in _events()["definitions"]:
            self.report(f"webhook {event} has no action {action!r}")
            return
        for error in list(_event_validator(name).iter_errors(payload))[:3]:
            self.report(f"webhook {event} {action}: {error.message[:300]} at {error.instance_path}")

    def _operation(self, name: str) -> Json | None:
        if not self.enabled:
            return None
        found: Json | None = _description()["operations"].get(name)
        if found is None:
            self.report(f"{name}: GitHub's description has no such operation")
        return found

    def _check(self, what: str, schema: Json, value: Any) -> bool:
        errors = list(_validator(json.dumps(schema)).iter_errors(value))
        for error in errors[:3]:
            self.report(f"{what}: {error.message[:300]} at {error.instance_path}")
        return not errors


def _typed(schema: Json, text: str) -> Any:
    """A query parameter is text; its schema says what the text spells."""
    kind = schema.get("type")
    if kind == "integer" and text.lstrip("-").isdigit():
        return int(text)
    if kind == "boolean" and text in ("true", "false"):
        return text == "true"
    return text.split(",") if kind == "array" else text
