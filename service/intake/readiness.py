"""Whether the service can do its work at this moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

from reviewer.errors import ReviewError

_SECONDS = 2.0

# Raises where something is wrong. Runs in a thread.
Check = Callable[[], None]


class Readiness:
    """Runs named checks side by side. One that hangs is reported, and not started again until it has ended."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = dict(checks)
        self._pool = ThreadPoolExecutor(max(1, len(self._checks)), thread_name_prefix="readiness")
        self._running: dict[str, Future[None]] = {}

    async def problems(self) -> dict[str, str]:
        """What is wrong, by the check's name; empty when all is well."""
        for name, check in self._checks.items():
            if name not in self._running or self._running[name].done():
                self._running[name] = self._pool.submit(check)
        await asyncio.to_thread(wait, self._running.values(), _SECONDS)
        return {name: said for name, running in self._running.items() if (said := _said(running))}

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _said(running: Future[None]) -> str:
    if not running.done():
        return f"gave no answer within {_SECONDS:g} s"
    error = running.exception()
    if error is None:
        return ""
    # Other errors' texts may hold connection URLs with passwords, and anybody may ask.
    return str(error) if isinstance(error, ReviewError) else type(error).__name__
