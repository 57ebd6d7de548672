"""Where accepted deliveries go."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from service.store.database import Database
from service.store.deliveries import NewDelivery, add_deliveries

# Commits deliveries durably, all in one transaction, and returns their row ids in order, None for a known GUID.
# Called from one thread only. Whatever it raises means that none was stored.
Sink = Callable[[Sequence[NewDelivery]], Sequence[int | None]]


def sink_into(database: Database) -> Sink:
    def add(deliveries: Sequence[NewDelivery]) -> Sequence[int | None]:
        with database.write() as connection:
            return add_deliveries(connection, deliveries)

    return add
