"""What was answered 202 is in the database: after SIGKILL, after SIGTERM, and synced before the answer."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from service.store.database import Database
from service.store.deliveries import NewDelivery, add_deliveries

ROOT = Path(__file__).parents[3]
SECRET = "the child's secret"
# Bodies are stored compressed: this one does not shrink much.
BODY = b'{"action": "opened", "pad": "' + random.Random(0).randbytes(11_000).hex().encode() + b'"}'


class _Child:
    """The service in its own process, in front of its own database."""

    def __init__(self, folder: Path, intake_class: Any, wrapper: Sequence[str] = ()) -> None:
        self.path = folder / "child.db"
        command = [*wrapper, sys.executable, "-m", "service.bench.webhook_service"]
        self.process = subprocess.Popen(
            [*command, f"sqlite:///{self.path}", SECRET], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.intake = intake_class(int(self.process.stdout.readline()))

    def deliver(self, guid: str) -> int:
        status: int = self.intake.deliver(BODY, secret=SECRET.encode(), x_github_delivery=guid).status
        return status

    def guids(self) -> set[str]:
        connection = sqlite3.connect(self.path)
        rows = connection.execute("SELECT guid FROM deliveries").fetchall()
        connection.close()
        return {guid for (guid,) in rows}

    def stop(self, how: int) -> int:
        self.process.send_signal(how)
        return self.process.wait(30)


@pytest.fixture
def start_child(tmp_path: Path, intake_class: Any) -> Iterator[Callable[..., _Child]]:
    children: list[_Child] = []

    def start(*wrapper: str) -> _Child:
        children.append(_Child(tmp_path, intake_class, wrapper))
        return children[-1]

    yield start
    for child in children:
        if child.process.poll() is None:
            child.process.kill()
            child.process.wait(10)
        assert child.process.stdout is not None
        child.process.stdout.close()


def test_after_sigkill_under_load_every_answered_delivery_is_in_the_database(
    start_child: Callable[..., _Child],
) -> None:
    answered: set[str] = set()
    for life in range(3):
        child = start_child()
        threads = [threading.Thread(target=_send, args=(child, answered, life, n)) for n in range(8)]
        for thread in threads:
            thread.start()
        before = len(answered)
        deadline = time.monotonic() + 20
        while len(answered) < before + 100:
            assert time.monotonic() < deadline
            time.sleep(0.003)
        assert child.stop(signal.SIGKILL) == -signal.SIGKILL
        for thread in threads:
            thread.join(30)
        assert answered <= child.guids()
    assert len(answered) >= 300


def _send(child: _Child, answered: set[str], life: int, sender: int) -> None:
    for number in range(10_000):
        guid = f"{life}-{sender}-{number}"
        try:
            if child.deliver(guid) == 202:
                answered.add(guid)
        except (OSError, ValueError):
            return
        except Exception:  # noqa: BLE001 - http.client names a connection cut in many ways
            return


def test_sigterm_answers_what_waits_and_takes_nothing_new(start_child: Callable[..., _Child]) -> None:
    child = start_child()
    lock = sqlite3.connect(child.path, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    statuses: dict[str, int] = {}
    threads = [
        threading.Thread(target=lambda guid: statuses.update({guid: child.deliver(guid)}), args=(f"{n}",))
        for n in range(10)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 10
    while child.intake.metric("whitesmoke_intake_queue_depth") < 10:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert statuses == {}
    with pytest.raises(ConnectionRefusedError):
        child.deliver("too late")
    lock.execute("COMMIT")
    lock.close()
    for thread in threads:
        thread.join(20)
    assert child.process.wait(20) == -signal.SIGTERM
    assert statuses == {f"{n}": 202 for n in range(10)}
    assert child.guids() == set(statuses)


def test_the_log_is_synced_between_its_last_write_and_the_answer(
    start_child: Callable[..., _Child], tmp_path: Path
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    trace = tmp_path / "trace"
    calls = "trace=pwrite64,fsync,fdatasync,write,writev,sendto,sendmsg"
    child = start_child("strace", "-f", "-y", "-s", "64", "-o", str(trace), "-e", calls)
    if child.process.poll() is not None:
        pytest.skip("strace may not trace here")
    for number in range(3):
        assert child.deliver(f"{number}") == 202
    _end_traced(child)
    lines = trace.read_text().splitlines()
    answers = [index for index, line in enumerate(lines) if '"HTTP/1.1 202' in line]
    assert len(answers) == 3
    for before, answer in zip([0, *answers], answers, strict=False):
        written = max(n for n in range(before, answer) if _is_log_call("pwrite64", lines[n]))
        synced = [n for n in range(written, answer) if _sync_ends(lines, n)]
        assert synced, "\n".join(lines[before : answer + 1])


def _is_log_call(name: str, line: str) -> bool:
    return re.search(rf"\b{name}\(\d+<[^>]*-wal>", line) is not None


def _sync_ends(lines: list[str], index: int) -> bool:
    """Whether a sync of the write-ahead log returns in this line."""
    line = lines[index]
    if not line.endswith("= 0"):
        return False
    if re.search(r"\bf(data)?sync\(\d+<[^>]*-wal>\)", line):
        return True
    if "sync resumed>" not in line:
        return False
    thread = line.split()[0]
    begun = [earlier for earlier in lines[:index] if earlier.split()[0] == thread][-1]
    return re.search(r"\bf(data)?sync\(\d+<[^>]*-wal>", begun) is not None


def _end_traced(child: _Child) -> None:
    """strace passes no SIGTERM on: the signal goes to what it runs."""
    children = Path(f"/proc/{child.process.pid}/task/{child.process.pid}/children").read_text().split()
    for pid in children:
        os.kill(int(pid), signal.SIGTERM)
    child.process.wait(20)


def test_a_locked_database_is_503_with_retry_after_and_recovers(
    intake: Any, stored: Any, database: Database
) -> None:
    lock = sqlite3.connect(database.engine.url.database or "", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    answer = intake.deliver(x_github_delivery="a")
    assert (answer.status, answer.headers["retry-after"]) == (503, "30")
    lock.execute("ROLLBACK")
    lock.close()
    assert stored() == []
    # GitHub's redelivery has the same GUID.
    assert intake.deliver(x_github_delivery="a").json == {"status": "stored"}


def test_a_full_disk_is_503_and_recovers(serve: Any, stored: Any, database: Database) -> None:
    pages = 1

    def sink(deliveries: Sequence[NewDelivery]) -> Sequence[int | None]:
        with database.write() as connection:
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
            return add_deliveries(connection, deliveries)

    with serve(sink=sink) as intake:
        assert intake.deliver(BODY, x_github_delivery="a").status == 503
        pages = 1_000_000
        assert intake.deliver(BODY, x_github_delivery="a").json == {"status": "stored"}
    assert [row.body for row in stored()] == [BODY]
