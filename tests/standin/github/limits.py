"""Rate limits: so many requests an hour for each token; a 304 costs nothing."""

from __future__ import annotations

from dataclasses import dataclass

from tests.standin.github.answer import Refused
from tests.standin.github.auth import Actor
from tests.standin.github.render.base import Json
from tests.standin.github.state import World


@dataclass
class _Window:
    used: int = 0
    limit: int = 5000
    resets_at: int = 0


class Limits:
    def __init__(self, world: World) -> None:
        self._world = world
        self._windows: dict[str, _Window] = {}
        self._left: tuple[int, float] | None = None

    def leave(self, remaining: int, seconds: float = 3600) -> None:
        """Every token has this many requests left until so many seconds from now."""
        for window in self._windows.values():
            window.used = window.limit - remaining
            window.resets_at = int(self._world.now().timestamp() + seconds)
        self._left = remaining, seconds

    def window(self, actor: Actor) -> _Window:
        now = self._world.now().timestamp()
        found = self._windows.get(actor.key)
        if found is None:
            found = self._windows[actor.key] = _Window(resets_at=int(now + 3600))
            if self._left is not None:
                found.used = found.limit - self._left[0]
                found.resets_at = int(now + self._left[1])
        elif found.resets_at <= now:
            found.used, found.resets_at = 0, int(now + 3600)
            self._left = None
        return found

    def check(self, actor: Actor) -> None:
        window = self.window(actor)
        if window.used >= window.limit:
            raise Refused(403, "API rate limit exceeded for this token.", headers=self.headers(actor))

    def count(self, actor: Actor) -> None:
        self.window(actor).used += 1

    def left(self, key: str) -> int:
        """What the token may still ask for."""
        window = self._windows.get(key, _Window())
        return window.limit - window.used

    def headers(self, actor: Actor) -> dict[str, str]:
        window = self.window(actor)
        return {
            "X-RateLimit-Limit": str(window.limit),
            "X-RateLimit-Remaining": str(max(0, window.limit - window.used)),
            "X-RateLimit-Used": str(window.used),
            "X-RateLimit-Reset": str(window.resets_at),
            "X-RateLimit-Resource": "core",
        }

    def overview(self, actor: Actor) -> Json:
        window = self.window(actor)
        shown = {
            "limit": window.limit,
            "used": window.used,
            "remaining": max(0, window.limit - window.used),
            "reset": window.resets_at,
        }
        return {"resources": {"core": shown, "graphql": shown, "search": shown}, "rate": shown}
