"""The worker processes of one lane: Celery children that work off what is due whenever they are woken."""

from __future__ import annotations

import os
import socket
import warnings

from celery import Celery
from celery.platforms import SecurityWarning
from celery.signals import worker_process_init

from service.queue.celery import WAKE, Alarm, make_celery, queue_of
from service.settings import ServerSettings, load_settings
from service.station import open_station
from service.worker.lanes import work_off
from service.worker.station import Station


class _Child:
    """The station of this process; a fork must not share its parent's connections."""

    station: Station | None = None


def make_worker(settings: ServerSettings) -> Celery:
    """The application with its one task."""
    app = make_celery(settings.queue_url)

    @app.task(name=WAKE)  # type: ignore[untyped-decorator]
    def wake(lane: str) -> int:
        if _Child.station is None:
            owner = f"{socket.gethostname()}:{os.getpid()}"
            _Child.station = open_station(settings, owner, Alarm(app).ring)
        return work_off(_Child.station, lane)

    return app


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _forget_the_parents_station(**_: object) -> None:
    _Child.station = None


def run_lane(lane: str, processes: int) -> None:
    """Runs until SIGTERM; what is under way is finished or given back."""
    app = make_worker(load_settings())
    # Celery warns of root at every start; a container's only user is often root.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    app.worker_main(
        [
            "--quiet",
            "worker",
            f"--queues={queue_of(lane)}",
            f"--concurrency={processes}",
            f"--hostname={lane}@%h",
            "--loglevel=WARNING",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
        ]
    )
