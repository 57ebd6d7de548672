"""Forgetting the files of CI: first what is large, then what its rows no longer name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from service.runner_api.files import CiFiles
from service.store.ci_tables import jobs
from service.store.database import Database

_BATCH = 500


@dataclass(frozen=True, slots=True)
class KeepFiles:
    """How long logs and artifacts are kept after their job ended, and sources after they were last read."""

    jobs: timedelta = timedelta(days=30)
    sources: timedelta = timedelta(days=2)


def prune_files(database: Database, files: CiFiles, now: datetime, keep: KeepFiles) -> dict[str, int]:
    """Deletes what is older than `keep` says; returns how many jobs' files and how many sources went."""
    kept = sorted(files.kept_jobs())
    gone = 0
    for first in range(0, len(kept), _BATCH):
        some = kept[first : first + _BATCH]
        with database.read() as connection:
            recent = sa.or_(jobs.c.finished_at.is_(None), jobs.c.finished_at >= now - keep.jobs)
            needed = set(
                connection.execute(sa.select(jobs.c.id).where(jobs.c.id.in_(some), recent)).scalars()
            )
        files.forget(set(some) - needed)
        gone += len(some) - len(needed)
    return {"ci_files": gone, "ci_sources": files.drop_sources((now - keep.sources).timestamp())}
