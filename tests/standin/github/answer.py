"""What a request is answered with: data, or an error in GitHub's words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

DOCS = "https://docs.github.com/rest"


class Refused(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        errors: Sequence[Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}
        self.body: dict[str, Any] = {"message": message, "documentation_url": DOCS}
        if status < 500:
            # The description knows no status in the bodies of server errors.
            self.body["status"] = str(status)
        if errors is not None:
            self.body["errors"] = list(errors)


def invalid(resource: str, field_name: str, code: str = "invalid", message: str | None = None) -> Refused:
    error = {"resource": resource, "field": field_name, "code": code}
    return Refused(422, "Validation Failed", [error | ({"message": message} if message else {})])


def not_found() -> Refused:
    return Refused(404, "Not Found")


@dataclass
class Answer:
    """`body` is JSON, or bytes of `media`; None is an empty body."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    media: str = "application/json; charset=utf-8"
