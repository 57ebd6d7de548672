"""What holds of every lease decision, and of any run of decisions."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ci_dispatch.fleet import AVOID_SECONDS
from ci_dispatch.lease import (
    KEEP_SECONDS,
    PRIORITY_SECONDS,
    PULL_SECONDS,
    USER_SECONDS,
    WIDTH_SECONDS,
    Assignment,
    Host,
    Running,
    Used,
    Waiting,
    assign,
)
from tests.ci_dispatch.lease_kit import NOW, gpus, host, job

USERS = ("ada", "bob", "eve")
SIZES = (0, 1, 2, 4, 8)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[Waiting], list[Host], list[Running], list[Used]]:
    """Hosts of three kinds with leased, quarantined and free GPUs, and jobs with any history."""
    hosts: list[Host] = []
    running: list[Running] = []
    for runner in range(draw(st.integers(0, 5))):
        total = draw(st.sampled_from((1, 2, 4, 8)))
        states = draw(st.lists(st.sampled_from("fflq"), min_size=total, max_size=total))
        named = dict(zip(gpus(runner, total), states, strict=True))
        arch = draw(st.sampled_from(("sm90", "sm90", "sm120", "cpu")))
        free = tuple(uuid for uuid, state in named.items() if state == "f") if arch != "cpu" else ()
        held = [uuid for uuid, state in named.items() if state == "l"] if arch != "cpu" else []
        slots, sandboxed = draw(st.integers(0, 3)), draw(st.booleans())
        hosts.append(Host(runner, arch, free, len(free) + len(held), slots, sandboxed))
        for uuids in [(uuid,) for uuid in held] + [()] * draw(st.integers(0, 2)):
            user, ran = draw(st.sampled_from(USERS)), draw(st.floats(0, 9000))
            running.append(Running(1000 + len(running), runner, uuids, f"{user}'s", user, NOW - ran, 3600.0))
    uuids = [uuid for runner in range(6) for uuid in gpus(runner, 8)]
    waiting = [
        job(
            number,
            width := draw(st.sampled_from(SIZES)),
            age=draw(st.sampled_from((0.0, 60.0, 400.0, 2000.0, 7000.0))),
            user=draw(st.sampled_from(USERS)),
            pull=draw(st.sampled_from(("one", "two", "three"))),
            arch=draw(st.sampled_from(("sm90", "sm120"))) if width else "cpu",
            priority=draw(st.integers(-10, 10)),
            trusted=draw(st.booleans()),
            limit=draw(st.sampled_from((60.0, 1800.0, 3600.0))),
            avoid_hosts=draw(st.frozensets(st.integers(0, 5), max_size=2)),
            avoid_gpus=draw(st.frozensets(st.sampled_from(uuids), max_size=2)),
        )
        for number in range(draw(st.integers(0, 25)))
    ]
    recent = [
        Used("sm90", 1, "one", user, NOW - ago - 100, NOW - ago)
        for user, ago in draw(st.lists(st.tuples(st.sampled_from(USERS), st.floats(0, 3000)), max_size=4))
    ]
    return waiting, hosts, running, recent


FLEETS = fleets()


@given(FLEETS)
@settings(max_examples=200, deadline=None)
def test_every_job_gets_what_it_asks_for_where_it_may_run_and_nothing_is_given_twice(fleet: tuple) -> None:
    waiting, hosts, running, recent = fleet
    jobs, by_id = {one.job_id: one for one in waiting}, {one.runner_id: one for one in hosts}
    found = assign(waiting, hosts, running, NOW, recent)
    assert max(Counter(one.job_id for one in found).values(), default=1) == 1
    assert max(Counter(uuid for one in found for uuid in one.gpus).values(), default=1) == 1
    slots: Counter[int] = Counter()
    for one in found:
        wanted, place = jobs[one.job_id], by_id[one.runner_id]
        assert len(one.gpus) == wanted.gpus
        assert set(one.gpus) <= set(place.free)
        assert wanted.arch == ("cpu" if not wanted.gpus else place.arch)
        assert wanted.trusted or place.sandboxed
        slots[one.runner_id] += not wanted.gpus
    assert all(count <= by_id[runner].free_slots for runner, count in slots.items())


@given(FLEETS, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_the_order_of_the_arguments_changes_nothing(fleet: tuple, shuffle: random.Random) -> None:
    waiting, hosts, running, recent = fleet
    found = assign(waiting, hosts, running, NOW, recent)
    shuffled = [shuffle.sample(part, len(part)) for part in (waiting, hosts, running)]
    assert assign(*shuffled, NOW, shuffle.sample(recent, len(recent))) == found


@given(FLEETS)
@settings(max_examples=100, deadline=None)
def test_nothing_that_fits_is_left_waiting_where_no_host_is_kept(fleet: tuple) -> None:
    waiting, hosts, running, recent = fleet
    waiting = [
        replace(one, queued_at=NOW - one.gpus, avoid_hosts=frozenset(), avoid_gpus=frozenset())
        for one in waiting
    ]
    found = assign(waiting, hosts, running, NOW, recent)
    given_out = {uuid for one in found for uuid in one.gpus}
    slots = Counter(one.runner_id for one in found if not one.gpus)
    for one in waiting:
        if one.job_id in {each.job_id for each in found}:
            continue
        for place in hosts:
            if not (one.trusted or place.sandboxed) or (one.gpus and one.arch != place.arch):
                continue
            left = len(set(place.free) - given_out) if one.gpus else place.free_slots - slots[place.runner_id]
            assert left < one.width


@given(FLEETS)
@settings(max_examples=100, deadline=None)
def test_a_gpu_that_failed_a_job_is_given_to_it_again_only_where_there_is_no_other(fleet: tuple) -> None:
    waiting, hosts, running, recent = fleet
    jobs = {one.job_id: one for one in waiting}
    held: dict[int, set[str]] = defaultdict(set)
    for one in running:
        held[one.runner_id].update(one.gpus)
    for one in assign(waiting, hosts, running, NOW, recent):
        wanted = jobs[one.job_id]
        able = [
            place
            for place in hosts
            if (wanted.trusted or place.sandboxed)
            and (not wanted.gpus or place.arch == wanted.arch)
            and wanted.gpus
            and place.total - len(wanted.avoid_gpus & (set(place.free) | held[place.runner_id]))
            >= wanted.gpus
        ]
        if wanted.avoid_gpus & set(one.gpus):
            assert not able
        young = wanted.queued_at > NOW - AVOID_SECONDS
        if one.runner_id in wanted.avoid_hosts and young:
            assert all(place.runner_id in wanted.avoid_hosts for place in able)


@given(st.integers(2, 6), st.integers(1, 3), st.sampled_from((1, 2, 4, 8)))
@settings(max_examples=60, deadline=None)
def test_users_who_ask_for_the_same_at_once_get_the_same(users: int, hosts: int, width: int) -> None:
    waiting = [
        job(100 * user + number, width, user=f"user {user}") for user in range(users) for number in range(24)
    ]
    found = assign(waiting, [host(runner) for runner in range(hosts)], [], NOW)
    counts = Counter(one.job_id // 100 for one in found)
    assert sum(counts.values()) == 8 * hosts // width
    assert max(counts.values()) - min(counts[user] for user in range(users)) <= 1


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@given(seed=st.integers(0, 10_000), priority=st.integers(-10, 10), trusted=st.booleans())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_job_starves_under_an_endless_stream_of_small_ones(
    width: int, seed: int, priority: int, trusted: bool
) -> None:
    """Whatever comes later stands behind it once it is older than all that can put it back; then one host drains."""
    limit = 900.0
    put_back = (10 - priority) * PRIORITY_SECONDS + USER_SECONDS + PULL_SECONDS + 3 * WIDTH_SECONDS
    bound = put_back + KEEP_SECONDS + 3 * limit
    late = job(0, width, priority=priority, user="late", queued_at=limit, trusted=trusted, limit=limit)
    assert begins(late, random.Random(seed), limit, limit + bound) <= limit + bound


def begins(late: Waiting, draw: random.Random, limit: float, until: float) -> float:
    """When a job starts that meets a full fleet, where more small ones come than it can run; infinite where not in time."""
    hosts = [host(0), host(1), host(2, sandboxed=False)]
    free = {one.runner_id: set(one.free) for one in hosts}
    waiting: dict[int, Waiting] = {}
    running: dict[int, Running] = {}
    ends: list[tuple[float, int]] = []
    now, number = 0.0, 0
    while now <= late.queued_at or late.job_id in waiting:
        if now > until:
            return math.inf
        if now == late.queued_at:
            waiting[late.job_id] = late
        # Each minute more is asked for than can be done in one.
        while sum(one.gpus for one in waiting.values() if one is not late) < 24:
            number += 1
            user = f"user {draw.randrange(8)}"
            waiting[number] = job(
                number,
                draw.choice((1, 1, 2)),
                priority=draw.choice((0, 5, 10)),
                user=user,
                queued_at=now,
                limit=limit,
                trusted=draw.random() < 0.5,
            )
        while ends and ends[0][0] <= now:
            ended = running.pop(heapq.heappop(ends)[1])
            free[ended.runner_id].update(ended.gpus)
        offered = [replace(one, free=tuple(sorted(free[one.runner_id]))) for one in hosts]
        for one in assign(waiting.values(), offered, running.values(), now):
            start = waiting.pop(one.job_id)
            running[one.job_id] = lease_of(start, one, now)
            free[one.runner_id] -= set(one.gpus)
            heapq.heappush(ends, (now + draw.uniform(60, limit), one.job_id))
        now += 60
    return now - 60


def lease_of(one: Waiting, given: Assignment, now: float) -> Running:
    return Running(one.job_id, given.runner_id, given.gpus, one.pull, one.user, now, one.limit)
