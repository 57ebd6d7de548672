"""Failure switches: what a test makes go wrong on the next matching requests."""

from __future__ import annotations

import fnmatch
import threading
from dataclasses import dataclass, field
from typing import Literal

Drop = Literal["before", "after"]

MESSAGES = {
    403: "Forbidden",
    404: "Not Found",
    406: "Not Acceptable",
    409: "Conflict",
    422: "Validation Failed",
    429: "Too many requests",
    500: "Server Error",
    502: "Server Error",
    503: "Service unavailable",
}


@dataclass(eq=False)
class Failure:
    """On requests that match `pattern` ("POST /repos/*/*/issues/*/comments"; `*` is one segment, `**` any number):
    let `skip` of them pass, then `times` of them fail.

    `status` is answered in place of the effect, or after it where `effect` is True. `drop` closes the connection
    without an answer, before or after the effect. `delay` seconds pass first; alone, it only slows.
    """

    pattern: str
    status: int = 0
    times: int = 1
    skip: int = 0
    drop: Drop | None = None
    effect: bool = False
    delay: float = 0.0
    message: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    hits: int = 0

    def matches(self, method: str, path: str) -> bool:
        verb, _, glob = self.pattern.partition(" ")
        return fnmatch.fnmatchcase(method, verb) and _fits(glob.split("/"), path.split("/"))


def _fits(glob: list[str], path: list[str]) -> bool:
    if not glob:
        return not path
    if glob[0] == "**":
        return any(_fits(glob[1:], path[at:]) for at in range(len(path) + 1))
    return bool(path) and fnmatch.fnmatchcase(path[0], glob[0]) and _fits(glob[1:], path[1:])


class Failures:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[Failure] = []

    def add(self, failure: Failure) -> Failure:
        with self._lock:
            self._rules.append(failure)
        return failure

    def clear(self) -> None:
        with self._lock:
            self._rules.clear()

    def take(self, method: str, path: str) -> Failure | None:
        """The failure of this request, used up by it."""
        with self._lock:
            for rule in self._rules:
                if not rule.matches(method, path):
                    continue
                if rule.skip:
                    rule.skip -= 1
                elif rule.times:
                    rule.times -= 1
                    rule.hits += 1
                    return rule
        return None
