"""What happens after a delivery was accepted: how fast a backlog drains, in how much memory, and how soon a review is
queued in a running service."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import sqlalchemy as sa

from service.store import deliveries
from service.store.database import Database
from service.store.deliveries import NewDelivery
from service.store.schema import work
from service.store.types import utc_now

BACKLOG = 10_000
_EARLY = BACKLOG // 10
_PULLS = 200
_BODY_BYTES = 22_000
_LATENCIES, _PAUSE_SECONDS, _POLL_SECONDS = 60, 0.15, 0.001


@dataclass(frozen=True, slots=True)
class Figures:
    """`drain_rate` is deliveries a second in one worker process; memory is its resident set after a tenth of the
    backlog and after all of it; `queued_*` is from sending a webhook to the row of its review, in milliseconds."""

    deliveries: int
    drain_rate: float
    early_mib: float
    end_mib: float
    queued_p50_ms: float
    queued_p99_ms: float


def run() -> Figures:
    """Drains a backlog in a process of its own, then measures a running embedded service."""
    with tempfile.TemporaryDirectory(prefix="whitesmoke-drain-") as name:
        folder = Path(name)
        done = subprocess.run(
            [sys.executable, "-m", "service.bench.drain", str(folder)],
            capture_output=True,
            text=True,
            check=True,
        )
        drained = json.loads(done.stdout)
        waits = sorted(_queue_latencies(folder / "service"))
    return Figures(
        deliveries=BACKLOG,
        **drained,
        queued_p50_ms=round(statistics.median(waits) * 1000, 1),
        queued_p99_ms=round(waits[int(len(waits) * 0.99) - 1] * 1000, 1),
    )


def render(figures: Figures) -> str:
    return (
        f"{figures.deliveries:,} queued deliveries drain at {figures.drain_rate:,.0f}/s in one process\n"
        f"resident memory {figures.early_mib:.0f} MiB after a tenth of them, {figures.end_mib:.0f} MiB after all\n"
        f"webhook sent to review queued: p50 {figures.queued_p50_ms:.1f} ms, p99 {figures.queued_p99_ms:.1f} ms"
    )


def render_json(figures: Figures) -> str:
    return json.dumps(asdict(figures), indent=2)


def _queue_latencies(folder: Path) -> list[float]:
    """Seconds from sending each webhook until the database shows its review."""
    from service.demo.play import REPO, open_pull, running_service
    from service.demo.sample import build
    from service.forge.local_events import pull_event
    from service.webhook_client import deliver

    folder.mkdir()
    sample = build(folder / "repository")
    waits = []
    with running_service(folder, sample.path) as stage:
        state = stage.forge.pull(REPO, open_pull(stage, sample))
        payload = pull_event("opened", state, state.author)
        for number in range(1000, 1000 + _LATENCIES):
            payload["pull_request"]["number"] = number
            sent = time.perf_counter()
            deliver(stage.url, stage.secret, "pull_request", payload)
            subject = f"{REPO}#{number}"
            while not _is_queued(stage.database, subject):
                time.sleep(_POLL_SECONDS)
            waits.append(time.perf_counter() - sent)
            time.sleep(_PAUSE_SECONDS)
    return waits


def _is_queued(database: Database, subject: str) -> bool:
    with database.read() as connection:
        found = connection.execute(sa.select(work.c.id).where(work.c.subject == subject))
        return found.first() is not None


def _drain(folder: Path) -> dict[str, float]:
    """Fills a database, works it off, and says how that went."""
    from reviewer.checklist import Item
    from service.demo.sample import build
    from service.engines import open_engine
    from service.forge.local import LocalForge
    from service.forge.local_events import pull_event
    from service.store.migrations import upgrade
    from service.worker.lanes import work_off
    from service.worker.station import QUICK_LANE, Station

    build(folder / "quire")
    database = Database(f"sqlite:///{folder / 'drain.db'}")
    upgrade(database)
    forge = LocalForge(database, {"local/quire": folder / "quire"}, owner="owner")
    state = forge.as_user("ada").open_pull("local/quire", "pull", "main")
    payload = pull_event("synchronize", state, state.author)
    payload["pull_request"]["body"] = "x" * _BODY_BYTES

    def fill(first: int, last: int) -> None:
        rows = []
        for number in range(first, last):
            payload["pull_request"]["number"] = 1 + number % _PULLS
            body = json.dumps(payload).encode()
            rows.append(NewDelivery(f"guid-{number}", "pull_request", {}, body, utc_now()))
        with database.write() as connection:
            deliveries.add_deliveries(connection, rows)

    no_items: list[Item] = []
    station = Station(
        database=database,
        forge=forge,
        forge_name="local",
        open_engine=lambda policy: open_engine("none", policy, (), None),
        load_items=lambda policy, read: no_items,
        owner="bench",
    )
    fill(0, _EARLY)
    start = time.perf_counter()
    work_off(station, QUICK_LANE)
    seconds = time.perf_counter() - start
    early = _resident_mib()
    for first in range(_EARLY, BACKLOG, _EARLY):
        fill(first, first + _EARLY)
    start = time.perf_counter()
    work_off(station, QUICK_LANE)
    seconds += time.perf_counter() - start
    with database.read() as connection:
        assert not deliveries.received(connection, 1)
    return {
        "drain_rate": round(BACKLOG / seconds, 1),
        "early_mib": round(early, 1),
        "end_mib": round(_resident_mib(), 1),
    }


def _resident_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


if __name__ == "__main__":
    print(json.dumps(_drain(Path(sys.argv[1]))))
