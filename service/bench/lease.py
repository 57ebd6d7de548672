"""How GPUs are handed out, beside what one would do without leases: use, waiting times, and what a decision costs."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from ci_dispatch.lease import Host, Running, Waiting, assign
from service.bench.lease_load import GPUS_PER_HOST, PENDING_SECONDS, SLOTS_PER_HOST, Load, make
from service.bench.lease_simulation import (
    Played,
    best_labels,
    first_fit,
    ours,
    play,
    play_labels,
    strict_first,
)

_SIZES = (0, 1, 2, 4, 8)
_FLEET, _QUEUE, _REPEATS = 200, 2000, 9
_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Waits:
    """Minutes that jobs waited."""

    jobs: int
    p50: float
    p95: float
    most: float


@dataclass(frozen=True, slots=True)
class Row:
    """One way of handing out GPUs.

    Attributes:
        used: part of the GPUs that ran jobs, over the time in which jobs came.
        used_in_need: the same over the time in which a job waited for GPUs.
        hours: until the last job had ended.
        busiest, others: of the user who asked for most, and of all others.
        starved: jobs that waited longer than the default of `pending_minutes`.
        stuck: jobs that never began, though nothing ran any more.
    """

    name: str
    used: float
    used_in_need: float
    hours: float
    mean: float
    all: Waits
    by_size: dict[int, Waits]
    busiest: Waits
    others: Waits
    starved: int
    stuck: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Milliseconds of one decision over 200 hosts and 2,000 waiting jobs."""

    case: str
    started: int
    p50: float
    most: float


@dataclass(frozen=True, slots=True)
class _Day:
    loads: list[Load]
    hosts: int
    labels: dict[int, int]


@dataclass(frozen=True, slots=True)
class Figures:
    jobs: int
    gpus: int
    fill: float
    seeds: int
    labels: list[dict[int, int]]
    rows: list[Row]
    decisions: list[Decision]
    simulated_p50_ms: float
    simulated_max_ms: float


def run(jobs: int = 1000, hosts: int = 8, fill: float = 0.9, seeds: int = 5) -> Figures:
    """The same jobs under four ways of handing out GPUs, for each seed; then decisions on a large fleet."""
    days = []
    for seed in range(1, seeds + 1):
        loads = make(jobs, hosts * GPUS_PER_HOST, fill, seed)
        days.append(_Day(loads, hosts, best_labels(loads, hosts)))
    mine = [play(day.loads, hosts, ours) for day in days]
    played = {
        "leases": mine,
        "fixed labels, the best cut in hindsight": [play_labels(day.loads, day.labels) for day in days],
        "strictly first come, first served": [play(day.loads, hosts, strict_first) for day in days],
        "first fit, oldest first": [play(day.loads, hosts, first_fit) for day in days],
    }
    decisions = [seconds for one in mine for seconds in one.decisions]
    return Figures(
        jobs=jobs,
        gpus=hosts * GPUS_PER_HOST,
        fill=fill,
        seeds=seeds,
        labels=[day.labels for day in days],
        rows=[_row(name, days, one) for name, one in played.items()],
        decisions=_decisions(),
        simulated_p50_ms=round(1000 * statistics.median(decisions), 2),
        simulated_max_ms=round(1000 * max(decisions), 2),
    )


def render(figures: Figures) -> str:
    """Markdown."""
    cuts = "; ".join(
        ", ".join(f"{count} x {size}" for size, count in cut.items() if size) for cut in figures.labels
    )
    lines = [
        f"{figures.jobs:,} jobs on {figures.gpus} GPUs that ask for {figures.fill:.0%} of them while they come, "
        f"{figures.seeds} times with other jobs. Minutes waited: p50 / p95 / longest.",
        "",
        "| | GPUs used | used while one waits | last ends, h | mean wait | all | "
        + " | ".join(f"{size} GPUs" if size != 1 else "1 GPU" for size in _SIZES)
        + f" | busiest user | other users | over {PENDING_SECONDS / 60:.0f} min | never began |",
        "|---|" + "--:|" * (4 + 1 + len(_SIZES) + 4),
    ]
    for row in figures.rows:
        waits = (row.all, *(row.by_size[size] for size in _SIZES), row.busiest, row.others)
        cells = (
            row.name,
            f"{row.used:.1%}",
            f"{row.used_in_need:.1%}",
            f"{row.hours:.1f}",
            f"{row.mean:.1f}",
            *(f"{wait.p50:.0f} / {wait.p95:.0f} / {wait.most:.0f}" for wait in waits),
            str(row.starved),
            str(row.stuck),
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        f"Fixed labels: a runner has so many GPUs for good. The cut is the one with the lowest mean wait of all, found "
        f"for exactly the jobs that come (runners x GPUs: {cuts}).",
        "",
        f"A decision in this simulation: p50 {figures.simulated_p50_ms:.2f} ms, longest {figures.simulated_max_ms:.2f} ms. "
        f"With {_QUEUE:,} waiting jobs and {_FLEET} hosts of {GPUS_PER_HOST} GPUs:",
        "",
        "| fleet | jobs started | p50 ms | longest ms |",
        "|---|--:|--:|--:|",
    ]
    lines += [
        f"| {one.case} | {one.started:,} | {one.p50:.1f} | {one.most:.1f} |" for one in figures.decisions
    ]
    return "\n".join(lines)


