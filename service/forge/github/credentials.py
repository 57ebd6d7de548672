"""Who the service is on GitHub: an App, by its key and a token for each installation, or a user, by a token."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from github.Auth import AppAuth

from service.forge.base import ForgeError
from service.forge.github.errors import refusal
from service.forge.github.transport import Transport

_RENEW_BEFORE = 300.0
"""Seconds before an installation's token ends at which it is renewed: longer than any one request takes."""


class Credentials(Protocol):
    """Safe to use from several threads."""

    @property
    def app_id(self) -> int | None: ...

    def token(self, repo: str) -> str:
        """What opens this repository. Raises `ForgeError` where nothing does."""
        ...

    def forget(self, repo: str, token: str) -> bool:
        """GitHub refuses the token; whether asking for another one can help."""
        ...

    def own_authorization(self) -> str:
        """The Authorization header of the App or user itself."""
        ...


class UserToken:
    """One token for everything: a personal access token, or a machine user's."""

    app_id = None

    def __init__(self, token: str) -> None:
        self._token = token

    def token(self, repo: str) -> str:
        return self._token

    def forget(self, repo: str, token: str) -> bool:
        return False

    def own_authorization(self) -> str:
        return f"Bearer {self._token}"


@dataclass(slots=True)
class _Installation:
    id: int
    token: str = ""
    expires_at: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


class AppKey:
    """A GitHub App. An installation has one token at a time, kept until shortly before it ends."""

    def __init__(
        self, app_id: int, key: str, transport: Transport, clock: Callable[[], float] = time.time
    ) -> None:
        self.app_id: int | None = app_id
        self._auth = AppAuth(app_id, key)
        self._transport = transport
        self._clock = clock
        self._lock = threading.Lock()
        self._by_repo: dict[str, int] = {}
        self._by_id: dict[int, _Installation] = {}

    def own_authorization(self) -> str:
        return f"Bearer {self._auth.create_jwt()}"

    def token(self, repo: str) -> str:
        installation = self._installation(repo)
        with installation.lock:
            if installation.expires_at - self._clock() < _RENEW_BEFORE:
                path = f"/app/installations/{installation.id}/access_tokens"
                made = self._ask("POST", path, repo)
                installation.token = made["token"]
                installation.expires_at = datetime.fromisoformat(made["expires_at"]).timestamp()
            return installation.token

    def forget(self, repo: str, token: str) -> bool:
        with self._lock:
            installation = self._by_id.get(self._by_repo.get(repo.lower(), 0))
        if installation is not None:
            with installation.lock:
                # Another thread may have a new one by now.
                if installation.token == token:
                    installation.expires_at = 0.0
        return True

    def _installation(self, repo: str) -> _Installation:
        name = repo.lower()
        with self._lock:
            known = self._by_id.get(self._by_repo.get(name, 0))
        if known is not None:
            return known
        found = int(self._ask("GET", f"/repos/{repo}/installation", repo)["id"])
        with self._lock:
            self._by_repo[name] = found
            return self._by_id.setdefault(found, _Installation(found))

    def _ask(self, method: str, path: str, repo: str) -> Any:
        # A second token does no harm, so this POST may be repeated.
        answer = self._transport.request(method, path, self.own_authorization(), repeatable=True)
        if answer.status == 404:
            with self._lock:
                # The App may have been installed anew, under another id.
                self._by_repo.pop(repo.lower(), None)
            raise ForgeError(
                f"the GitHub App {self.app_id} is not installed on {repo}",
                "install it there, or add the repository to its installation",
                status=404,
            )
        if answer.status >= 400:
            raise refusal(method, path, answer.status, answer.headers, answer.data)
        return answer.data
