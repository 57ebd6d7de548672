"""Keeps what a pull request shows of its jobs up to date."""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sa

from service.store import ci_shown, jobs
from service.store.ci_rows import announce_run
from service.store.work import WorkClaim
from service.worker.ci.shown import effects_of
from service.worker.outcome import put_effects
from service.worker.station import Station

REFRESH = timedelta(seconds=20)
"""How often the log's tail of a running job is shown anew."""


def publish_progress(station: Station, claim: WorkClaim) -> None:
    """Posts a run as it stands."""
    with station.database.write() as connection:
        claim.guard(connection)
        publish_run(station, connection, claim.payload["run_id"])
        station.work.finish(connection, claim)


def publish_run(station: Station, connection: sa.Connection, run_id: int) -> None:
    """Notes what is to stand of a run now."""
    run = jobs.get_run(connection, run_id)
    put_effects(station, connection, effects_of(station, connection, run), run.pull_id)


def refresh(station: Station, connection: sa.Connection, now: datetime) -> None:
    """Has the runs with a running job shown anew, each about once in `REFRESH`."""
    for run_id in ci_shown.running_runs(connection, now - REFRESH):
        announce_run(connection, run_id, now)
