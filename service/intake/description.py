"""The webhook's part of the OpenAPI document; FastAPI does not see the route."""

from __future__ import annotations

from typing import Any


def _header(name: str, pattern: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": True, "schema": {"type": "string", "pattern": pattern}}


def _answer(description: str, field: str) -> dict[str, Any]:
    schema = {"type": "object", "required": [field], "properties": {field: {"type": "string"}}}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


WEBHOOK: dict[str, Any] = {
    "post": {
        "summary": "Take a delivery of GitHub's",
        "description": "Answers once the delivery is stored durably. Work on it begins later.",
        "operationId": "webhook",
        "parameters": [
            _header("X-GitHub-Event", r"^[!-~]{1,100}$"),
            _header("X-GitHub-Delivery", r"^[!-~]{1,100}$"),
            _header("X-Hub-Signature-256", r"^sha256=[0-9a-f]{64}$"),
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"type": "object"}},
                "application/x-www-form-urlencoded": {
                    "schema": {
                        "type": "object",
                        "required": ["payload"],
                        "properties": {"payload": {"type": "string", "contentMediaType": "application/json"}},
                    }
                },
            },
        },
        "responses": {
            "202": _answer("Stored, ignored (nobody acts on this event) or duplicate", "status"),
            "400": _answer("A header is missing, or the body is not a JSON object", "error"),
            "401": _answer("The signature is missing or wrong", "error"),
            "405": _answer("Not a POST", "error"),
            "413": _answer("The body is larger than GitHub sends", "error"),
            "415": _answer("Neither JSON nor a form", "error"),
            "503": _answer("Cannot be stored now; nothing was kept", "error"),
        },
    }
}
