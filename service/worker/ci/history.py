"""What ran before, and what could run now, as the plan reads it."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from ci_dispatch.model import Inventory
from ci_dispatch.plan import Attempt
from service.store import jobs, runners
from service.store.jobs import Run


def history_of(connection: sa.Connection, pull_id: int, tested_tree: str) -> list[Attempt]:
    """The attempts of a pull request, and those of others at the same files."""
    same_files = jobs.runs_of_tree(connection, tested_tree) if tested_tree else []
    runs = {run.id: run for run in (*jobs.runs_of(connection, pull_id), *same_files)}
    return [attempt for run in runs.values() for attempt in attempts_of(connection, run)]


def attempts_of(connection: sa.Connection, run: Run) -> list[Attempt]:
    """All attempts of one run, oldest first."""
    return [
        Attempt(jobs.job_of(connection, one.id), run.tested_tree, one.ended)
        for one in jobs.of_run(connection, run.id)
    ]


def inventories(connection: sa.Connection, now: datetime) -> list[Inventory]:
    """What the runners offer that are heard of; one that keeps silent is no capacity."""
    return [
        Inventory.model_validate_json(one.inventory)
        for one in runners.show(connection)
        if one.takes_jobs and one.is_alive(now)
    ]
