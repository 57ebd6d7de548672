"""What is asked of running jobs to show them."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from service.store.ci_rows import CI_PROGRESS, JobState
from service.store.ci_tables import jobs, leases
from service.store.schema import work


def step_of(connection: sa.Connection, job_id: int) -> str:
    """The step that a job is in; "" before the first."""
    held = sa.select(leases.c.step).where(leases.c.job_id == job_id, sa.text("state = 'open'"))
    return connection.execute(held).scalar() or ""


def running_runs(connection: sa.Connection, before: datetime) -> list[int]:
    """Ids of the runs with a running job that were last shown before then."""
    subject = sa.literal("run/") + sa.cast(jobs.c.run_id, sa.Text)
    shown = sa.exists().where(
        work.c.kind == CI_PROGRESS, work.c.subject == subject, work.c.created_at >= before
    )
    stale = sa.select(jobs.c.run_id).where(jobs.c.state == JobState.RUNNING, ~shown).distinct()
    return list(connection.execute(stale.order_by(jobs.c.run_id)).scalars())
