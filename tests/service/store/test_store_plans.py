"""What workers ask all day is answered from an index, however many finished rows there are.

Asked of SQLite, whose planner needs no statistics: PostgreSQL's choice depends on what the tables hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from service.store import deliveries
from service.store.database import Database
from service.store.outbox import Outbox
from service.store.work import WorkQueue

Ask = Callable[[sa.Connection], object]

QUESTIONS: dict[str, tuple[str, Ask]] = {
    "claim": ("ix_work_ready", lambda connection: WorkQueue().claim(connection, ("a", "b"), "ada", 1)),
    "due": ("ix_work_ready", lambda connection: WorkQueue().due(connection, ("a",), 5)),
    "reap": ("ix_work_leased", lambda connection: WorkQueue().reap(connection)),
    "claim of an effect": (
        "ix_outbox_ready",
        lambda connection: Outbox().claim(connection, ("a",), "ada", 1),
    ),
    "deliveries to process": (
        "ix_deliveries_received",
        lambda connection: deliveries.received(connection, 5),
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_planner_reads_the_index(sqlite_url: str, question: str) -> None:
    database = Database(sqlite_url)
    index, ask = QUESTIONS[question]
    asked: list[tuple[str, Any]] = []

    def listen(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        asked.append((statement, parameters))

    with database.write() as connection:
        sa.event.listen(database.engine, "before_cursor_execute", listen)
        try:
            ask(connection)
        finally:
            sa.event.remove(database.engine, "before_cursor_execute", listen)
        ((statement, parameters),) = [each for each in asked if each[0].startswith("SELECT")]
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
    database.close()
    assert index in str(plan), plan
