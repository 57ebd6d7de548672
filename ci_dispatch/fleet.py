"""What hosts have free, and where a job fits: all of its GPUs on one host, or not at all.

Times are seconds of any one clock, limits are seconds. Everything here is of one decision: capacity only shrinks in it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from ci_dispatch.model import Arch

AGAIN_SECONDS = 10.0
"""So long a job stays away from hosts where it failed, even where there is no other: one sick host alone must not use up its
attempts in a moment."""
AVOID_SECONDS = 300.0
"""So long a job waits for a host where it has not failed before, while there is one that could take it."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that waits for its GPUs; without any it waits for a slot.

    Attributes:
        pull: names its pull request among all repositories.
        user: on whose account it counts.
        trusted: may run on a host that does not confine its jobs.
        limit: seconds after which it is stopped.
        avoid_hosts, avoid_gpus: runner ids and UUIDs of earlier attempts.
    """

    job_id: int
    arch: Arch
    gpus: int
    priority: int
    queued_at: float
    pull: str
    user: str
    trusted: bool
    limit: float
    avoid_hosts: frozenset[int] = frozenset()
    avoid_gpus: frozenset[str] = frozenset()

    @property
    def width(self) -> int:
        """What it takes of a host: GPUs, or its one slot."""
        return self.gpus or 1


@dataclass(frozen=True, slots=True)
class Host:
    """A runner that is alive and takes jobs.

    Attributes:
        free: UUIDs that are healthy and not leased, in the order in which they are handed out.
        total: those and the leased ones that are healthy.
        free_slots: how many more jobs without a GPU it takes.
        sandboxed: whether it confines jobs; without, only trusted ones run there.
    """

    runner_id: int
    arch: Arch
    free: tuple[str, ...]
    total: int
    free_slots: int
    sandboxed: bool


@dataclass(frozen=True, slots=True)
class Running:
    """An open lease. One without GPUs holds a slot."""

    job_id: int
    runner_id: int
    gpus: tuple[str, ...]
    pull: str
    user: str
    started_at: float
    limit: float


@dataclass(slots=True)
class Bay:
    """A host as one kind of job sees it: its GPUs, or its slots.

    Attributes:
        held: the UUIDs that run jobs.
        ends: (when it ends at the latest, what it gives back) for each job there.
        promised_at: when a large job begins here at the latest; None where none waits for this host.
        spare: what will be free beyond it then.
    """

    runner_id: int
    sandboxed: bool
    total: int
    free: list[str]
    guest: bool = False
    held: set[str] = field(default_factory=set)
    ends: list[tuple[float, int]] = field(default_factory=list)
    promised_at: float | None = None
    spare: int = 0

    def dirty(self, gpus: frozenset[str]) -> int:
        """How many of these GPUs are here."""
        return len(gpus.intersection(self.free)) + len(gpus & self.held) if gpus else 0

    def when(self, width: int, now: float) -> tuple[float, int]:
        """When so much is free at the latest, and how much is free then."""
        free, at = len(self.free), now
        for end, given in sorted(self.ends):
            if free >= width and end > at:
                break
            free, at = free + given, max(at, end)
        return (at, free) if free >= width else (inf, free)


@dataclass(frozen=True, slots=True)
class Caution:
    """What a job that failed before stays away from."""

    hosts: frozenset[int] = frozenset()
    gpus: frozenset[str] = frozenset()


_NONE = Caution()
_Rank = tuple[float, float, float, int]


class Pool:
    """The bays that serve one architecture's jobs, or those without a GPU."""

    def __init__(self, bays: Iterable[Bay], now: float, slots: bool) -> None:
        self.now = now
        self._slots = slots
        self._bays = {bay.runner_id: bay for bay in bays}
        self.total = sum(bay.total for bay in self._bays.values())
        self._order = sorted(self._rank(bay) for bay in self._bays.values() if bay.free)
        self._failed: dict[tuple[int, bool, Caution], float] = {}
        self._promises = 0

    def __len__(self) -> int:
        return len(self._bays)

    def take(self, job: Waiting) -> tuple[int, tuple[str, ...]] | None:
        """The runner and the GPUs that the job gets now; None where it does not fit."""
        caution = self._caution(job)
        # Capacity only shrinks, so what failed once fails again, and so does what runs longer.
        asked = job.width, job.trusted, caution
        if job.limit >= self._failed.get(asked, inf):
            return None
        bay = self._find(job, caution)
        if bay is None:
            self._failed[asked] = job.limit
            return None
        return bay.runner_id, self._hand_out(bay, job)

    def promise(self, job: Waiting) -> bool:
        """Keep the host that has room for the job first; what would delay it there no longer fits."""
        caution = self._caution(job)
        best: tuple[float, int, int] | None = None
        for bay in self._bays.values():
            if bay.promised_at is not None or not self._may_ever(job, bay, caution):
                continue
            needed = job.width + bay.dirty(caution.gpus)
            at, free = bay.when(needed, self.now)
            if at < inf and (best is None or (at, bay.runner_id) < best[:2]):
                best = at, bay.runner_id, free - needed
        if best is None:
            return False
        at, runner_id, spare = best
        bay = self._bays[runner_id]
        bay.promised_at, bay.spare = at, spare
        self._promises += 1
        return True

    @property
    def promises(self) -> int:
        """How many hosts are kept."""
        return self._promises

    def _rank(self, bay: Bay) -> _Rank:
        """The first bay that takes a job is the best one.

        GPUs: the tightest fit, which keeps whole hosts for jobs that need one; at equal fit a host without a
        sandbox, as only some may go there, then the one that is busy longest anyway. Slots: spread, hosts with GPUs last.
        """
        count = len(bay.free)
        if self._slots:
            return bay.guest, bay.sandboxed, -count, bay.runner_id
        busy = max((end for end, _ in bay.ends), default=-inf)
        return count, bay.sandboxed, -busy, bay.runner_id

    def _find(self, job: Waiting, caution: Caution) -> Bay | None:
        width = job.width
        start = 0 if self._slots else bisect_left(self._order, (width,))
        for place in range(start, len(self._order)):
            bay = self._bays[self._order[place][3]]
            if not (bay.sandboxed or job.trusted) or bay.runner_id in caution.hosts:
                continue
            if caution.gpus and len(bay.free) - len(caution.gpus.intersection(bay.free)) < width:
                continue
            late = bay.promised_at is not None and self.now + job.limit > bay.promised_at
            if late and width > bay.spare:
                continue
            return bay
        return None

    def _hand_out(self, bay: Bay, job: Waiting) -> tuple[str, ...]:
        self._order.pop(bisect_left(self._order, self._rank(bay)))
        end = self.now + job.limit
        if bay.promised_at is not None and end > bay.promised_at:
            bay.spare -= job.width
        bay.free.sort(key=job.avoid_gpus.__contains__)
        given, bay.free = bay.free[: job.width], bay.free[job.width :]
        bay.held.update(given)
        bay.ends.append((end, job.width))
        if bay.free:
            insort(self._order, self._rank(bay))
        return () if self._slots else tuple(given)

    def _caution(self, job: Waiting) -> Caution:
        """Another host; after a while, or where there is none, other GPUs; the same only where there are no others."""
        if not (job.avoid_hosts or job.avoid_gpus):
            return _NONE
        careful = Caution(job.avoid_hosts, job.avoid_gpus)
        waited = self.now - job.queued_at
        if waited < AGAIN_SECONDS or (waited < AVOID_SECONDS and self._has_any(job, careful)):
            return careful
        other = Caution(frozenset(), job.avoid_gpus)
        return other if self._has_any(job, other) else _NONE

    def _has_any(self, job: Waiting, caution: Caution) -> bool:
        return any(self._may_ever(job, bay, caution) for bay in self._bays.values())

    def _may_ever(self, job: Waiting, bay: Bay, caution: Caution) -> bool:
        return (
            (bay.sandboxed or job.trusted)
            and bay.runner_id not in caution.hosts
            and bay.total - bay.dirty(caution.gpus) >= job.width
        )


