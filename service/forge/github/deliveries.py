"""Webhook deliveries of the App that did not arrive."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from service.forge.base import ForgeError
from service.forge.github.client import Client

_PATH = "/app/hook/deliveries"


class Deliveries:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._ids: dict[str, int] = {}

    def list_failed(self, since: datetime) -> Iterator[str]:
        """GUIDs, the oldest first, of what was delivered since then without success, in none of its attempts."""
        attempts: dict[str, list[Any]] = {}
        for one in self._newest_first():
            if datetime.fromisoformat(one["delivered_at"]) < since:
                break
            attempts.setdefault(one["guid"], []).append(one)
        failed = {
            guid: tries[-1]["id"]
            for guid, tries in attempts.items()
            if not any(200 <= one["status_code"] < 300 for one in tries)
        }
        self._ids = failed
        return reversed(failed)

    def redeliver(self, guid: str) -> None:
        found = self._ids.get(guid)
        if found is None:
            found = next((one["id"] for one in self._newest_first() if one["guid"] == guid), None)
        if found is None:
            raise ForgeError(
                f"GitHub has no delivery {guid} any more", "it keeps them for a few days", status=404
            )
        self._client.send("POST", None, f"{_PATH}/{found}/attempts")

    def _newest_first(self) -> Iterator[Any]:
        return self._client.pages(None, _PATH)
