"""Which waiting jobs start now, and where: a pure decision over the hosts' inventories.

A job gets all of its GPUs on one host at once or none, so jobs never wait for one another in a circle. Jobs take turns by when they were
queued, moved ahead by priority and back by what their user and pull request hold: both are bounded, so every job comes first in the
end. One that then still lacks room, because smaller ones keep filling it, has a host kept for it: others run there only if they end
in time or leave it what it needs.

Decisions stand on nothing but their arguments: same arguments in any order, same answer.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import log2

from ci_dispatch.fleet import Host, Pool, Running, Waiting, pools
from ci_dispatch.model import Arch
from ci_dispatch.shares import MEMORY_SECONDS, Shares, Used, names

__all__ = ["MEMORY_SECONDS", "Assignment", "Host", "Running", "Used", "Waiting", "assign"]

PRIORITY_SECONDS = 300.0
"""A step of priority counts like so much waiting."""
USER_SECONDS = 7200.0
"""Who holds the whole pool stands behind who holds nothing by so much waiting."""
PULL_SECONDS = 1800.0
"""The same for a pull request."""
WIDTH_SECONDS = 300.0
"""Each doubling of its GPUs puts a job back by so much: small ones cost the large little, and wait least by it."""
KEEP_SECONDS = 300.0
"""After so long a job of several GPUs has a host kept for it when it comes first."""
KEPT_PART = 0.25
"""Of a pool's hosts so many at most are kept at a time, yet always one."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A job starts on this runner with these GPUs; a job without any takes one of its slots."""

    job_id: int
    runner_id: int
    gpus: tuple[str, ...]


def assign(
    waiting: Iterable[Waiting],
    hosts: Iterable[Host],
    running: Iterable[Running],
    now: float,
    recent: Iterable[Used] = (),
) -> list[Assignment]:
    """The jobs that start now, in the order in which they were chosen.

    `recent` are leases that ended within the last `MEMORY_SECONDS`; without them only what runs counts for turns.
    """
    hosts, running = list(hosts), sorted(running, key=lambda lease: lease.job_id)
    arch = {host.runner_id: host.arch for host in hosts}
    by_arch: dict[Arch, list[Waiting]] = defaultdict(list)
    for job in waiting:
        by_arch[job.arch].append(job)
    found: list[Assignment] = []
    for name, pool in pools(hosts, running, now).items():
        if not by_arch[name]:
            continue
        shares = Shares(pool.total, now)
        for lease in running:
            if name == (arch.get(lease.runner_id) if lease.gpus else "cpu"):
                for account in names(lease.user, lease.pull):
                    shares.hold(account, len(lease.gpus) or 1, lease.started_at)
        for used in recent:
            if used.arch == name:
                for account in names(used.user, used.pull):
                    shares.held(account, used.gpus or 1, used.started_at, used.ended_at)
        found += _assign(by_arch[name], pool, shares, now)
    return found


def _assign(waiting: list[Waiting], pool: Pool, shares: Shares, now: float) -> Iterable[Assignment]:
    kept = max(1, int(len(pool) * KEPT_PART))
    turns = _Turns(waiting, shares)
    while (job := turns.next()) is not None:
        taken = pool.take(job)
        if taken is not None:
            for account in names(job.user, job.pull):
                shares.hold(account, job.width, now)
            yield Assignment(job.job_id, *taken)
        elif job.gpus > 1 and now - job.queued_at >= KEEP_SECONDS and pool.promises < kept:
            pool.promise(job)


class _Line:
    """A user's waiting jobs of one pull request, the next one last."""

    __slots__ = ("accounts", "jobs")

    def __init__(self, user: str, pull: str) -> None:
        self.accounts = names(user, pull)
        self.jobs: list[tuple[float, int, Waiting]] = []


class _Turns:
    """Waiting jobs one by one: within a user's pull request as queued, among them by who holds least."""

    def __init__(self, waiting: list[Waiting], shares: Shares) -> None:
        self._shares = shares
        lines: dict[tuple[str, str], _Line] = {}
        for job in waiting:
            place = job.queued_at - job.priority * PRIORITY_SECONDS + log2(job.width) * WIDTH_SECONDS
            key = job.user, job.pull
            line = lines.get(key)
            if line is None:
                line = lines[key] = _Line(*key)
            line.jobs.append((place, job.job_id, job))
        for line in lines.values():
            line.jobs.sort(reverse=True)
        self._heap = [self._entry(line) for line in lines.values()]
        heapq.heapify(self._heap)

    def next(self) -> Waiting | None:
        """The job whose turn it is; None after the last."""
        while self._heap:
            rank, _, line = self._heap[0]
            entry = self._entry(line)
            if entry[0] > rank:
                # Its user or pull request was given something since: it stands further back now.
                heapq.heapreplace(self._heap, entry)
                continue
            job = line.jobs.pop()[2]
            if line.jobs:
                heapq.heapreplace(self._heap, self._entry(line))
            else:
                heapq.heappop(self._heap)
            return job
        return None

    def _entry(self, line: _Line) -> tuple[float, int, _Line]:
        place, job_id, _ = line.jobs[-1]
        user, pull = line.accounts
        put_back = USER_SECONDS * self._shares.share(user) + PULL_SECONDS * self._shares.share(pull)
        return place + put_back, job_id, line
