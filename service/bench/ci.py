"""CI under load: 200 runners that poll and 2,000 queued jobs, over real HTTP. What a decision takes, what the API
costs, how soon an idle runner has its job."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from ci_dispatch.model import Arch, Gpu, Gpus, Inventory, Job, JobSpec, Step
from ci_dispatch.protocol import Registration
from service.bench.ci_runners import Seen, SimulatedRunner
from service.forge.base import PullState, User
from service.store import jobs, pulls, runners
from service.store.ci_rows import OPEN
from service.store.database import Database
from service.store.jobs import NewRun
from service.store.migrations import upgrade
from service.store.types import utc_now

HEAD, BASE = "1" * 40, "0" * 40
_HOLD_SECONDS = 1.0
_SETTLE_SECONDS = 3.0
_DRAIN_SECONDS = 600.0
# GPUs that jobs want, by how many of ten.
_WIDTHS: tuple[Gpus, ...] = (0, 0, 1, 1, 1, 1, 2, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Figures:
    """Times in milliseconds but where a name says otherwise; `cpu_*` are processor seconds of the API a second.

    `decision_*` are of those with at least half of the jobs waiting, reading and writing the database included, beside
    the API's other threads; `computed_*` is the processor time of the same ones.
    `claim_*` is from the commit of a single job to its arrival at an idle runner.
    """

    runners: int
    jobs: int
    decisions: int
    decision_p50: float
    decision_p95: float
    decision_max: float
    computed_p50: float
    computed_p95: float
    computed_max: float
    claim_p50: float
    claim_p95: float
    claim_max: float
    cpu_idle: float
    cpu_busy: float
    drained_a_second: float
    lost: int
    twice: int
    failed: tuple[str, ...]


def run(hosts: int = 200, queued: int = 2000, singles: int = 40, idle_seconds: float = 10) -> Figures:
    """Measures one web process over SQLite; the runners share the machine with it."""
    with tempfile.TemporaryDirectory(prefix="whitesmoke-ci-") as name:
        folder = Path(name)
        url = f"sqlite:///{folder / 'ci.db'}"
        database = Database(url)
        upgrade(database)
        service = subprocess.Popen(
            [sys.executable, "-m", "service.bench.ci_service", url, str(folder)],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert service.stdout is not None
            port = int(service.stdout.readline())
            bench = _Bench(database, port, service.pid, hosts, queued, singles, idle_seconds)
            measured = asyncio.run(bench.run())
            service.send_signal(signal.SIGTERM)
            decisions = json.loads(service.communicate(timeout=60)[0])
        finally:
            service.kill()
            service.wait()
            database.close()
    full = sorted(seconds for seconds, _, waiting in decisions if waiting >= queued / 2)
    computed = sorted(used for _, used, waiting in decisions if waiting >= queued / 2)
    return Figures(
        runners=hosts,
        jobs=queued,
        decisions=len(full),
        decision_p50=_at(full, 0.5),
        decision_p95=_at(full, 0.95),
        decision_max=_at(full, 1.0),
        computed_p50=_at(computed, 0.5),
        computed_p95=_at(computed, 0.95),
        computed_max=_at(computed, 1.0),
        **measured,
    )


class _Bench:
    """The phases: nothing queued, one job at a time, all at once."""

    def __init__(
        self,
        database: Database,
        port: int,
        pid: int,
        hosts: int,
        queued: int,
        singles: int,
        idle_seconds: float,
    ) -> None:
        self._database = database
        self._port = port
        self._pid = pid
        self._hosts = hosts
        self._queued = queued
        self._singles = singles
        self._idle_seconds = idle_seconds
        self._seen = Seen()
        self._random = random.Random(7)

    async def run(self) -> dict[str, Any]:
        secrets = [self._register(number) for number in range(self._hosts)]
        playing = [
            asyncio.create_task(
                SimulatedRunner(self._port, secret, _inventory(number), self._seen, _HOLD_SECONDS).run()
            )
            for number, secret in enumerate(secrets)
        ]
        try:
            await asyncio.sleep(_SETTLE_SECONDS)
            idle, _ = await self._cost(asyncio.sleep(self._idle_seconds))
            waits = sorted([await self._single(number) for number in range(self._singles)])
            await asyncio.sleep(_HOLD_SECONDS + 1)
            busy, seconds = await self._cost(self._drain())
        finally:
            for task in playing:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*playing)
        return {
            "claim_p50": _at(waits, 0.5),
            "claim_p95": _at(waits, 0.95),
            "claim_max": _at(waits, 1.0),
            "cpu_idle": idle,
            "cpu_busy": busy,
            "drained_a_second": round(self._queued / seconds, 1),
            "lost": self._queued + self._singles - len(self._seen.came),
            "twice": self._seen.twice,
            "failed": tuple(self._seen.failed[:5]),
        }

    def _register(self, number: int) -> str:
        with self._database.write() as connection:
            token = runners.create_token(connection, utc_now(), timedelta(hours=1))
            asked = Registration(name=f"host-{number}", inventory=_inventory(number))
            return runners.register(connection, token, asked, utc_now()).secret

    async def _cost(self, doing: Awaitable[None]) -> tuple[float, float]:
        """Processor seconds of the API a second while it lasts, and how long it lasted."""
        before, began = _processor_seconds(self._pid), time.monotonic()
        await doing
        seconds = time.monotonic() - began
        return round((_processor_seconds(self._pid) - before) / seconds, 3), seconds

    async def _single(self, number: int) -> float:
        """Seconds from a job's commit until its runner has it."""
        name = f"single-{number}"
        await asyncio.to_thread(self._queue, [(name, 1)], number)
        began = time.monotonic()
        while name not in self._seen.came and time.monotonic() - began < 30:
            await asyncio.sleep(0.002)
        came = self._seen.came.get(name, began + 30)
        await asyncio.sleep(0.05 + 0.2 * self._random.random())
        return max(0.0, came - began)

    async def _drain(self) -> None:
        wanted = [(f"job-{number}", self._random.choice(_WIDTHS)) for number in range(self._queued)]
        await asyncio.to_thread(self._queue, wanted, 1000)
        deadline = time.monotonic() + _DRAIN_SECONDS
        while await asyncio.to_thread(self._open) and time.monotonic() < deadline:
            await asyncio.sleep(0.25)

    def _open(self) -> bool:
        with self._database.read() as connection:
            return bool(jobs.counts(connection).keys() & set(OPEN))

    def _queue(self, wanted: Sequence[tuple[str, Gpus]], number: int) -> None:
        """One transaction, in pull requests of fifty jobs from ten people."""
        with self._database.write() as connection:
            for first in range(0, len(wanted), 50):
                pull = number + first // 50
                pull_id = pulls.remember(connection, "local", _pull(pull), utc_now()).id
                new = NewRun(f"run-{pull}", pull_id, HEAD, BASE, HEAD)
                made = [_job(name, width, pull) for name, width in wanted[first : first + 50]]
                jobs.create_run(connection, new, made, utc_now())


