"""Forges on a stand-in, as tests want them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from service.forge.clones import Clones
from service.forge.github import locate_git
from service.forge.github.client import Client
from service.forge.github.credentials import AppKey, Credentials, UserToken
from service.forge.github.forge import GitHubForge
from service.forge.github.transport import Transport
from tests.standin.github import GitHub
from tests.standin.github.state import App


@dataclass
class Connect:
    """Builds forges on a stand-in. `naps` are the waits between attempts, which take no time here; `clock` is what
    the credentials go by."""

    folder: Path
    naps: list[float] = field(default_factory=list)
    clock: Callable[[], float] | None = None

    def app(self, hub: GitHub, app: App) -> GitHubForge:
        transport = Transport(hub.api_url, self.naps.append)
        clock = {} if self.clock is None else {"clock": self.clock}
        return self._forge(hub, transport, AppKey(app.id, app.private_key, transport, **clock))

    def token(self, hub: GitHub, login: str = "whitesmoke-user") -> GitHubForge:
        return self._forge(hub, Transport(hub.api_url, self.naps.append), UserToken(hub.token(login)))

    def _forge(self, hub: GitHub, transport: Transport, credentials: Credentials) -> GitHubForge:
        clones = Clones(self.folder / "clones", 1 << 30)
        return GitHubForge(Client(transport, credentials), clones, locate_git(hub.api_url))
