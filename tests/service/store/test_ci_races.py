"""CI's rows under real threads: whoever comes first, nothing is given twice and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import pytest

from ci_dispatch.lease import Assignment
from ci_dispatch.model import JobReport, JobResult, Outcome
from service.store import fleet, job_leases, jobs, runners
from service.store.ci_reaper import reap
from service.store.database import Database
from service.store.errors import StoreError
from service.store.job_leases import LEASE_SECONDS, Granted, LeaseLost, write_assignments
from tests.kit.ci import Ci, job
from tests.service.store.conftest import Clock

ROUNDS = 15


@pytest.fixture
def ci(database: Database, clock: Clock) -> Ci:
    return Ci(database, clock)


def together(*calls: Callable[[], object]) -> list[object]:
    """Runs the calls at the same moment; their answers, or what they refused with."""
    gate = threading.Barrier(len(calls))

    def one(call: Callable[[], object]) -> object:
        gate.wait()
        try:
            return call()
        except StoreError as refused:
            return refused

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def running(ci: Ci, number: int) -> tuple[int, Granted]:
    """A job that runs."""
    ci.runner(f"h{number}")
    job_id = ci.queue(job(number=number))
    (assigned,) = ci.assign().assigned
    granted = ci.fetch(assigned.runner_id)
    assert granted is not None
    ci.keep(granted)
    return job_id, granted


def test_two_processes_that_decide_at_once_never_give_a_gpu_or_a_job_twice(ci: Ci) -> None:
    ids = [ci.runner(f"h{number}", gpus=4) for number in range(4)]
    for number in range(12):
        ci.queue(job(gpus=2, number=number))
    other = Ci(Database(ci.database.engine.url.render_as_string(hide_password=False)), ci.clock)
    decisions = together(ci.assign, other.assign, ci.assign, other.assign)
    assert all(isinstance(one, fleet.Decision) for one in decisions)
    given = [lease for one in decisions if isinstance(one, fleet.Decision) for lease in one.assigned]
    assert len({lease.job_id for lease in given}) == len(given) == 8
    assert len(ci.held_gpus()) == len(set(ci.held_gpus())) == 16
    fetched = [granted for runner in ids for _ in range(3) if (granted := ci.fetch(runner)) is not None]
    assert len({granted.lease_id for granted in fetched}) == 8
    other.database.close()


def test_two_writers_of_the_same_decision_give_it_once(ci: Ci) -> None:
    for number in range(ROUNDS):
        runner = ci.runner(f"h{number}", gpus=1)
        first, second = ci.run(job("a", gpus=1, number=number), job("b", gpus=1, number=number))

        def write(job_id: int, runner: int, number: int) -> int:
            with ci.database.write() as connection:
                one = Assignment(job_id, runner, (f"GPU-h{number}-0",))
                return len(write_assignments(connection, [one], ci.clock()))

        answers = together(*(partial(write, job_id, runner, number) for job_id in (first, second)))
        assert sorted(map(str, answers)) == ["0", "1"]


def test_two_claims_fetch_a_lease_once(ci: Ci) -> None:
    runner = ci.runner(slots=100)
    for number in range(ROUNDS):
        ci.queue(job(number=number))
        ci.assign()
        got = together(lambda: ci.fetch(runner), lambda: ci.fetch(runner))
        assert sum(one is not None for one in got) == 1


def test_a_beat_and_the_reaper_agree_on_whose_the_job_is(ci: Ci) -> None:
    """Either the beat came first and the job goes on, or the lease is lost and the beat is told so."""
    for number in range(ROUNDS):
        job_id, granted = running(ci, number)
        ci.clock.now += timedelta(seconds=LEASE_SECONDS + 1)

        def look() -> list[int]:
            with ci.database.write() as connection:
                return reap(connection, ci.clock()).lost

        kept, lost = together(lambda granted=granted: ci.keep(granted), look)
        if lost == [job_id]:
            assert isinstance(kept, LeaseLost)
            assert ci.job(job_id).state == "reported"
        else:
            assert (kept, lost) == (False, [])
            assert ci.job(job_id).state == "running"
            close(ci, granted)


def close(ci: Ci, granted: Granted) -> bool:
    with ci.database.write() as connection:
        lease = job_leases.find(connection, granted.lease_id, granted.token)
        return job_leases.report(connection, lease, JobReport(log_tail="done"), ci.clock())


def test_a_cancel_and_a_report_leave_the_report(ci: Ci) -> None:
    for number in range(ROUNDS):
        job_id, granted = running(ci, number)

        def stop(job_id: int = job_id) -> bool:
            with ci.database.write() as connection:
                return jobs.cancel(connection, job_id, Outcome.CANCELLED, ci.clock())

        _, reported = together(stop, lambda granted=granted: close(ci, granted))
        assert reported is True
        assert ci.job(job_id).state == "reported"
        with ci.database.read() as connection:
            stored = jobs.report_of(connection, job_id)
        assert stored is not None
        assert stored.log_tail == "done"


def test_a_report_and_a_late_reaper_store_one_of_the_two(ci: Ci) -> None:
    for number in range(ROUNDS):
        job_id, granted = running(ci, number)
        ci.clock.now += timedelta(seconds=LEASE_SECONDS + 1)

        def look() -> list[int]:
            with ci.database.write() as connection:
                return reap(connection, ci.clock()).lost

        reported, lost = together(lambda granted=granted: close(ci, granted), look)
        assert (reported is True) != (lost == [job_id])
        assert (reported is True) != bool(ci.notices(job_id))


def test_a_cancel_and_a_fetch_never_run_a_job_that_has_ended(ci: Ci) -> None:
    for number in range(ROUNDS):
        runner = ci.runner(f"h{number}")
        job_id = ci.queue(job(number=number))
        ci.assign()

        def stop(job_id: int = job_id) -> bool:
            with ci.database.write() as connection:
                return jobs.cancel(connection, job_id, Outcome.CANCELLED, ci.clock())

        stopped, granted = together(stop, lambda runner=runner: ci.fetch(runner))
        assert stopped is True
        if granted is None:
            assert ci.job(job_id).outcome == "cancelled"
        else:
            assert isinstance(granted, Granted)
            assert ci.keep(granted), "told to stop"
            close(ci, granted)


def test_a_drain_and_an_assignment_lose_nothing(ci: Ci) -> None:
    """Behaviour 16. Whichever comes first, the job waits and the drained runner has no lease that it has not fetched."""
    for number in range(ROUNDS):
        ci.runner(f"h{number}", gpus=1)
        job_id = ci.queue(job(gpus=1, number=number))

        def drain(number: int = number) -> None:
            with ci.database.write() as connection:
                runners.drain(connection, f"h{number}", ci.clock())

        together(ci.assign, drain)
        assert ci.job(job_id).state == "queued"
        assert ci.held_gpus() == []
        with ci.database.write() as connection:
            jobs.cancel(connection, job_id, Outcome.CANCELLED, ci.clock())


def test_a_new_head_and_a_next_attempt_leave_nothing_queued_for_the_old_head(ci: Ci) -> None:
    for number in range(ROUNDS):
        job_id, granted = running(ci, number)
        close(ci, granted)
        pull_id = ci.job(job_id).pull_id

        def judge(job_id: int = job_id, number: int = number) -> None:
            result = JobResult(outcome=Outcome.INFRA, reason="lost")
            with ci.database.write() as connection:
                jobs.record_result(connection, job_id, result, ci.clock(), job(number=number, attempt=2))

        def push(pull_id: int = pull_id) -> None:
            with ci.database.write() as connection:
                jobs.supersede(connection, pull_id, "2" * 40, ci.clock())

        for answer in together(judge, push):
            assert answer is None, answer
        with ci.database.read() as connection:
            run = jobs.get(connection, job_id).run_id
            assert {one.state.value for one in jobs.of_run(connection, run)} == {"finished"}


def test_the_reaper_waits_for_a_beat_that_is_being_written_and_leaves_its_lease(ci: Ci) -> None:
    if ci.database.is_sqlite:
        pytest.skip("SQLite has one writer at a time")
    job_id, granted = running(ci, 1)
    ci.clock.now += timedelta(seconds=LEASE_SECONDS + 1)
    done: list[list[int]] = []

    def look() -> None:
        with ci.database.write() as connection:
            done.append(reap(connection, ci.clock()).lost)

    thread = threading.Thread(target=look)
    with ci.database.write() as connection:
        job_leases.beat(connection, ci.lease(granted), "smoke", ci.clock())
        thread.start()
        thread.join(0.5)
        assert done == []
    thread.join(30)
    assert done == [[]]
    assert ci.job(job_id).state == "running"


def test_a_new_head_waits_for_a_next_attempt_that_is_being_written_and_stops_it(ci: Ci) -> None:
    if ci.database.is_sqlite:
        pytest.skip("SQLite has one writer at a time")
    job_id, granted = running(ci, 1)
    close(ci, granted)
    pull_id = ci.job(job_id).pull_id

    def push() -> None:
        with ci.database.write() as connection:
            jobs.supersede(connection, pull_id, "2" * 40, ci.clock())

    thread = threading.Thread(target=push)
    with ci.database.write() as connection:
        result = JobResult(outcome=Outcome.INFRA, reason="lost")
        next_id = jobs.record_result(connection, job_id, result, ci.clock(), job(number=1, attempt=2))
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
    thread.join(30)
    assert next_id is not None
    assert ci.job(next_id).outcome == "superseded"