def _inventory(number: int) -> Inventory:
    """Four of five hosts have eight GPUs, the others two slots."""
    if number % 5 == 0:
        return Inventory(arch="cpu", slots=2, sandbox=True)
    cards = tuple(Gpu(uuid=f"GPU-{number}-{index}", index=index, arch="sm90") for index in range(8))
    return Inventory(arch="sm90", gpus=cards, slots=1, sandbox=True)


def _job(name: str, width: Gpus, pull: int) -> Job:
    arch: Arch = "sm90" if width else "cpu"
    step = Step(name="smoke", argv=("true",), timeout=60)
    spec = JobSpec(name=name, arch=arch, gpus=width, steps=(step,))
    return Job(
        repo="acme/app",
        number=pull,
        head_sha=HEAD,
        base_sha=BASE,
        spec=spec,
        author=f"user-{pull % 10}",
        trusted=True,
    )


def _pull(number: int) -> PullState:
    return PullState(
        repo="acme/app",
        number=number,
        title="",
        body="",
        author=User(f"user-{number % 10}"),
        head_sha=HEAD,
        head_ref="topic",
        head_repo="acme/app",
        base_ref="main",
        base_sha=BASE,
        draft=False,
        state="open",
        merged=False,
        labels=(),
    )


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _at(ordered: Sequence[float], part: float) -> float:
    """The value below which so large a part lies, in milliseconds."""
    if not ordered:
        return 0.0
    return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))] * 1000, 1)


def render(figures: Figures) -> str:
    """A Markdown table for people."""
    rows = [
        (
            f"decision, {figures.jobs:,} jobs and {figures.runners} runners",
            f"{figures.decision_p50:.1f}",
            f"{figures.decision_p95:.1f}",
            f"{figures.decision_max:.1f}",
        ),
        (
            "the same, processor time",
            f"{figures.computed_p50:.1f}",
            f"{figures.computed_p95:.1f}",
            f"{figures.computed_max:.1f}",
        ),
        (
            "queued to claimed, idle runner",
            f"{figures.claim_p50:.1f}",
            f"{figures.claim_p95:.1f}",
            f"{figures.claim_max:.1f}",
        ),
    ]
    lines = ["| ms | p50 | p95 | max |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    lines += [
        "",
        f"API: {figures.cpu_idle:.2f} processor seconds a second with {figures.runners} runners polling and nothing to do, "
        f"{figures.cpu_busy:.2f} while {figures.jobs:,} jobs drain ({figures.drained_a_second:.1f} a second)",
        f"{figures.decisions} decisions with half of the jobs waiting or more; "
        f"{figures.lost} jobs lost, {figures.twice} run twice",
    ]
    return "\n".join([*lines, *figures.failed])


def render_json(figures: Figures) -> str:
    return json.dumps(asdict(figures), indent=2)
