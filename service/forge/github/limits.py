"""GitHub's rate limits: who may ask again when."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime

from service.forge.base import ForgeError

PATIENCE = 5.0
"""Seconds that a call waits for a limit to pass; for longer ones it fails and says when to come back."""

_SECONDARY_WAIT = 60.0
_TOO_MANY = re.compile(r"rate limit|abuse detection", re.IGNORECASE)
# Of comments and the like, as a 422; its details may quote what was sent, so that no shorter words will do.
_TOO_FAST = re.compile(r"was submitted too quickly", re.IGNORECASE)


class Limits:
    """Remembers for each credential and resource until when GitHub wants no request. Safe to use from threads."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep = sleep
        self._until: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def admit(self, token: str, resource: str) -> None:
        """Waits for a limit that passes soon. Raises `ForgeError` with `retry_after` for one that does not."""
        wait = self._wait(token, resource)
        if wait > PATIENCE:
            raise self.exceeded(token, resource)
        if wait > 0:
            self._sleep(wait)

    def exceeded(self, token: str, resource: str) -> ForgeError:
        wait = self._wait(token, resource)
        return ForgeError(
            f"GitHub takes no more requests for {wait:.0f} s (rate limit)",
            "what was asked is asked again then",
            status=429,
            retry_after=wait,
        )

    def note(self, token: str, resource: str, status: int, headers: Mapping[str, str], message: str) -> bool:
        """Takes in what an answer says of limits; True where it is a refusal for one, which had no effect."""
        wait = _told_wait(status, headers, message)
        if wait is not None:
            now = time.monotonic()
            with self._lock:
                self._until = {key: until for key, until in self._until.items() if until > now}
                self._until[token, resource] = max(self._until.get((token, resource), 0.0), now + wait)
        return wait is not None and status >= 400

    def _wait(self, token: str, resource: str) -> float:
        with self._lock:
            return max(0.0, self._until.get((token, resource), 0.0) - time.monotonic())


def _told_wait(status: int, headers: Mapping[str, str], message: str) -> float | None:
    """Seconds until the next request is welcome, None where it is now."""
    spent = headers.get("x-ratelimit-remaining") == "0"
    if status < 400:
        return _until_reset(headers) if spent else None
    if status == 422:
        return _SECONDARY_WAIT if _TOO_FAST.search(message) else None
    if status not in (403, 429):
        return None
    told = headers.get("retry-after", "")
    if told.isdecimal():
        return float(told)
    if spent:
        return _until_reset(headers)
    return _SECONDARY_WAIT if status == 429 or _TOO_MANY.search(message) else None


def _until_reset(headers: Mapping[str, str]) -> float:
    """By GitHub's own clock, which need not be ours; a second more, as it counts in whole ones."""
    reset = headers.get("x-ratelimit-reset", "")
    if not reset.isdecimal():
        return _SECONDARY_WAIT
    try:
        now = parsedate_to_datetime(headers.get("date", "")).timestamp()
    except ValueError:
        now = datetime.now().timestamp()
    return max(0.0, int(reset) - now) + 1
