"""What the operator decides: addresses, credentials, limits. From the environment, prefix `WHITESMOKE_`.

Credentials are `SecretStr`: they do not print. Nothing here comes from a repository.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from reviewer.errors import ConfigError
from service.engines import EngineName
from service.ledger_file import data_folder

ForgeName = Literal["github", "local"]


class ServerSettings(BaseSettings):
    """One service. An empty `database_url` is SQLite, an empty `queue_url` the bundled Valkey, both under `data`."""

    model_config = SettingsConfigDict(env_prefix="WHITESMOKE_", frozen=True, extra="ignore")

    data: Path = Field(default_factory=data_folder, description="folder of everything that is kept")
    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8377, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    database_url: str = Field(
        default="", description="postgresql://... or sqlite:///...; SQLite under data if empty"
    )
    queue_url: str = Field(default="", description="redis://...; the bundled Valkey under data if empty")
    forge: ForgeName = Field(default="github", description="where pull requests live")
    webhook_secret: SecretStr = Field(default=SecretStr(""), description="secret of the webhook")
    webhook_secret_old: SecretStr = Field(
        default=SecretStr(""), description="the secret before, while rotating"
    )
    metrics_token: SecretStr = Field(
        default=SecretStr(""), description="bearer token for /metrics off loopback"
    )
    github_url: str = Field(
        default="https://api.github.com", description="API address; /api/v3 on Enterprise"
    )
    github_app_id: int | None = Field(default=None, description="id of the GitHub App")
    github_key: Path | None = Field(default=None, description="the App's private key, a PEM file")
    github_token: SecretStr = Field(default=SecretStr(""), description="a token, where there is no App")
    repositories: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="repositories to serve with a token, owner/name, separated by commas"
    )
    local_repository: Path | None = Field(default=None, description="the repository of the local forge")
    engine: EngineName = Field(
        default="auto", description="who reviews; auto: a model where one is configured"
    )
    recording: Path | None = Field(default=None, description="completions for the engine replay")
    concurrency: int = Field(default=2, ge=1, le=64, description="worker processes")
    lease_seconds: float = Field(
        default=60, gt=1, description="how long a worker holds a row without a heartbeat"
    )
    public_url: str = Field(default="", description="the service's address as others see it")
    web_url: str = Field(
        default="https://github.com", description="address under which people see repositories"
    )
    disk_limit_mb: int = Field(default=10_240, ge=100, description="most disk for cached clones")

    @field_validator("repositories", mode="before")
    @classmethod
    def _split(cls, names: object) -> object:
        return (
            [name.strip() for name in names.split(",") if name.strip()] if isinstance(names, str) else names
        )

    @field_validator("data")
    @classmethod
    def _absolute(cls, folder: Path) -> Path:
        return folder.absolute()

    @cached_property
    def secrets(self) -> tuple[bytes, ...]:
        """The webhook's secrets, the current one first."""
        both = (self.webhook_secret.get_secret_value(), self.webhook_secret_old.get_secret_value())
        return tuple(secret.encode() for secret in both if secret)

    @cached_property
    def database(self) -> str:
        """The database's URL as SQLAlchemy takes it."""
        url = self.database_url or f"sqlite:///{self.data / 'whitesmoke.db'}"
        return url.replace("postgresql://", "postgresql+psycopg://", 1)

    def require_secret(self) -> None:
        """Raises `ConfigError` where nobody could sign a delivery."""
        if not self.secrets:
            raise ConfigError(
                "no webhook secret is set",
                "set WHITESMOKE_WEBHOOK_SECRET to the secret of the GitHub webhook",
            )

    def require_queue(self) -> None:
        """Raises `ConfigError` where no queue is named: only `serve` brings its own."""
        if not self.queue_url:
            raise ConfigError("no queue is set", "set WHITESMOKE_QUEUE_URL, or run `whitesmoke serve`")


def load_settings() -> ServerSettings:
    """The settings in force. Raises `ConfigError` naming the variable and what was expected."""
    try:
        return ServerSettings()
    except ValidationError as error:
        first = error.errors()[0]
        variable = "WHITESMOKE_" + "_".join(str(part) for part in first["loc"]).upper()
        raise ConfigError(f"{variable}: {first['msg']}", "correct it and start again") from error
