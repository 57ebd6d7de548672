"""Numbers of CI over time: one row for each KPI of a judged job, for charts by repository and name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ci_dispatch.model import Job, KpiVerdict
from service.store.ci_tables import kpis
from service.store.dialect import insert

_BATCH = 200


@dataclass(frozen=True, slots=True)
class Point:
    """One number of a chart. `ratio` above 1 is worse than the base."""

    at: datetime
    number: int
    job: str
    arch: str
    head_sha: str
    unit: str
    verdict: str
    value: float
    base: float | None
    ratio: float | None
    low: float | None
    high: float | None


def add(
    connection: sa.Connection, job_id: int, job: Job, verdicts: Sequence[KpiVerdict], now: datetime
) -> None:
    """Keeps a job's KPIs that have a number of the head's; those that it has already stay."""
    rows = [
        {
            "job_id": job_id,
            "repo": job.repo,
            "number": job.number,
            "job": job.spec.name,
            "arch": job.spec.arch,
            "name": one.name,
            "unit": one.unit,
            "head_sha": job.head_sha,
            "at": now,
            "verdict": one.verdict,
            "value": one.head,
            "base": one.base,
            "ratio": one.ratio,
            "low": one.low,
            "high": one.high,
            "noise": one.noise,
            "samples": one.samples,
            "extra": one.extra,
        }
        for one in verdicts
        if one.head is not None
    ]
    for first in range(0, len(rows), _BATCH):
        fresh = insert(connection, kpis).on_conflict_do_nothing(index_elements=[kpis.c.job_id, kpis.c.name])
        connection.execute(fresh, rows[first : first + _BATCH])


def chart(connection: sa.Connection, repo: str, name: str, *, limit: int = 500) -> list[Point]:
    """The newest numbers of one KPI, oldest first."""
    columns: list[Any] = [kpis.c[field] for field in Point.__dataclass_fields__]
    newest = (
        sa.select(*columns)
        .where(kpis.c.repo == repo, kpis.c.name == name)
        .order_by(kpis.c.at.desc(), kpis.c.id.desc())
        .limit(limit)
    )
    return [Point(*row) for row in reversed(connection.execute(newest).all())]


def names(connection: sa.Connection, repo: str) -> list[str]:
    """The KPIs that a repository has numbers of."""
    found = sa.select(kpis.c.name).where(kpis.c.repo == repo).distinct().order_by(kpis.c.name)
    return list(connection.execute(found).scalars())
