"""Runs and jobs in the store: asked for once, stopped, superseded, judged, tried again."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa

from ci_dispatch.model import Job, JobReport, JobResult, KpiVerdict, Notice, Outcome
from service.store import job_leases, jobs, kpis
from service.store.ci_rows import CI_PROGRESS, CI_RESULT
from service.store.database import Database
from service.store.errors import StoreError
from service.store.jobs import NewRun
from service.store.schema import work
from tests.kit.ci import BASE, HEAD, REPO, Ci, job
from tests.service.store.conftest import Clock

NEXT = "2" * 40
INFRA = JobResult(outcome=Outcome.INFRA, reason="the runner was lost")
PASSED = JobResult(outcome=Outcome.PASSED, reason="all steps passed")

NOTHING = JobReport()


@pytest.fixture
def ci(database: Database, clock: Clock) -> Ci:
    return Ci(database, clock)


def asked(ci: Ci, kind: str) -> list[str]:
    """Subjects of open work rows."""
    with ci.database.read() as connection:
        found = sa.select(work.c.subject).where(work.c.kind == kind).order_by(work.c.id)
        return list(connection.execute(found).scalars())


def cancel(ci: Ci, job_id: int, how: Outcome = Outcome.CANCELLED) -> bool:
    with ci.database.write() as connection:
        return jobs.cancel(connection, job_id, how, ci.clock())


def report(ci: Ci, granted: job_leases.Granted, said: JobReport = NOTHING) -> bool:
    with ci.database.write() as connection:
        lease = job_leases.find(connection, granted.lease_id, granted.token)
        return job_leases.report(connection, lease, said, ci.clock())


def record(ci: Ci, job_id: int, result: JobResult, following: Job | None = None) -> int | None:
    with ci.database.write() as connection:
        return jobs.record_result(connection, job_id, result, ci.clock(), following)


def run_state(ci: Ci, job_id: int) -> str:
    with ci.database.read() as connection:
        return jobs.get_run(connection, jobs.get(connection, job_id).run_id).state


def test_a_run_asked_for_twice_is_one_run_with_its_jobs_once(ci: Ci) -> None:
    first = ci.run(job("a"), job("b"))
    again = ci.run(job("a"), job("b"))
    assert first == again
    assert len(first) == 2


def test_a_job_added_to_a_finished_run_opens_it_again(ci: Ci) -> None:
    (first,) = ci.run(job("a"))
    cancel(ci, first)
    assert run_state(ci, first) == "finished"
    _, second = ci.run(job("a"), job("b"))
    assert run_state(ci, second) == "open"
    assert ci.states([first, second]) == ["finished", "queued"]


def test_a_run_whose_jobs_are_all_skipped_is_finished_and_says_why(ci: Ci) -> None:
    pull_id = ci.pull()
    new = NewRun("docs", pull_id, HEAD, BASE, HEAD, skipped=(("smoke", "no matching paths"),))
    with ci.database.write() as connection:
        run = jobs.get_run(connection, jobs.create_run(connection, new, (), ci.clock()))
    assert run.state == "finished"
    assert run.skipped == [("smoke", "no matching paths")]
    assert asked(ci, CI_PROGRESS) == [f"run/{run.id}"]


def test_a_queued_job_that_is_cancelled_ends_at_once(ci: Ci) -> None:
    job_id = ci.queue(job())
    assert cancel(ci, job_id)
    ended = ci.job(job_id)
    assert (ended.state, ended.outcome) == ("finished", "cancelled")
    assert asked(ci, CI_RESULT) == [f"job/{job_id}"]
    assert not cancel(ci, job_id)


def test_a_job_that_its_runner_has_not_fetched_ends_at_once_and_frees_its_gpus(ci: Ci) -> None:
    runner = ci.runner(gpus=2)
    job_id = ci.queue(job(gpus=2))
    ci.assign()
    assert ci.job(job_id).state == "leased"
    assert cancel(ci, job_id)
    assert ci.job(job_id).outcome == "cancelled"
    assert ci.held_gpus() == []
    assert ci.fetch(runner) is None


def test_a_running_job_is_told_to_stop_and_ends_with_its_report(ci: Ci) -> None:
    granted_to = ci.runner()
    job_id = ci.queue(job())
    granted = ci.granted(granted_to)
    assert not ci.keep(granted)
    assert cancel(ci, job_id)
    assert ci.job(job_id).state == "running"
    assert ci.keep(granted)
    assert report(ci, granted, JobReport(cancelled=True))
    assert ci.job(job_id).state == "reported"
    record(ci, job_id, JobResult(outcome=Outcome.CANCELLED, reason="by ada"))
    assert ci.job(job_id).outcome == "cancelled"


def test_a_new_head_stops_the_older_ones_jobs_and_no_others(ci: Ci) -> None:
    runner = ci.runner(slots=1)
    running, queued = ci.run(job("a"), job("b"))
    granted = ci.granted(runner)
    ci.keep(granted)
    other = ci.queue(job(number=8))
    pull_id = ci.pull(head=NEXT)
    newer = ci.queue(job("a", head=NEXT))
    with ci.database.write() as connection:
        assert jobs.supersede(connection, pull_id, NEXT, ci.clock()) == [running, queued]
        assert jobs.supersede(connection, pull_id, NEXT, ci.clock()) == []
    assert (ci.job(running).cancel, ci.job(queued).outcome) == ("superseded", "superseded")
    assert ci.states([other, newer]) == ["queued", "queued"]
    assert run_state(ci, queued) == "superseded"
    assert run_state(ci, newer) == "open"
    assert ci.keep(granted)


def test_a_job_of_a_head_that_was_pushed_over_is_not_started(ci: Ci) -> None:
    """Behaviour 2: approve A, push B before dispatch."""
    ci.runner()
    job_id = ci.queue(job())
    ci.pull(head=NEXT)
    assert ci.assign().assigned == []
    assert ci.job(job_id).state == "queued"


def test_the_next_attempt_waits_in_the_same_run_and_stays_away_from_the_first_ones_host(ci: Ci) -> None:
    runner = ci.runner(gpus=1)
    job_id = ci.queue(job(gpus=1))
    granted = ci.granted(runner)
    report(ci, granted, JobReport(notices=(Notice(kind="agent"),)))
    next_id = record(ci, job_id, INFRA, job(gpus=1, attempt=2))
    assert next_id is not None
    assert ci.job(job_id).outcome == "infra"
    assert run_state(ci, next_id) == "open"
    with ci.database.read() as connection:
        from service.store import fleet

        (waiting,) = fleet.waiting(connection)
    assert waiting.avoid_hosts == {runner}
    assert waiting.avoid_gpus == {"GPU-h1-0"}
    # The only host is used in the end all the same.
    ci.clock.now += timedelta(minutes=10)
    ci.beat(gpus=1)
    ci.listen(runner)
    assert [one.job_id for one in ci.assign().assigned] == [next_id]


def test_a_result_recorded_twice_counts_once(ci: Ci) -> None:
    job_id = ci.queue(job())
    granted = ci.granted(ci.runner())
    report(ci, granted)
    assert record(ci, job_id, INFRA, job(attempt=2)) is not None
    assert record(ci, job_id, PASSED, job(attempt=3)) is None
    with ci.database.read() as connection:
        assert jobs.result_of(connection, job_id) == INFRA
        assert [one.attempt for one in jobs.of_pull(connection, ci.job(job_id).pull_id, HEAD)] == [1, 2]


def test_a_job_that_was_to_stop_is_not_tried_again(ci: Ci) -> None:
    job_id = ci.queue(job())
    granted = ci.granted(ci.runner())
    ci.keep(granted)
    cancel(ci, job_id)
    report(ci, granted, JobReport(cancelled=True))
    assert record(ci, job_id, INFRA, job(attempt=2)) is None
    assert run_state(ci, job_id) == "finished"


def test_a_superseded_runs_job_is_not_tried_again(ci: Ci) -> None:
    job_id = ci.queue(job())
    granted = ci.granted(ci.runner())
    report(ci, granted)
    pull_id = ci.pull(head=NEXT)
    with ci.database.write() as connection:
        jobs.supersede(connection, pull_id, NEXT, ci.clock())
    assert record(ci, job_id, INFRA, job(attempt=2)) is None


def test_a_job_is_not_judged_before_its_report(ci: Ci) -> None:
    job_id = ci.queue(job())
    with pytest.raises(StoreError, match="has not come"):
        record(ci, job_id, PASSED)


def test_the_same_numbers_are_kept_for_charts(ci: Ci) -> None:
    job_id = ci.queue(job("perf"))
    granted = ci.granted(ci.runner())
    report(ci, granted)
    one = KpiVerdict(
        name="rms_norm/us", unit="us", head=11.0, base=10.0, ratio=1.1, low=1.08, high=1.12, verdict="worse"
    )
    new = KpiVerdict(name="copy/us", head=3.0, verdict="new")
    record(ci, job_id, JobResult(outcome=Outcome.PERF, reason="slower", kpis=(one, new)))
    with ci.database.read() as connection:
        (point,) = kpis.chart(connection, REPO, "rms_norm/us")
        assert kpis.names(connection, REPO) == ["copy/us", "rms_norm/us"]
    assert (point.value, point.base, point.ratio, point.low, point.high) == (11.0, 10.0, 1.1, 1.08, 1.12)
    assert (point.job, point.head_sha, point.number, point.verdict) == ("perf", HEAD, 7, "worse")


def test_a_chart_shows_the_newest_numbers_oldest_first(ci: Ci) -> None:
    with ci.database.write() as connection:
        for number in range(5):
            verdict = KpiVerdict(name="a", head=float(number), verdict="ok")
            kpis.add(connection, number, job(), (verdict,), ci.clock() + timedelta(minutes=number))
            kpis.add(connection, number, job(), (verdict,), ci.clock())
        assert [point.value for point in kpis.chart(connection, REPO, "a", limit=3)] == [2.0, 3.0, 4.0]


def test_what_is_not_in_order_is_named(ci: Ci) -> None:
    for call in (jobs.get, jobs.job_of, jobs.get_run):
        with ci.database.read() as connection, pytest.raises(StoreError, match="99 is gone"):
            call(connection, 99)
