"""Leases: given out, fetched, kept, closed once; what a lost one says has no effect."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ci_dispatch.lease import Assignment
from ci_dispatch.model import Gpu, JobReport, Notice, Outcome
from service.store import gpus, job_leases, jobs, runners
from service.store.ci_reaper import Hearing, Reaped, reap
from service.store.ci_rows import BadToken
from service.store.database import Database
from service.store.job_leases import LeaseLost, NoSuchLease
from service.store.runners import SILENT_SECONDS
from tests.kit.ci import Ci, job
from tests.service.store.conftest import Clock

NOTHING = JobReport()


@pytest.fixture
def ci(database: Database, clock: Clock) -> Ci:
    return Ci(database, clock)


def close(ci: Ci, granted: job_leases.Granted, said: JobReport = NOTHING) -> bool:
    with ci.database.write() as connection:
        lease = job_leases.find(connection, granted.lease_id, granted.token)
        return job_leases.report(connection, lease, said, ci.clock())


def give_back(ci: Ci, granted: job_leases.Granted) -> bool:
    with ci.database.write() as connection:
        lease = job_leases.find(connection, granted.lease_id, granted.token)
        return job_leases.give_back(connection, lease, ci.clock())


def reaped(ci: Ci) -> Reaped:
    with ci.database.write() as connection:
        return reap(connection, ci.clock())


def later(ci: Ci, seconds: float) -> None:
    ci.clock.now += timedelta(seconds=seconds)


def write(ci: Ci, *assignments: Assignment) -> list[int]:
    with ci.database.write() as connection:
        made = job_leases.write_assignments(connection, assignments, ci.clock())
    return [one.job_id for one in made]


def test_a_job_gets_its_gpus_and_the_runner_its_job(ci: Ci) -> None:
    runner = ci.runner(gpus=4)
    job_id = ci.queue(job(gpus=2))
    granted = ci.granted(runner)
    assert granted.job_id == job_id
    assert granted.gpus == ("GPU-h1-0", "GPU-h1-1")
    assert ci.fetch(runner) is None
    assert not ci.keep(granted)
    assert ci.job(job_id).state == "running"


def test_no_gpu_has_two_leases_whatever_was_decided(ci: Ci) -> None:
    runner = ci.runner(gpus=2)
    first, second = ci.run(job("a", gpus=1), job("b", gpus=2))
    assert write(ci, Assignment(first, runner, ("GPU-h1-1",))) == [first]
    assert write(ci, Assignment(second, runner, ("GPU-h1-0", "GPU-h1-1"))) == []
    assert ci.held_gpus() == ["GPU-h1-1"]
    assert ci.states([first, second]) == ["leased", "queued"]
    granted = ci.fetch(runner)
    assert granted is not None
    close(ci, granted)
    assert write(ci, Assignment(second, runner, ("GPU-h1-0", "GPU-h1-1"))) == [second]


def test_one_assignment_that_no_longer_holds_does_not_stop_the_others(ci: Ci) -> None:
    runner = ci.runner(gpus=2)
    first, second = ci.run(job("a", gpus=1), job("b", gpus=1))
    same = ("GPU-h1-0",)
    assert write(ci, Assignment(first, runner, same), Assignment(second, runner, same)) == [first]
    assert write(ci, Assignment(first, runner, ("GPU-h1-1",))) == []
    assert write(ci, Assignment(second, runner, ("GPU-h1-1",))) == [second]


def test_slots_are_not_oversold(ci: Ci) -> None:
    runner = ci.runner(slots=2)
    ids = ci.run(job("a"), job("b"), job("c"))
    assert write(ci, *(Assignment(one, runner, ()) for one in ids)) == ids[:2]


def test_a_quarantined_gpu_is_never_offered_nor_given(ci: Ci) -> None:
    runner = ci.runner(gpus=1)
    job_id = ci.queue(job(gpus=1))
    with ci.database.write() as connection:
        gpus.quarantine(connection, "GPU-h1-0", "it smokes", ci.clock())
    assert ci.assign().assigned == []
    assert write(ci, Assignment(job_id, runner, ("GPU-h1-0",))) == []
    assert ci.beat(gpus=1).quarantined == ("GPU-h1-0",)
    with ci.database.write() as connection:
        gpus.release(connection, "GPU-h1-0", ci.clock())
    assert len(ci.assign().assigned) == 1


def test_a_gpu_that_its_runner_calls_unhealthy_is_not_offered(ci: Ci) -> None:
    ci.runner(gpus=1)
    ci.queue(job(gpus=1))
    sick = Gpu(uuid="GPU-h1-0", index=0, arch="sm90", healthy=False, reason="the probe failed")
    ci.beat(arch="sm90", gpus_shown=(sick,))
    assert ci.assign().assigned == []
    ci.beat(gpus=1)
    assert len(ci.assign().assigned) == 1


def test_evidence_of_a_runner_puts_a_gpu_out_of_use_until_the_runner_finds_it_well(ci: Ci) -> None:
    ci.runner(gpus=2)
    bad = Notice(kind="xid", gpu="GPU-h1-1", detail="Xid 79")
    assert ci.beat(gpus=2, notices=(bad,)).quarantined == ("GPU-h1-1",)
    assert ci.beat(gpus=2).quarantined == ()


def test_a_fault_of_the_program_puts_no_gpu_out_of_use(ci: Ci) -> None:
    ci.runner(gpus=1)
    wrong = Notice(kind="xid", gpu="GPU-h1-0", code=31, detail="Xid 31: a page fault")
    assert ci.beat(gpus=1, notices=(wrong,)).quarantined == ()


def test_what_a_person_put_out_of_use_no_runner_puts_back(ci: Ci) -> None:
    ci.runner(gpus=1)
    with ci.database.write() as connection:
        gpus.quarantine(connection, "GPU-h1-0", "", ci.clock())
    assert ci.beat(gpus=1).quarantined == ("GPU-h1-0",)
    assert ci.beat(gpus=1).quarantined == ("GPU-h1-0",)


def test_hardware_named_in_a_report_puts_the_leases_gpu_out_of_use_and_no_other(ci: Ci) -> None:
    runner = ci.runner(gpus=2)
    ci.queue(job(gpus=1))
    granted = ci.granted(runner)
    notices = tuple(Notice(kind="ecc", gpu=f"GPU-h1-{index}") for index in range(2))
    close(ci, granted, JobReport(notices=notices))
    with ci.database.read() as connection:
        assert gpus.quarantined(connection) == {"GPU-h1-0"}


def test_a_silent_runner_is_no_capacity(ci: Ci) -> None:
    """Behaviour 15."""
    runner = ci.runner()
    ci.queue(job())
    later(ci, SILENT_SECONDS + 1)
    ci.listen(runner)
    assert ci.assign().assigned == []
    ci.beat()
    assert len(ci.assign().assigned) == 1


def test_a_runner_that_does_not_listen_is_given_nothing(ci: Ci) -> None:
    runner = ci.runner(listens=False)
    ci.queue(job())
    assert ci.assign().assigned == []
    ci.listen(runner, 30)
    later(ci, 31)
    assert ci.assign().assigned == [], "its claim has ended"
    ci.listen(runner)
    assert len(ci.assign().assigned) == 1


def test_a_job_from_a_fork_is_given_to_a_confining_host_only(ci: Ci) -> None:
    ci.runner("open", sandbox=False)
    ci.queue(job(trusted=False))
    assert ci.assign().assigned == []
    ci.runner("confined")
    assert len(ci.assign().assigned) == 1


@pytest.mark.parametrize("how", ["asked", "by itself", "leaves"])
def test_a_drain_at_the_instant_of_assignment_loses_nothing(ci: Ci, how: str) -> None:
    """Behaviour 16: what is assigned and not fetched waits again at once; nothing new is assigned."""
    runner = ci.runner(gpus=1)
    job_id = ci.queue(job(gpus=1))
    ci.assign()
    with ci.database.write() as connection:
        if how == "asked":
            runners.drain(connection, "h1", ci.clock())
        elif how == "leaves":
            runners.leave(connection, runner, ci.clock())
    if how == "by itself":
        ci.beat(gpus=1, draining=True)
    assert ci.job(job_id).state == "queued"
    assert ci.fetch(runner) is None
    assert write(ci, Assignment(job_id, runner, ("GPU-h1-0",))) == []
    assert ci.assign().assigned == []
    ci.runner("h2", gpus=1)
    assert len(ci.assign().assigned) == 1


def test_a_token_is_good_for_its_own_lease_alone(ci: Ci) -> None:
    runner = ci.runner(slots=2)
    ci.run(job("a"), job("b"))
    one = ci.granted(runner)
    two = ci.fetch(runner)
    assert two is not None
    with ci.database.read() as connection:
        with pytest.raises(BadToken):
            job_leases.find(connection, one.lease_id, two.token)
        with pytest.raises(BadToken):
            job_leases.find(connection, one.lease_id, ci.secrets["h1"])
        with pytest.raises(NoSuchLease):
            job_leases.find(connection, 99, one.token)


def test_a_lease_that_is_not_fetched_has_no_token(ci: Ci) -> None:
    ci.runner()
    ci.queue(job())
    (assigned,) = ci.assign().assigned
    with ci.database.read() as connection, pytest.raises(BadToken):
        job_leases.find(connection, assigned.lease_id, "")


def test_a_report_sent_twice_is_stored_once(ci: Ci) -> None:
    job_id = ci.queue(job())
    granted = ci.granted(ci.runner())
    assert close(ci, granted, JobReport(log_tail="the first"))
    assert not close(ci, granted, JobReport(log_tail="the second"))
    with ci.database.read() as connection:
        stored = jobs.report_of(connection, job_id)
    assert stored is not None
    assert (stored.log_tail, stored.runner) == ("the first", "h1")
    with pytest.raises(LeaseLost):
        ci.keep(granted)


def test_a_job_that_is_handed_back_waits_again_as_the_same_attempt_and_elsewhere(ci: Ci) -> None:
    first = ci.runner("h1")
    job_id = ci.queue(job())
    since = ci.job(job_id).queued_at
    later(ci, 5)
    granted = ci.granted(first)
    ci.keep(granted)
    assert give_back(ci, granted)
    assert not give_back(ci, granted)
    again = ci.job(job_id)
    assert (again.state, again.attempt, again.queued_at, again.started_at) == ("queued", 1, since, None)
    ci.listen(first)
    second = ci.runner("h2")
    (assigned,) = ci.assign().assigned
    assert assigned.runner_id == second


def test_a_job_that_was_to_stop_ends_when_it_is_handed_back(ci: Ci) -> None:
    job_id = ci.queue(job())
    granted = ci.granted(ci.runner())
    ci.keep(granted)
    with ci.database.write() as connection:
        jobs.cancel(connection, job_id, Outcome.SUPERSEDED, ci.clock())
    give_back(ci, granted)
    assert (ci.job(job_id).state, ci.job(job_id).outcome) == ("finished", "superseded")


# The reaper


def test_a_lease_that_ran_out_is_lost_and_its_late_report_has_no_effect(ci: Ci) -> None:
    job_id = ci.queue(job(gpus=1))
    granted = ci.granted(ci.runner(gpus=1))
    ci.keep(granted)
    later(ci, job_leases.LEASE_SECONDS - 1)
    assert not reaped(ci).is_news
    later(ci, 2)
    assert reaped(ci).lost == [job_id]
    assert [notice.kind for notice in ci.notices(job_id)] == ["lost"]
    assert ci.job(job_id).state == "reported"
    assert ci.held_gpus() == []
    with pytest.raises(LeaseLost):
        close(ci, granted, JobReport(log_tail="too late"))
    with pytest.raises(LeaseLost):
        give_back(ci, granted)
    assert not reaped(ci).is_news


def test_a_lease_that_is_beaten_lasts(ci: Ci) -> None:
    ci.queue(job())
    granted = ci.granted(ci.runner())
    for _ in range(20):
        later(ci, job_leases.LEASE_SECONDS - 1)
        ci.keep(granted)
        assert not reaped(ci).is_news


def test_a_job_that_nobody_fetches_waits_again_uncounted(ci: Ci) -> None:
    runner = ci.runner()
    job_id = ci.queue(job())
    ci.assign()
    later(ci, job_leases.FETCH_SECONDS + 1)
    assert reaped(ci).put_back == [job_id]
    assert ci.job(job_id).attempt == 1
    assert ci.fetch(runner) is None


def test_a_grant_whose_answer_was_dropped_is_granted_again_with_a_new_token(ci: Ci) -> None:
    runner = ci.runner()
    ci.queue(job())
    dropped = ci.granted(runner)
    ci.beat()
    assert ci.fetch(runner) is None, "a beat may have been on its way before the grant"
    later(ci, 6)
    ci.beat()
    again = ci.fetch(runner)
    assert again is not None
    assert again.lease_id == dropped.lease_id
    with pytest.raises(BadToken):
        ci.keep(dropped)
    ci.keep(again)


@pytest.mark.parametrize("how", ["named", "begun"])
def test_a_grant_that_the_runner_knows_is_not_granted_again(ci: Ci, how: str) -> None:
    runner = ci.runner()
    ci.queue(job())
    granted = ci.granted(runner)
    if how == "begun":
        ci.keep(granted, "")
    later(ci, 6)
    answer = ci.beat(leases=(granted.lease_id,) if how == "named" else ())
    assert answer.lost == ()
    assert ci.fetch(runner) is None
    ci.keep(granted)


def test_a_beat_names_the_leases_that_are_lost(ci: Ci) -> None:
    ci.queue(job())
    granted = ci.granted(ci.runner())
    ci.keep(granted)
    later(ci, job_leases.LEASE_SECONDS + 1)
    reaped(ci)
    assert ci.beat(leases=(granted.lease_id, 99)).lost == (granted.lease_id, 99)


def test_a_job_for_which_no_runner_came_in_time_says_what_was_missing(ci: Ci) -> None:
    job_id = ci.queue(job(gpus=8, pending_minutes=10))
    later(ci, 599)
    assert not reaped(ci).is_news
    later(ci, 2)
    assert reaped(ci).no_runner == [job_id]
    (notice,) = ci.notices(job_id)
    assert notice.kind == "no_runner"
    assert notice.detail == "no runner offered 8 free sm90 GPUs within 10 minutes"


@pytest.mark.parametrize("step", ["", "smoke"])
def test_a_job_that_runs_too_long_is_told_to_stop_then_lost(ci: Ci, step: str) -> None:
    job_id = ci.queue(job(running_minutes=1))
    granted = ci.granted(ci.runner())
    stopped_after = 0
    for second in range(0, 600, 20):
        later(ci, 20)
        if ci.job(job_id).state == "reported":
            break
        if ci.keep(granted, step) and not stopped_after:
            stopped_after = second + 20
        reaped(ci)
    assert 180 <= stopped_after <= 240
    assert ci.job(job_id).cancel == "timed_out"
    assert [notice.kind for notice in ci.notices(job_id)] == ["lost"]


def test_a_run_of_an_older_head_is_superseded_though_nobody_said_so(ci: Ci) -> None:
    job_id = ci.queue(job())
    ci.pull(head="2" * 40)
    assert reaped(ci).superseded == [job_id]
    assert ci.job(job_id).outcome == "superseded"


def test_a_clock_set_back_does_not_keep_the_dead_alive(ci: Ci) -> None:
    job_id = ci.queue(job())
    granted = ci.granted(ci.runner())
    ci.keep(granted)
    later(ci, -3600)
    reaped(ci)
    later(ci, job_leases.LEASE_SECONDS + 1)
    assert reaped(ci).lost == [job_id]


def test_a_runner_seen_in_the_future_is_no_capacity(ci: Ci) -> None:
    runner = ci.runner()
    ci.queue(job())
    later(ci, -3600)
    assert ci.assign().assigned == [], "it listens until a time that is far away"
    ci.listen(runner)
    assert ci.assign().assigned == [], "it was last heard of in the future"
    ci.beat()
    assert len(ci.assign().assigned) == 1


def test_silence_means_nothing_before_runners_could_be_heard() -> None:
    hearing = Hearing(quiet=30)
    wall, monotonic = 1_000.0, 50.0

    def passes(seconds: int, jump: float = 0.0) -> list[bool]:
        nonlocal wall, monotonic
        wall += jump
        answers = []
        for _ in range(seconds):
            answers.append(hearing.check(wall, monotonic))
            wall, monotonic = wall + 1, monotonic + 1
        return answers

    assert passes(40) == [False] * 30 + [True] * 10
    assert passes(40, jump=3600) == [False] * 30 + [True] * 10, "the clock was set forward"
    assert passes(5, jump=-3600) == [True] * 5, "set back, leases look younger"
    monotonic, wall = monotonic + 600, wall + 600
    assert passes(40) == [False] * 30 + [True] * 10, "the process stood still"
