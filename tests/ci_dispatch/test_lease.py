"""Which waiting jobs start, where, and what they have to wait for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ci_dispatch.fleet import AGAIN_SECONDS, AVOID_SECONDS
from ci_dispatch.lease import KEEP_SECONDS, PRIORITY_SECONDS, WIDTH_SECONDS, Host, Used, assign
from tests.ci_dispatch.lease_kit import NOW, gpus, host, job, lease, placed, started


class TestAllAtOnceOrNone:
    def test_a_job_gets_all_of_its_gpus_on_one_host(self) -> None:
        (one,) = assign([job(1, 4)], [host(1, leased=5), host(2, leased=4)], [], NOW)
        assert (one.job_id, one.runner_id, one.gpus) == (1, 2, gpus(2, 4, first=4))

    def test_gpus_of_two_hosts_are_not_put_together(self) -> None:
        assert started([job(1, 8)], [host(1, 4), host(2, 4)]) == {}

    def test_a_pair_and_two_singles_all_end_up_running(self) -> None:
        waiting = [job(1, 2), job(2, 1), job(3, 1)]
        first = assign(waiting, [host(1, 2)], [], NOW)
        assert sum(len(one.gpus) for one in first) == 2
        rest = [one for one in waiting if one.job_id not in placed(first)]
        second = assign(rest, [host(1, 2)], [], NOW)
        assert {*placed(first), *placed(second)} == {1, 2, 3}

    def test_another_architecture_is_no_capacity(self) -> None:
        assert started([job(1, 1)], [host(1, arch="sm120")]) == {}
        assert started([job(1, 1, arch="sm120")], [host(1, arch="sm120"), host(2)]) == {1: 1}

    def test_only_gpus_that_the_host_offers_are_given_out(self) -> None:
        offered = Host(1, "sm90", ("a", "c"), 3, 0, True)
        (one,) = assign([job(1, 2)], [offered], [], NOW)
        assert one.gpus == ("a", "c")

    def test_nothing_waits_or_nothing_is_there(self) -> None:
        assert assign([], [host(1)], [], NOW) == []
        assert assign([job(1)], [], [], NOW) == []


class TestPlace:
    def test_the_tightest_fit_keeps_whole_hosts_free(self) -> None:
        hosts = [host(1), host(2, leased=2), host(3, leased=6), host(4, leased=7)]
        assert started([job(1, 1)], hosts) == {1: 4}
        assert started([job(1, 2)], hosts) == {1: 3}
        assert started([job(1, 4)], hosts) == {1: 2}
        assert started([job(n, 1) for n in range(9)] + [job(9, 8)], hosts)[9] == 1

    def test_a_job_joins_the_host_that_is_busy_longest_anyway(self) -> None:
        hosts = [host(1, leased=4), host(2, leased=4)]
        running = [lease(8, 1, gpus(1, 4), ran=600), lease(9, 2, gpus(2, 4), ran=60)]
        assert started([job(1, 1)], hosts, running) == {1: 2}

    def test_untrusted_jobs_run_in_a_sandbox_only(self) -> None:
        bare = host(1, sandboxed=False)
        assert started([job(1, trusted=False)], [bare]) == {}
        assert started([job(1, trusted=False)], [bare, host(2)]) == {1: 2}
        assert started([job(1, 0, trusted=False)], [replace(bare, free_slots=1)]) == {}

    def test_trusted_jobs_leave_the_sandboxes_to_those_that_need_them(self) -> None:
        assert started([job(1)], [host(1), host(2, sandboxed=False)]) == {1: 2}


class TestSlots:
    def test_a_job_without_gpus_takes_a_slot_and_no_gpu(self) -> None:
        (one,) = assign([job(1, 0)], [host(1, slots=1)], [], NOW)
        assert (one.runner_id, one.gpus) == (1, ())

    def test_slots_do_not_run_out_below_zero(self) -> None:
        assert len(started([job(n, 0) for n in range(5)], [host(1, slots=2), host(2, slots=1)])) == 3

    def test_hosts_without_gpus_first_then_spread(self) -> None:
        hosts = [host(1, slots=8), host(2, 0, arch="cpu", slots=2), host(3, 0, arch="cpu", slots=2)]
        found = started([job(n, 0, age=10 - n) for n in range(5)], hosts)
        assert sorted(found.values()) == [1, 2, 2, 3, 3]
        assert found[0] != found[1]

    def test_slots_are_shared_out_as_gpus_are(self) -> None:
        waiting = [job(1, 0, user="eve", age=600), job(2, 0, user="ada")]
        assert started(waiting, [host(1, slots=1)], [lease(9, 1, (), user="eve")]) == {2: 1}
        assert started(waiting, [host(1, slots=1, leased=1)], [lease(9, 1, gpus(1, 1), user="eve")]) == {1: 1}

    def test_a_slot_in_use_is_one_to_wait_for_after_a_failure(self) -> None:
        again = job(1, 0, age=AGAIN_SECONDS, avoid_hosts=frozenset({1}))
        hosts = [host(1, slots=1), host(2, slots=0)]
        assert started([again], hosts) == {1: 1}
        assert started([again], hosts, [lease(9, 2, ())]) == {}

    def test_slots_and_gpus_do_not_stand_in_each_others_way(self) -> None:
        assert started([job(1, 0), job(2, 8)], [host(1, slots=1)]) == {1: 1, 2: 1}


class TestTurns:
    def test_who_came_first_is_first(self) -> None:
        assert started([job(1, age=1), job(2, age=2)], [host(1, 1)]) == {2: 1}

    def test_priority_counts_like_waiting(self) -> None:
        waiting = [job(1, age=PRIORITY_SECONDS * 2 - 1), job(2, priority=2)]
        assert started(waiting, [host(1, 1)]) == {2: 1}
        waiting = [job(1, age=PRIORITY_SECONDS * 2 + 1), job(2, priority=2)]
        assert started(waiting, [host(1, 1)]) == {1: 1}

    def test_small_jobs_go_a_little_ahead_of_large_ones(self) -> None:
        waiting = [job(1, 2, age=WIDTH_SECONDS - 1), job(2)]
        assert started(waiting, [host(1, 2)]) == {2: 1}
        waiting = [job(1, 2, age=WIDTH_SECONDS + 1), job(2)]
        assert started(waiting, [host(1, 2)]) == {1: 1}

    def test_a_flood_of_one_user_does_not_hold_up_another(self) -> None:
        """The flood has waited as long as the default of pending_minutes lets it."""
        flood = [job(n, age=7000, user="eve") for n in range(100)]
        running = [lease(500 + n, 1, [gpu], ran=1800) for n, gpu in enumerate(gpus(1, 7))]
        assert started([*flood, job(900, user="ada")], [host(1, 8, leased=7)], running) == {900: 1}

    def test_users_get_equal_parts_of_an_empty_fleet(self) -> None:
        waiting = [job(n, user="eve", age=600) for n in range(50)]
        waiting += [job(100 + n, user="ada") for n in range(50)]
        found = started(waiting, [host(1), host(2)])
        assert sum(one >= 100 for one in found) in (7, 8)

    def test_pull_requests_of_one_user_take_turns(self) -> None:
        waiting = [job(n, pull="large", age=60) for n in range(50)] + [
            job(100 + n, pull="small") for n in range(2)
        ]
        assert {100, 101} <= set(started(waiting, [host(1)]))

    def test_what_was_used_lately_counts(self) -> None:
        waiting = [job(1, user="eve", age=600), job(2, user="ada")]
        assert started(waiting, [host(1, 1)]) == {1: 1}
        used = Used("sm90", 1, "eve's pull", "eve", NOW - 2000, NOW - 10)
        assert placed(assign(waiting, [host(1, 1)], [], NOW, [used])) == {2: 1}
        for other in (
            replace(used, arch="sm120"),
            replace(used, ended_at=NOW - 1900),
            replace(used, user="x", pull="x"),
        ):
            assert placed(assign(waiting, [host(1, 1)], [], NOW, [other])) == {1: 1}

    def test_only_the_last_while_counts(self) -> None:
        used = Used("sm90", 1, "ada's pull", "ada", NOW - 50_000, NOW - 1750)
        waiting = [job(1, user="eve"), job(2, user="ada", age=600)]
        assert placed(assign(waiting, [host(1, 1)], [], NOW, [used])) == {2: 1}


class TestLargeJobs:
    def test_a_host_is_kept_for_one_that_has_waited_and_comes_first(self) -> None:
        hosts = [host(1, leased=4)]
        running = [lease(9, 1, gpus(1, 4), ran=1800)]
        small = job(2, 1, user="bob", limit=3600)
        assert started([job(1, 8, age=KEEP_SECONDS + 1300), small], hosts, running) == {}
        early = job(1, 8, age=KEEP_SECONDS - 1, priority=5)
        assert started([early, small], hosts, running) == {2: 1}

    def test_what_ends_in_time_runs_there_meanwhile(self) -> None:
        hosts = [host(1, leased=4)]
        running = [lease(9, 1, gpus(1, 4), ran=1800)]
        large = job(1, 8, age=3600)
        for limit, runs in ((1799.0, {2: 1}), (1801.0, {})):
            assert started([large, job(2, 1, user="bob", limit=limit)], hosts, running) == runs

    def test_what_leaves_it_enough_runs_there_for_long(self) -> None:
        hosts = [host(1, leased=7)]
        running = [lease(9, 1, gpus(1, 7), ran=1800)]
        waiting = [job(1, 4, age=3600), job(2, 1, user="bob"), job(3, 1, user="bob")]
        assert started(waiting, hosts, running) == {2: 1}

    def test_what_it_leaves_is_given_out_once(self) -> None:
        running = [lease(8, 1, gpus(1, 2), ran=3000), lease(9, 1, gpus(1, 3, first=2), ran=600)]
        waiting = [job(1, 4, age=3600), job(2, user="bob", age=1), job(3, user="cid")]
        assert started(waiting, [host(1, leased=5)], running) == {2: 1}

    def test_leases_that_end_together_leave_it_what_both_give_back(self) -> None:
        running = [lease(8, 1, gpus(1, 4), ran=1800), lease(9, 1, gpus(1, 3, first=4), ran=1800)]
        waiting = [job(1, 4, age=3600), job(2, user="bob")]
        assert started(waiting, [host(1, leased=7)], running) == {2: 1}

    def test_what_starts_in_the_same_decision_is_waited_for_too(self) -> None:
        first, large = job(1, age=9999, limit=1000.0), job(2, 8, age=9999)
        for limit, runs in ((999.0, {1: 1, 3: 1}), (1001.0, {1: 1})):
            assert started([first, large, job(3, user="bob", limit=limit)], [host(1)]) == runs

    def test_the_host_that_is_free_first_is_kept(self) -> None:
        hosts = [host(1, leased=7), host(2, leased=7)]
        running = [lease(8, 1, gpus(1, 7), ran=100), lease(9, 2, gpus(2, 7), ran=1800)]
        assert started([job(1, 8, age=3600), job(2, 1, user="bob")], hosts, running) == {2: 1}

    def test_a_lease_past_its_limit_keeps_no_host_back(self) -> None:
        running = [lease(9, 1, gpus(1, 7), ran=9999)]
        assert (
            started([job(1, 8, age=3600), job(2, 1, user="bob", limit=1.0)], [host(1, leased=7)], running)
            == {}
        )

    def test_not_every_host_is_kept(self) -> None:
        hosts = [host(n, leased=7) for n in range(8)]
        running = [lease(100 + n, n, gpus(n, 7)) for n in range(8)]
        waiting = [job(n, 8, age=9999) for n in range(8)]
        waiting += [job(50 + n, 1, user="bob", limit=86_400) for n in range(8)]
        assert len(started(waiting, hosts, running)) == 6

    def test_one_that_no_host_can_ever_take_keeps_none(self) -> None:
        waiting = [job(1, 8, age=9999), job(2, 1, user="bob")]
        assert started(waiting, [host(1, 4)]) == {2: 1}


class TestAfterAFailure:
    def test_another_host_comes_first(self) -> None:
        again = job(1, avoid_hosts=frozenset({1}))
        assert started([again], [host(1, leased=7), host(2)]) == {1: 2}

    def test_while_there_is_another_it_waits_for_it_but_not_for_ever(self) -> None:
        hosts = [host(1), host(2, leased=8)]
        for age, runs in ((AVOID_SECONDS - 1, {}), (AVOID_SECONDS, {1: 1})):
            assert started([job(1, age=age, avoid_hosts=frozenset({1}))], hosts) == runs

    def test_a_sick_host_alone_does_not_use_up_the_attempts_in_a_moment(self) -> None:
        for age, runs in ((AGAIN_SECONDS - 0.1, {}), (AGAIN_SECONDS, {1: 1})):
            assert started([job(1, age=age, avoid_hosts=frozenset({1}))], [host(1)]) == runs

    def test_where_there_is_no_other_it_waits_no_longer(self) -> None:
        again = job(1, 4, age=AGAIN_SECONDS, avoid_hosts=frozenset({1}))
        assert started([again], [host(1)]) == {1: 1}
        assert started([again], [host(1), host(2, 2), host(3, arch="sm120")]) == {1: 1}
        untrusted = replace(again, trusted=False)
        assert started([untrusted], [host(1), host(2, sandboxed=False)]) == {1: 1}

    @pytest.mark.parametrize("age", [AGAIN_SECONDS, 99_999.0])
    def test_the_same_gpu_is_not_used_again_while_there_is_another(self, age: float) -> None:
        again = job(1, age=age, avoid_hosts=frozenset({1}), avoid_gpus=frozenset(gpus(1, 1)))
        (one,) = assign([again], [host(1)], [], NOW)
        assert one.gpus == gpus(1, 1, first=1)
        only = host(1, 2)
        busy = replace(only, free=gpus(1, 1))
        assert assign([again], [busy], [lease(9, 1, gpus(1, 1, first=1))], NOW) == []

    def test_the_same_gpu_is_better_than_none(self) -> None:
        again = job(1, age=AGAIN_SECONDS, avoid_hosts=frozenset({1}), avoid_gpus=frozenset(gpus(1, 1)))
        assert started([again], [host(1, 1)]) == {1: 1}
        whole = job(1, 8, age=AGAIN_SECONDS, avoid_hosts=frozenset({1}), avoid_gpus=frozenset(gpus(1, 8)))
        assert started([whole], [host(1)]) == {1: 1}

    def test_a_host_is_kept_without_the_gpus_that_failed(self) -> None:
        again = job(1, 4, age=3600, avoid_gpus=frozenset(gpus(1, 2)))
        free = replace(host(1), free=gpus(1, 2))
        running = [
            lease(8, 1, gpus(1, 2, first=2), ran=3000),
            lease(9, 1, gpus(1, 4, first=4), ran=1800),
        ]
        assert started([again], [free], running) == {}
        # The first lease gives back two, the second the other two that it waits for.
        assert started([again, job(2, 2, user="bob", limit=1700.0)], [free], running) == {2: 1}
        assert started([again, job(2, 2, user="bob", limit=1900.0)], [free], running) == {2: 1}
        wider = replace(again, avoid_gpus=frozenset(gpus(1, 4)))
        assert started([wider, job(2, 1, user="bob", limit=1900.0)], [free], running) == {}
