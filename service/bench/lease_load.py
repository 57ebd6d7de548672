"""A made week-day of GPU CI: pushes to pull requests, each queueing several jobs at once."""

from __future__ import annotations

import random
from dataclasses import dataclass

GPUS_PER_HOST = 8
SLOTS_PER_HOST = 2
PENDING_SECONDS = 7200.0
"""The default of `pending_minutes`: who waits longer has starved."""

_SIZES = {0: 15, 1: 42, 2: 20, 4: 13, 8: 10}
_MINUTES = {0: 4.0, 1: 7.0, 2: 9.0, 4: 12.0, 8: 14.0}
_SPREAD = 0.6
_LIMITS = (1200.0, 1800.0, 3600.0)
_USERS, _PULLS_PER_USER = 12, 5
_BURST_PART = 0.35


@dataclass(frozen=True, slots=True)
class Load:
    """A job of the simulation; `seconds` is how long it runs, which no scheduler knows."""

    job_id: int
    gpus: int
    at: float
    seconds: float
    limit: float
    priority: int
    pull: str
    user: str


def make(jobs: int, gpus: int, fill: float, seed: int) -> list[Load]:
    """`jobs` jobs in the order in which they come, that ask for `fill` of `gpus` GPUs over the time in which they come.

    The first user pushes a third of everything; some pushes come together, as before a meeting.
    """
    draw = random.Random(seed)
    pushes: list[list[Load]] = []
    made = 0
    while made < jobs:
        user = min(int(draw.expovariate(0.35)), _USERS - 1)
        pull = f"user-{user}/pull-{draw.randrange(_PULLS_PER_USER)}"
        priority = draw.choices((0, 2, 5), weights=(80, 15, 5))[0]
        size = min(draw.randint(3, 10), jobs - made)
        pushes.append([_job(draw, made + index, pull, f"user-{user}", priority) for index in range(size)])
        made += size
    work = sum(job.gpus * job.seconds for push in pushes for job in push)
    span = work / (gpus * fill)
    bursts = [draw.uniform(0, span) for _ in range(max(1, len(pushes) // 30))]
    found: list[Load] = []
    for push in pushes:
        together = draw.random() < _BURST_PART
        at = draw.choice(bursts) + draw.uniform(0, 60) if together else draw.uniform(0, span)
        found += [_at(job, at) for job in push]
    return sorted(found, key=lambda job: (job.at, job.job_id))


def _job(draw: random.Random, number: int, pull: str, user: str, priority: int) -> Load:
    gpus = draw.choices(list(_SIZES), weights=list(_SIZES.values()))[0]
    seconds = 60 * _MINUTES[gpus] * draw.lognormvariate(0, _SPREAD)
    limit = next((limit for limit in _LIMITS if limit >= 2 * seconds), _LIMITS[-1])
    return Load(number, gpus, 0.0, min(seconds, limit), limit, priority, pull, user)


def _at(job: Load, at: float) -> Load:
    return Load(job.job_id, job.gpus, at, job.seconds, job.limit, job.priority, job.pull, job.user)
