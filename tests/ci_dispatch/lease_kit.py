"""Hosts, waiting jobs and leases as the tests of the lease decision speak of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ci_dispatch.lease import Assignment, Host, Running, Waiting, assign

NOW = 1_000_000.0


def host(
    runner_id: int,
    total: int = 8,
    leased: int = 0,
    arch: str = "sm90",
    slots: int = 0,
    sandboxed: bool = True,
) -> Host:
    """A host whose first GPUs are leased."""
    return Host(runner_id, arch, gpus(runner_id, total)[leased:], total, slots, sandboxed)  # type: ignore[arg-type]


def gpus(runner_id: int, count: int, first: int = 0) -> tuple[str, ...]:
    return tuple(f"gpu-{runner_id}-{index}" for index in range(first, first + count))


def job(job_id: int, gpus: int = 1, age: float = 0.0, user: str = "ada", **changed: Any) -> Waiting:
    values: dict[str, Any] = {
        "job_id": job_id,
        "arch": "sm90" if gpus else "cpu",
        "gpus": gpus,
        "priority": 0,
        "queued_at": NOW - age,
        "pull": f"{user}'s pull",
        "user": user,
        "trusted": True,
        "limit": 3600.0,
    }
    return Waiting(**{**values, **changed})


def lease(
    job_id: int,
    runner_id: int,
    held: Sequence[str],
    user: str = "eve",
    ran: float = 0.0,
    limit: float = 3600.0,
    pull: str = "",
) -> Running:
    """A lease that began `ran` seconds ago."""
    return Running(job_id, runner_id, tuple(held), pull or f"{user}'s pull", user, NOW - ran, limit)


def placed(found: Iterable[Assignment]) -> dict[int, int]:
    """Runner by job."""
    return {one.job_id: one.runner_id for one in found}


def started(
    waiting: Iterable[Waiting], hosts: Iterable[Host], running: Iterable[Running] = (), now: float = NOW
) -> dict[int, int]:
    return placed(assign(waiting, hosts, running, now))