def render_json(figures: Figures) -> str:
    return json.dumps(asdict(figures), indent=2)


def _row(name: str, days: Sequence[_Day], played: Sequence[Played]) -> Row:
    everything: list[float] = []
    by_size: dict[int, list[float]] = {size: [] for size in _SIZES}
    busiest: list[float] = []
    others: list[float] = []
    uses: list[tuple[float, float]] = []
    ends: list[float] = []
    for day, one in zip(days, played, strict=True):
        begun = [load for load in day.loads if load.job_id in one.began]
        heavy = _busiest(day.loads)
        for load in begun:
            waited = one.began[load.job_id] - load.at
            everything.append(waited)
            by_size[load.gpus].append(waited)
            (busiest if load.user == heavy else others).append(waited)
        uses.append(_use(day.loads, one.began, day.hosts * GPUS_PER_HOST))
        ends.append(max(one.began[load.job_id] + load.seconds for load in begun))
    return Row(
        name=name,
        used=round(statistics.fmean(used for used, _ in uses), 4),
        used_in_need=round(statistics.fmean(needed for _, needed in uses), 4),
        hours=round(statistics.fmean(ends) / _HOUR, 2),
        mean=round(statistics.fmean(everything) / 60, 2),
        all=_waits(everything),
        by_size={size: _waits(waits) for size, waits in by_size.items()},
        busiest=_waits(busiest),
        others=_waits(others),
        starved=sum(waited > PENDING_SECONDS for waited in everything),
        stuck=sum(one.stuck for one in played),
    )


def _busiest(loads: Sequence[Load]) -> str:
    """The user who asks for most."""
    asked: dict[str, float] = {}
    for load in loads:
        asked[load.user] = asked.get(load.user, 0.0) + load.gpus * load.seconds
    return max(asked, key=lambda user: (asked[user], user))


def _waits(seconds: Iterable[float]) -> Waits:
    minutes = sorted(waited / 60 for waited in seconds)
    if not minutes:
        return Waits(0, 0.0, 0.0, 0.0)
    p50, p95 = (minutes[min(len(minutes) - 1, int(len(minutes) * part))] for part in (0.5, 0.95))
    return Waits(len(minutes), round(p50, 1), round(p95, 1), round(minutes[-1], 1))


def _use(loads: Sequence[Load], began: dict[int, float], gpus: int) -> tuple[float, float]:
    """Part of the GPUs in use while jobs come, and while one of them waits for GPUs."""
    events: list[tuple[float, int, int]] = []
    for load in loads:
        begin = began.get(load.job_id)
        if load.gpus and begin is not None:
            events += [(load.at, 1, 0), (begin, -1, load.gpus), (begin + load.seconds, 0, -load.gpus)]
    last = max(load.at for load in loads)
    at = coming = need = need_seconds = 0.0
    waiting = busy = 0
    for when, more, taken in sorted(events):
        coming += busy * max(0.0, min(when, last) - min(at, last))
        if waiting:
            need += busy * (when - at)
            need_seconds += when - at
        at, waiting, busy = when, waiting + more, busy + taken
    return coming / (gpus * last) if last else 0.0, need / (gpus * need_seconds) if need_seconds else 1.0


def _decisions() -> list[Decision]:
    return [
        _decision("all free", 0.0, failed=False),
        _decision("three of four GPUs leased", 0.75, failed=False),
        _decision("all leased", 1.0, failed=False),
        _decision("three of four leased, every job has failed on a host before", 0.75, failed=True),
    ]


def _decision(case: str, leased: float, failed: bool) -> Decision:
    draw = random.Random(case)
    now = 100_000.0
    hosts: list[Host] = []
    running: list[Running] = []
    for runner in range(_FLEET):
        uuids = [f"gpu-{runner}-{index}" for index in range(GPUS_PER_HOST)]
        taken = [uuid for uuid in uuids if draw.random() < leased]
        free = tuple(uuid for uuid in uuids if uuid not in taken)
        hosts.append(Host(runner, "sm90", free, GPUS_PER_HOST, SLOTS_PER_HOST, sandboxed=runner % 4 > 0))
        for uuid in taken:
            user = f"user-{draw.randrange(40)}"
            began = now - draw.uniform(0, 3000)
            running.append(
                Running(
                    10_000 + len(running),
                    runner,
                    (uuid,),
                    f"{user}/pull-{draw.randrange(5)}",
                    user,
                    began,
                    3600.0,
                )
            )
    waiting = []
    for number in range(_QUEUE):
        gpus = draw.choice(_SIZES)
        user = f"user-{draw.randrange(40)}"
        waiting.append(
            Waiting(
                job_id=number,
                arch="sm90" if gpus else "cpu",
                gpus=gpus,
                priority=draw.choice((0, 0, 0, 2, 5)),
                queued_at=now - draw.uniform(0, 6000),
                pull=f"{user}/pull-{draw.randrange(5)}",
                user=user,
                trusted=draw.random() < 0.8,
                limit=draw.choice((1200.0, 1800.0, 3600.0)),
                avoid_hosts=frozenset({draw.randrange(_FLEET)} if failed else ()),
            )
        )
    seconds = []
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        started = len(assign(waiting, hosts, running, now))
        seconds.append(time.perf_counter() - begun)
    return Decision(case, started, round(1000 * statistics.median(seconds), 1), round(1000 * max(seconds), 1))
