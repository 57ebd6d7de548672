"""How many deliveries a second are accepted durably, and how that compares with Probot keeping nothing.

Service and peer each run in a process of their own, in turn, under the same load, on the same cores as the load.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import sqlalchemy as sa

from service.bench.webhook_load import CONNECTIONS, SECRET, Load, run_load, write_load
from service.store.database import Database
from service.store.schema import deliveries

_PROBOT = "probot@14"
_PEER = Path(__file__).with_name("peers") / "probot.mjs"
_ANSWERED = 'whitesmoke_deliveries_total{event="pull_request",outcome="stored"}'
_WARM_UP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Figures:
    """What `whitesmoke bench webhook` prints: medians over the rounds, counts over all of them.

    `answered` are the service's 202s, `committed` the rows found afterwards: the two are equal or deliveries were
    lost. None stands for what was not measured; `missing` says why.
    """

    rate: float | None
    p50_ms: float | None
    p99_ms: float | None
    answered: int
    committed: int
    probot_rate: float | None
    probot_p99_ms: float | None
    probot_ratio: float | None
    postgresql_rate: float | None
    postgresql_p50_ms: float | None
    postgresql_p99_ms: float | None
    rounds: int
    connections: int
    missing: tuple[str, ...]


def run(seconds: float = 4.0, rounds: int = 3, postgresql: str | None = None) -> Figures:
    """Measures the embedded database, Probot, and PostgreSQL at the URL where one is given, in turn.

    The PostgreSQL database must be empty: it gets the tables, and some 100 MB a second of rows.
    """
    missing = []
    if shutil.which("wrk") is None:
        return _figures([], [], [], 0, 0, rounds, ["wrk is not installed: nothing was measured"])
    probot = None
    try:
        probot = _install_probot()
    except (OSError, subprocess.CalledProcessError) as error:
        missing.append(f"Probot was not measured, it needs node, npm and {_PROBOT}: {error}")
    if postgresql is None:
        missing.append("PostgreSQL was not measured: no URL was given")
    ours: list[Load] = []
    peers: list[Load] = []
    servers: list[Load] = []
    answered = committed = 0
    with tempfile.TemporaryDirectory(prefix="whitesmoke-bench-") as name:
        folder = Path(name)
        write_load(folder)
        for number in range(rounds):
            path = folder / f"{number}.db"
            for url, loads in ((f"sqlite:///{path}", ours), (postgresql, servers)):
                if url is not None:
                    load, taken, kept = _measure_service(url, folder, seconds, f"{number}")
                    loads.append(load)
                    answered, committed = answered + taken, committed + kept
            for file in folder.glob(f"{path.name}*"):
                file.unlink()
            if probot is not None:
                with _process(["node", str(probot), SECRET], probot.parent) as port:
                    peers.append(_measure(port, folder, seconds, f"{number}"))
    return _figures(ours, peers, servers, answered, committed, rounds, missing)


def _measure(port: int, folder: Path, seconds: float, prefix: str) -> Load:
    run_load(port, folder, _WARM_UP_SECONDS, f"{prefix}-warm-up")
    return run_load(port, folder, seconds, prefix)


def _measure_service(url: str, folder: Path, seconds: float, prefix: str) -> tuple[Load, int, int]:
    """The load, the deliveries that the service answered 202, and those that were committed."""
    command = [sys.executable, "-m", "service.bench.webhook_service", url, SECRET]
    with _process(command, Path.cwd()) as port:
        before = _count(url)
        load = _measure(port, folder, seconds, prefix)
        # The load ends in the middle of requests; these are answered too.
        time.sleep(0.5)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        answered = next(int(float(line.split()[-1])) for line in lines if line.startswith(_ANSWERED))
    return load, answered, _count(url) - before


def _count(url: str) -> int:
    database = Database(url)
    try:
        with database.read() as connection:
            return connection.execute(sa.select(sa.func.count()).select_from(deliveries)).scalar_one()
    finally:
        database.close()


@contextmanager
def _process(command: Sequence[str], folder: Path) -> Iterator[int]:
    """Runs a server that prints its port; gives the port, and stops the server at the end."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            process.kill()
            process.stdout.close()


def _install_probot() -> Path:
    """Installs Probot into the user's cache, once; returns the peer's script, which lies beside it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "whitesmoke" / _PROBOT.replace("@", "-")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "node_modules" / "probot").is_dir():
        npm = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), _PROBOT]
        subprocess.run(npm, check=True, capture_output=True)
    subprocess.run(["node", "--version"], check=True, capture_output=True)
    return Path(shutil.copy(_PEER, folder))


def _figures(
    ours: Sequence[Load],
    peers: Sequence[Load],
    servers: Sequence[Load],
    answered: int,
    committed: int,
    rounds: int,
    missing: Sequence[str],
) -> Figures:
    rate, probot_rate = _median(ours, "rate"), _median(peers, "rate")
    return Figures(
        rate=rate,
        p50_ms=_median(ours, "p50_ms"),
        p99_ms=_median(ours, "p99_ms"),
        answered=answered,
        committed=committed,
        probot_rate=probot_rate,
        probot_p99_ms=_median(peers, "p99_ms"),
        probot_ratio=None if rate is None or probot_rate is None else round(rate / probot_rate, 3),
        postgresql_rate=_median(servers, "rate"),
        postgresql_p50_ms=_median(servers, "p50_ms"),
        postgresql_p99_ms=_median(servers, "p99_ms"),
        rounds=rounds,
        connections=CONNECTIONS,
        missing=tuple(missing),
    )


def _median(loads: Sequence[Load], field: str) -> float | None:
    return round(statistics.median(getattr(load, field) for load in loads), 2) if loads else None


def render(figures: Figures) -> str:
    """A table for people."""
    rows = [
        ("embedded (SQLite)", figures.rate, figures.p50_ms, figures.p99_ms),
        ("PostgreSQL", figures.postgresql_rate, figures.postgresql_p50_ms, figures.postgresql_p99_ms),
        ("Probot, keeps nothing", figures.probot_rate, None, figures.probot_p99_ms),
    ]
    lines = [f"{'':<22}{'a second':>10}{'p50 ms':>9}{'p99 ms':>9}"]
    lines += [
        f"{name:<22}" + _cell(rate, 10, 0) + _cell(p50, 9, 1) + _cell(p99, 9, 1)
        for name, rate, p50, p99 in rows
        if rate is not None
    ]
    lines.append(f"answered {figures.answered}, committed {figures.committed}")
    if figures.probot_ratio is not None:
        lines.append(f"{figures.probot_ratio:.2f} of Probot's rate")
    lines.append(f"medians of {figures.rounds} rounds, {figures.connections} connections")
    return "\n".join([*lines, *figures.missing])


def _cell(value: float | None, width: int, digits: int) -> str:
    return " " * width if value is None else f"{value:>{width},.{digits}f}"


def render_json(figures: Figures) -> str:
    """One JSON object with the fields of `Figures`."""
    return json.dumps(asdict(figures), indent=2)
