"""The same jobs under several ways of handing out GPUs: a discrete-event simulation and what comes of it."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ci_dispatch.lease import MEMORY_SECONDS, Assignment, Host, Running, Used, Waiting, assign
from service.bench.lease_load import GPUS_PER_HOST, SLOTS_PER_HOST, Load

Decide = Callable[[list[Waiting], list[Host], list[Running], float, list[Used]], Iterable[Assignment]]

_TICK_SECONDS = 15.0


@dataclass(slots=True)
class Played:
    """When each job began, how long each decision took, and how many jobs never began."""

    began: dict[int, float] = field(default_factory=dict)
    decisions: list[float] = field(default_factory=list)
    stuck: int = 0


def ours(
    waiting: list[Waiting], hosts: list[Host], running: list[Running], now: float, recent: list[Used]
) -> Iterable[Assignment]:
    return assign(waiting, hosts, running, now, recent)


def strict_first(
    waiting: list[Waiting], hosts: list[Host], running: list[Running], now: float, recent: list[Used]
) -> Iterable[Assignment]:
    """First come, first served over the whole pool: the first that does not fit stops all behind it."""
    return _in_order(waiting, hosts, stops=True)


def first_fit(
    waiting: list[Waiting], hosts: list[Host], running: list[Running], now: float, recent: list[Used]
) -> Iterable[Assignment]:
    """Whatever fits, oldest first; nothing is kept for the large ones."""
    return _in_order(waiting, hosts, stops=False)


def _in_order(waiting: list[Waiting], hosts: list[Host], stops: bool) -> Iterable[Assignment]:
    free = {host.runner_id: list(host.free) for host in hosts}
    slots = {host.runner_id: host.free_slots for host in hosts}
    for gpu_jobs in (False, True):
        for job in waiting:
            if bool(job.gpus) != gpu_jobs:
                continue
            room = {runner: len(uuids) for runner, uuids in free.items()} if job.gpus else slots
            fits = [(count, runner) for runner, count in room.items() if count >= job.width]
            if not fits:
                if stops:
                    break
                continue
            runner = min(fits)[1]
            given = tuple(free[runner][: job.gpus])
            del free[runner][: job.gpus]
            slots[runner] -= not job.gpus
            yield Assignment(job.job_id, runner, given)


def play(loads: list[Load], hosts: int, decide: Decide) -> Played:
    """Runs the jobs on so many hosts of 8 GPUs each."""
    jobs = {load.job_id: load for load in loads}
    coming = deque(loads)
    waiting: dict[int, Waiting] = {}
    running: dict[int, Running] = {}
    ending: list[tuple[float, int]] = []
    recent: deque[Used] = deque()
    free = {runner: [f"gpu-{runner}-{index}" for index in range(GPUS_PER_HOST)] for runner in range(hosts)}
    slots = dict.fromkeys(range(hosts), SLOTS_PER_HOST)
    played = Played()
    now = 0.0
    while coming or waiting or running:
        while coming and coming[0].at <= now:
            load = coming.popleft()
            waiting[load.job_id] = _waiting(load)
        while ending and ending[0][0] <= now:
            lease = running.pop(heapq.heappop(ending)[1])
            free[lease.runner_id] = sorted([*free[lease.runner_id], *lease.gpus])
            slots[lease.runner_id] += not lease.gpus
            arch = "sm90" if lease.gpus else "cpu"
            recent.append(
                Used(arch, len(lease.gpus), lease.pull, lease.user, lease.started_at, now)  # type: ignore[arg-type]
            )
        while recent and recent[0].ended_at < now - MEMORY_SECONDS:
            recent.popleft()
        if waiting:
            fleet = [
                Host(runner, "sm90", tuple(uuids), GPUS_PER_HOST, slots[runner], sandboxed=True)
                for runner, uuids in free.items()
            ]
            inputs = list(waiting.values()), fleet, list(running.values()), now, list(recent)
            begun = time.perf_counter()
            decided = list(decide(*inputs))
            played.decisions.append(time.perf_counter() - begun)
            for start in decided:
                job = waiting.pop(start.job_id)
                load = jobs[start.job_id]
                free[start.runner_id] = [uuid for uuid in free[start.runner_id] if uuid not in start.gpus]
                slots[start.runner_id] -= not start.gpus
                running[job.job_id] = Running(
                    job.job_id, start.runner_id, start.gpus, job.pull, job.user, now, job.limit
                )
                heapq.heappush(ending, (now + load.seconds, job.job_id))
                played.began[job.job_id] = now
        following = [coming[0].at] if coming else []
        following += [ending[0][0]] if ending else []
        if waiting and running:
            following.append(now + _TICK_SECONDS)
        if not following:
            # Nothing runs, nothing comes, and still nothing was started.
            played.stuck = len(waiting)
            break
        now = min(following)
    return played


def play_labels(loads: list[Load], runners: dict[int, int]) -> Played:
    """Runners with a fixed number of GPUs each, one label a number: a job waits for a runner of its own label."""
    played = Played()
    for gpus, count in runners.items():
        played.began |= _play_label([load for load in loads if load.gpus == gpus], count)
    played.stuck = len(loads) - len(played.began)
    return played


def best_labels(loads: list[Load], hosts: int) -> dict[int, int]:
    """The partition of the pool with the lowest mean wait for exactly these jobs: what only hindsight finds.

    Each host is cut into runners of 1, 2, 4 or 8 GPUs; any numbers that add up fit, as each size divides the next.
    """
    total = hosts * GPUS_PER_HOST
    by_size = {gpus: [load for load in loads if load.gpus == gpus] for gpus in (1, 2, 4, 8)}

    def waited(gpus: int, count: int) -> float:
        asked = by_size[gpus]
        if not asked or not count:
            return float("inf") if asked else 0.0
        began = _play_label(asked, count)
        return sum(began[load.job_id] - load.at for load in asked)

    cost = {gpus: [waited(gpus, count) for count in range(total // gpus + 1)] for gpus in by_size}
    choices = [
        (cost[8][eights] + cost[4][fours] + cost[2][twos] + cost[1][ones], eights, fours, twos, ones)
        for eights in range(hosts + 1)
        for fours in range((total - 8 * eights) // 4 + 1)
        for twos in range((total - 8 * eights - 4 * fours) // 2 + 1)
        for ones in [total - 8 * eights - 4 * fours - 2 * twos]
    ]
    _, eights, fours, twos, ones = min(choices)
    return {0: hosts * SLOTS_PER_HOST, 1: ones, 2: twos, 4: fours, 8: eights}


def _play_label(loads: list[Load], count: int) -> dict[int, float]:
    began: dict[int, float] = {}
    busy: list[float] = []
    for load in loads if count else ():
        at = load.at if len(busy) < count else max(load.at, heapq.heappop(busy))
        began[load.job_id] = at
        heapq.heappush(busy, at + load.seconds)
    return began


def _waiting(load: Load) -> Waiting:
    return Waiting(
        load.job_id,
        "sm90" if load.gpus else "cpu",
        load.gpus,
        load.priority,
        load.at,
        load.pull,
        load.user,
        trusted=True,
        limit=load.limit,
    )
