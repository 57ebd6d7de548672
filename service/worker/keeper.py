"""Keeping things going without anybody asking: taking back lost leases, and waking workers for what is due."""

from __future__ import annotations

import logging

from service.store import deliveries
from service.store.lease import State
from service.worker.ci.progress import refresh
from service.worker.outcome import EFFECTS, on_death
from service.worker.station import CI, CI_LANE, QUICK, QUICK_LANE, REVIEW, REVIEW_LANE, Station

log = logging.getLogger(__name__)


def tend(station: Station) -> None:
    """Takes back what dead workers held, and rings for everything that is due."""
    with station.database.write() as connection:
        for leases in (station.work, station.outbox):
            for row in leases.reap(connection):
                log.warning(
                    "%s row %s (%s): lease ran out, now %s", leases.table.name, row.id, row.kind, row.state
                )
                if row.state is State.DEAD:
                    on_death(
                        station, connection, leases.table, row.id, row.kind, "its worker died every time"
                    )
        refresh(station, connection, station.clock())
    with station.database.read() as connection:
        quick = (
            deliveries.received(connection, 1)
            or station.work.due(connection, QUICK, 1)
            or station.outbox.due(connection, EFFECTS, 1)
        )
        review = station.work.due(connection, (REVIEW,), 1)
        ci = station.work.due(connection, CI, 1)
    if quick:
        station.ring(QUICK_LANE)
    if review:
        station.ring(REVIEW_LANE)
    if ci:
        station.ring(CI_LANE)
