"""The web process with the runners' API, to be measured: python -m service.bench.ci_service DATABASE_URL FOLDER.

Prints its port once it listens, and stops on SIGTERM; then prints each decision as JSON: [seconds, processor seconds, jobs that waited].
"""

from __future__ import annotations

import json
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ci_dispatch.protocol import PREFIX
from service.intake.app import create_app
from service.intake.server import Server
from service.intake.settings import IntakeSettings
from service.intake.sink import sink_into
from service.runner_api.desk import Desk
from service.runner_api.files import CiFiles
from service.runner_api.limits import Limits
from service.runner_api.router import make_router
from service.store.database import Database
from service.store.fleet import Chosen, Decision, Known, assign_due
from service.store.job_leases import Assigned
from service.store.types import Clock


def main(url: str, folder: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    decisions: list[tuple[float, float, int]] = []

    def timed(
        database: Database, clock: Clock, write: Callable[[Chosen], list[Assigned]], known: Known, /
    ) -> Decision:
        began, used = time.perf_counter(), time.thread_time()
        decision = assign_due(database, clock, write, known)
        took = time.perf_counter() - began
        decisions.append((took, time.thread_time() - used, decision.waiting))
        return decision

    database = Database(url)
    desk = Desk(database, CiFiles(Path(folder)), lambda: None, Limits())
    settings = IntakeSettings(secrets=(b"bench",), events=frozenset())
    parts = [partial(make_router, desk, decide=timed)]
    app = create_app(settings, sink_into(database), {}, lambda ids: None, parts)
    # The server ends on it, then raises it again.
    signal.signal(signal.SIGTERM, lambda *_: None)
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(listener.getsockname()[1], flush=True)
    Server(app, "127.0.0.1", 0, paced=(PREFIX,)).run([listener])
    print(json.dumps(decisions), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
