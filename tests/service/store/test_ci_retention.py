"""Old runs go with their jobs and files; their numbers, and what is still open, stay."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from ci_dispatch.model import JobReport, JobResult, KpiVerdict, Outcome
from service.runner_api.files import CiFiles
from service.runner_api.retention import KeepFiles, prune_files
from service.store import job_leases, jobs
from service.store.ci_tables import jobs as job_table
from service.store.ci_tables import kpis, leases, tokens
from service.store.database import Database
from service.store.retention import Keep, prune
from tests.kit.ci import Ci, job
from tests.service.store.conftest import Clock


@pytest.fixture
def ci(database: Database, clock: Clock) -> Ci:
    return Ci(database, clock)


def judged(ci: Ci, number: int) -> int:
    ci.runner(f"h{number}")
    job_id = ci.queue(job(number=number))
    (assigned,) = ci.assign().assigned
    granted = ci.fetch(assigned.runner_id)
    assert granted is not None
    kpi = KpiVerdict(name="a", head=1.0, verdict="ok")
    with ci.database.write() as connection:
        lease = job_leases.find(connection, granted.lease_id, granted.token)
        job_leases.report(connection, lease, JobReport(), ci.clock())
        result = JobResult(outcome=Outcome.PASSED, reason="passed", kpis=(kpi,))
        jobs.record_result(connection, job_id, result, ci.clock())
    return job_id


def count(ci: Ci, table: sa.Table) -> int:
    with ci.database.read() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def test_old_runs_go_and_their_numbers_stay(ci: Ci, clock: Clock) -> None:
    judged(ci, 1)
    waiting = ci.queue(job(number=2))
    clock.now += timedelta(days=89)
    assert prune(ci.database, clock.now, Keep())["ci_runs"] == 0
    clock.now += timedelta(days=2)
    pruned = prune(ci.database, clock.now, Keep())
    assert (pruned["ci_runs"], pruned["ci_tokens"], pruned["ci_kpis"]) == (1, 0, 0)
    assert [count(ci, table) for table in (job_table, leases, kpis, tokens)] == [1, 0, 1, 0]
    assert ci.job(waiting).state == "queued"
    clock.now += timedelta(days=700)
    assert prune(ci.database, clock.now, Keep())["ci_kpis"] == 1


def test_files_go_when_their_job_is_long_done_or_unknown(ci: Ci, clock: Clock, tmp_path: Path) -> None:
    files = CiFiles(tmp_path)
    old = judged(ci, 1)
    clock.now += timedelta(days=31)
    recent = judged(ci, 3)
    open_ = ci.queue(job(number=2))
    for job_id in (old, open_, recent, 99):
        files.append_log(job_id, 0, b"x", 10)
        upload = files.begin_artifact(job_id, "a/b", 10)
        upload.finish()
    for name, days in (("1", 3), ("2", 1)):
        path = files.source_path(name * 40)
        path.write_bytes(b"x")
        moment = (clock.now - timedelta(days=days)).timestamp()
        os.utime(path, (moment, moment))
    assert prune_files(ci.database, files, clock.now, KeepFiles()) == {"ci_files": 2, "ci_sources": 1}
    assert files.kept_jobs() == {open_, recent}
    assert not files.source_path("1" * 40).exists()
    assert files.source_path("2" * 40).exists()
