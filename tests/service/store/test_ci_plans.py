"""What the API asks all day is answered from an index, however many finished jobs there are. Asked of SQLite."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from service.store import fleet, job_leases, jobs, kpis, runners
from service.store.ci_reaper import reap
from service.store.database import Database

NOW = datetime(2026, 9, 1, tzinfo=UTC)
Ask = Callable[[sa.Connection], object]

QUESTIONS: dict[str, tuple[set[str], Ask]] = {
    "mark": ({"ix_ci_jobs_queued", "uq_ci_leases_job"}, lambda c: fleet.mark(c)),
    "waiting": ({"ix_ci_jobs_queued"}, lambda c: fleet.waiting(c)),
    "open leases": ({"uq_ci_lease_gpus_open", "uq_ci_leases_job"}, lambda c: fleet.open_leases(c)),
    "recent": ({"ix_ci_leases_closed_at"}, lambda c: fleet.recent(c, NOW)),
    "unfetched": ({"_ci_leases_"}, lambda c: job_leases.unfetched(c)),
    "fetch": ({"ix_ci_leases_runner"}, lambda c: job_leases.fetch(c, 1, NOW)),
    "listen": ({"PRIMARY KEY"}, lambda c: runners.listen(c, 1, NOW)),
    "chart": ({"ix_ci_kpis_chart"}, lambda c: kpis.chart(c, "acme/app", "a")),
    "jobs of a run": ({"ix_ci_jobs_run_id"}, lambda c: jobs.of_run(c, 1)),
    "jobs of a pull request": ({"ix_ci_"}, lambda c: jobs.of_pull(c, 1, "1" * 40)),
    "same tree": ({"ix_ci_runs_tested_tree"}, lambda c: jobs.runs_of_tree(c, "1" * 40)),
    "reap": (
        {
            "ix_ci_leases_until",
            "uq_ci_leases_job",
            "ix_ci_jobs_queued",
            "ix_ci_jobs_running",
            "ix_ci_runs_open",
        },
        lambda c: reap(c, NOW),
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_no_question_reads_a_whole_table(sqlite_url: str, question: str) -> None:
    database = Database(sqlite_url)
    indexes, ask = QUESTIONS[question]
    asked: list[tuple[str, Any]] = []

    def listen(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        asked.append((statement, parameters))

    with database.write() as connection:
        sa.event.listen(database.engine, "before_cursor_execute", listen)
        try:
            ask(connection)
        finally:
            sa.event.remove(database.engine, "before_cursor_execute", listen)
        plans = [
            str(row[3])
            for statement, parameters in asked
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]
    database.close()
    for index in indexes:
        assert any(index in plan for plan in plans), plans
    whole = [plan for plan in plans if plan.startswith("SCAN ci_") and "INDEX" not in plan]
    assert whole == []
