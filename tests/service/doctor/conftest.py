"""Settings of an installation, and what the doctor says of one part of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from service.settings import ServerSettings
from tests.standin.github.fixture import hub

__all__ = ["hub"]

SECRET = "a-webhook-secret-of-32-characters"

Settings = Callable[..., ServerSettings]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "WHITESMOKE_MODELS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings with a secret and data under the test's folder; `text` fields may be plain strings."""

    def make(**more: Any) -> ServerSettings:
        given = {
            "data": tmp_path / "data",
            "webhook_secret": SECRET,
            "public_url": "https://smoke.example",
            **more,
        }
        secret = {"webhook_secret", "webhook_secret_old", "metrics_token", "github_token"}
        return ServerSettings(
            **{name: SecretStr(value) if name in secret else value for name, value in given.items()}
        )

    return make
