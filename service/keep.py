"""The worker command: one process that keeps the lanes' workers alive, tends leases, and asks the forge for what
was missed, at the start and regularly."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

import sqlalchemy as sa

from reviewer.errors import ReviewError
from service.queue.celery import Alarm, make_celery
from service.runner_api.files import CiFiles
from service.runner_api.retention import KeepFiles, prune_files
from service.settings import ServerSettings
from service.station import open_station
from service.store.retention import Keep, prune
from service.store.schema import pulls
from service.supervisor import Supervisor, stop_on_signals
from service.worker.keeper import tend
from service.worker.reconciler import reconcile
from service.worker.station import LANES, Station

log = logging.getLogger(__name__)

_TEND_SECONDS = 1.0
_RECONCILE = timedelta(minutes=10)
_FIRST_LOOK_BACK = timedelta(days=3)
_PRUNE = timedelta(hours=6)


def keep(station: Station, settings: ServerSettings, stopped: threading.Event) -> None:
    """Runs until `stopped`. What fails is said and tried again: the keeper outlives databases and forges."""
    since = station.clock() - _FIRST_LOOK_BACK
    next_reconcile = next_prune = station.clock()
    while not stopped.wait(_TEND_SECONDS):
        _try(partial(tend, station))
        now = station.clock()
        if now >= next_reconcile:
            started = now
            _try(partial(_reconcile, station, settings, since))
            since, next_reconcile = started, started + _RECONCILE
        if now >= next_prune:
            _try(partial(prune, station.database, now, Keep()))
            _try(partial(prune_files, station.database, CiFiles(settings.data), now, KeepFiles()))
            next_prune = now + _PRUNE


def _reconcile(station: Station, settings: ServerSettings, since: datetime) -> None:
    reconcile(station, _repositories(station, settings), since)


def _repositories(station: Station, settings: ServerSettings) -> list[str]:
    """Those that the settings name, and those from which a delivery came."""
    with station.database.read() as connection:
        seen = connection.execute(
            sa.select(pulls.c.repo).where(pulls.c.forge == station.forge_name).distinct()
        ).scalars()
        return sorted({*settings.repositories, *seen})


def _try(step: Callable[[], object]) -> None:
    try:
        step()
    except ReviewError as error:
        log.warning("%s", error)
    except Exception:
        log.exception("the keeper stumbled")


def run_keeper(settings: ServerSettings) -> None:
    """Runs the workers of every lane as children, and the keeper beside them, until SIGTERM."""
    stopped = stop_on_signals()
    owner = f"keeper:{socket.gethostname()}:{os.getpid()}"
    station = open_station(settings, owner, Alarm(make_celery(settings.queue_url)).ring)
    keeper = threading.Thread(target=keep, args=(station, settings, stopped), name="keeper", daemon=True)
    with Supervisor({}) as supervisor:
        for lane in LANES:
            supervisor.start(f"{lane} worker", "worker", f"--lane={lane}")
        keeper.start()
        supervisor.run(stopped)