def pools(hosts: Iterable[Host], running: Iterable[Running], now: float) -> dict[Arch, Pool]:
    """A pool for each architecture, and `cpu` for jobs without a GPU, which slots of every host serve."""
    gpu_bays: dict[int, Bay] = {}
    slot_bays: dict[int, Bay] = {}
    arch: dict[int, Arch] = {}
    for host in hosts:
        arch[host.runner_id] = host.arch
        gpu_bays[host.runner_id] = Bay(host.runner_id, host.sandboxed, host.total, list(host.free))
        free = [""] * host.free_slots
        slot_bays[host.runner_id] = Bay(
            host.runner_id, host.sandboxed, host.free_slots, free, guest=host.arch != "cpu"
        )
    for lease in running:
        bay = (gpu_bays if lease.gpus else slot_bays).get(lease.runner_id)
        if bay is None:
            continue
        bay.held.update(lease.gpus)
        bay.ends.append((lease.started_at + lease.limit, len(lease.gpus) or 1))
        if not lease.gpus:
            bay.total += 1
    found: dict[Arch, Pool] = {"cpu": Pool(slot_bays.values(), now, slots=True)}
    for name in sorted(set(arch.values()) - {"cpu"}):
        found[name] = Pool((gpu_bays[runner] for runner in arch if arch[runner] == name), now, slots=False)
    return found
