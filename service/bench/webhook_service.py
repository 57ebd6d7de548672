"""The intake alone, as a process to be measured: python -m service.bench.webhook_service DATABASE_URL SECRET.

Prints its port once it listens, and stops on SIGTERM.
"""

from __future__ import annotations

import logging
import socket
import sys

from service.events.payloads import EVENTS
from service.intake.app import create_app
from service.intake.server import Server
from service.intake.settings import IntakeSettings
from service.intake.sink import sink_into
from service.store.database import Database
from service.store.migrations import upgrade


def main(url: str, secret: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    database = Database(url)
    upgrade(database)
    settings = IntakeSettings(secrets=(secret.encode(),), events=EVENTS)
    app = create_app(settings, sink_into(database), {}, _wake_nobody)
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(listener.getsockname()[1], flush=True)
    Server(app, "127.0.0.1", 0).run([listener])


def _wake_nobody(ids: list[int]) -> None:
    """There are no workers here."""


if __name__ == "__main__":
    main(*sys.argv[1:])
