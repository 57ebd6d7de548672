"""The service's own parts: what was set, where it keeps things, and its queue."""

from __future__ import annotations

import ipaddress
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from reviewer.errors import ConfigError
from service.doctor.findings import Seen
from service.settings import ServerSettings

if TYPE_CHECKING:
    from service.store.database import Database

_SHORTEST_SECRET = 16
_LEAST_DISK = 1 << 30
_PATIENCE = 2.0
_NEW_SECRET = "make one with `openssl rand -hex 32`"


def check_secrets(settings: ServerSettings) -> Iterator[Seen]:
    secret = settings.webhook_secret.get_secret_value()
    settings.require_secret()
    if 0 < len(secret) < _SHORTEST_SECRET:
        yield "problem", f"the webhook secret has fewer than {_SHORTEST_SECRET} characters", _NEW_SECRET
    elif not secret:
        yield "problem", "only the old webhook secret is set", f"set WHITESMOKE_WEBHOOK_SECRET: {_NEW_SECRET}"
    else:
        yield "ok", "the webhook secret is set", ""
    if secret and settings.webhook_secret_old.get_secret_value():
        yield (
            "warning",
            "the webhook secret is being changed: two are accepted",
            "unset WHITESMOKE_WEBHOOK_SECRET_OLD once GitHub has the new one",
        )


def check_address(settings: ServerSettings) -> Iterator[Seen]:
    at = f"listens on {settings.host}:{settings.port}"
    if not settings.public_url:
        yield "warning", f"{at}; how others reach it is not set", "set WHITESMOKE_PUBLIC_URL to https://HOST"
    else:
        yield "ok", f"{at}, reached as {settings.public_url}", ""
    if not _is_loopback(settings.host) and not settings.metrics_token.get_secret_value():
        yield (
            "warning",
            "/metrics answers on this machine only",
            "set WHITESMOKE_METRICS_TOKEN to read it from afar",
        )


def check_data(settings: ServerSettings) -> Iterator[Seen]:
    """Creates nothing that stays: whoever asks may be another user than the service's."""
    folder = settings.data
    if folder.is_dir():
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise ConfigError(
                f"cannot write in {folder}: {error.strerror}", "make it the service user's own"
            ) from error
        yield "ok", f"{folder} is writable", ""
    else:
        above = next(parent for parent in folder.parents if parent.exists())
        if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
            raise ConfigError(
                f"{folder} cannot be created in {above}", "create it, or name another in WHITESMOKE_DATA"
            )
        yield "ok", f"{folder} will be created", ""
    yield _disk(folder if folder.is_dir() else above, settings.disk_limit_mb << 20)


def _disk(folder: Path, clones_limit: int) -> Seen:
    free = shutil.disk_usage(folder).free
    said = f"{free / (1 << 30):.1f} GiB of disk are free"
    if free < _LEAST_DISK:
        return "problem", said, "free some, or name another folder in WHITESMOKE_DATA"
    if free < clones_limit:
        return (
            "warning",
            f"{said}, and cached clones may take {clones_limit / (1 << 30):.1f}",
            "lower WHITESMOKE_DISK_LIMIT_MB",
        )
    return "ok", said, ""


def open_database(settings: ServerSettings) -> Database | None:
    """None where SQLite's file does not exist yet: opening it would create it."""
    import sqlalchemy as sa

    from service.store.database import Database

    if settings.database.startswith("sqlite"):
        file = sa.make_url(settings.database).database
        if file and not Path(file).exists():
            return None
    return Database(settings.database, patience=_PATIENCE)


def check_database(settings: ServerSettings) -> Iterator[Seen]:
    from service.store.migrations import is_current

    database = open_database(settings)
    if database is None:
        yield "ok", "SQLite's file will be created", ""
        return
    try:
        current = is_current(database)
    finally:
        database.close()
    if current:
        yield "ok", f"{database.name} answers and has this version's schema", ""
    else:
        yield (
            "warning",
            f"{database.name} answers and has not this version's schema",
            "start `whitesmoke serve` or `worker`, which bring it up to date",
        )


def check_queue(settings: ServerSettings) -> Iterator[Seen]:
    if not settings.queue_url:
        yield _bundled()
        return
    import redis

    from service.queue.valkey import QueueError

    try:
        client = redis.Redis.from_url(
            settings.queue_url, socket_timeout=_PATIENCE, socket_connect_timeout=_PATIENCE
        )
        info = client.info()
    except ValueError as error:
        raise QueueError(
            "WHITESMOKE_QUEUE_URL is not an address of a queue", "write redis://HOST:6379/0"
        ) from error
    except redis.RedisError as error:
        raise QueueError(
            f"the queue does not answer: {error}", "start it, or correct WHITESMOKE_QUEUE_URL"
        ) from error
    server = f"{info.get('server_name', 'redis')} {info.get('valkey_version') or info.get('redis_version')}"
    yield "ok", f"{server} answers", ""
    if (policy := info.get("maxmemory_policy")) != "noeviction":
        yield (
            "problem",
            f"its maxmemory-policy is {policy}: it drops wake-ups when memory is short",
            "set maxmemory-policy to noeviction",
        )
    if not info.get("aof_enabled"):
        yield (
            "warning",
            "it keeps no append-only file: a restart delays what was queued",
            "set appendonly to yes",
        )


def _bundled() -> Seen:
    """Starts it once, on a folder of its own."""
    from service.queue.valkey import embedded_valkey

    with tempfile.TemporaryDirectory() as folder, embedded_valkey(Path(folder)):
        return "ok", "the bundled Valkey starts; `web` and `worker` alone need WHITESMOKE_QUEUE_URL", ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
