"""Claims under real threads and real processes, and processes that are killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.store.database import Database
from service.store.errors import StaleClaim
from service.store.lease import State
from service.store.work import WorkClaim, WorkQueue

ROOT = Path(__file__).parents[3]
ROWS = 40

# Claims until nothing is left, finishing as it goes; prints what it got.
DRAIN = """
import sys
from service.store.database import Database
from service.store.work import WorkQueue
database, work = Database(sys.argv[1]), WorkQueue()
print("ready", flush=True)
sys.stdin.readline()
while True:
    with database.write() as connection:
        claim = work.claim(connection, ("review",), "child", 60)
    if claim is None:
        break
    print(claim.id, flush=True)
    with database.write() as connection:
        work.finish(connection, claim)
"""

# Claims one row and holds it; with "write", it is killed inside a transaction that has already written.
HOLD = """
import sys, time
from service.store.database import Database
from service.store.work import WorkQueue
database, work = Database(sys.argv[1]), WorkQueue()
with database.write() as connection:
    claim = work.claim(connection, ("review",), "child", 1)
if sys.argv[2] == "write":
    with database.write() as connection:
        work.finish(connection, claim)
        print(claim.id, flush=True)
        time.sleep(60)
print(claim.id, flush=True)
time.sleep(60)
"""


@contextmanager
def child(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def fill(database: Database, work: WorkQueue, rows: int = ROWS) -> set[int]:
    with database.write() as connection:
        return {work.put(connection, "review", f"acme/app#{number}", {}) for number in range(rows)}


def claim(database: Database, work: WorkQueue, lease: float = 60) -> WorkClaim | None:
    with database.write() as connection:
        return work.claim(connection, ("review",), threading.current_thread().name, lease)


def test_threads_never_claim_the_same_row(database: Database) -> None:
    work = WorkQueue()
    ids = fill(database, work)

    def drain(_: int) -> list[int]:
        got = []
        while (claimed := claim(database, work)) is not None:
            got.append(claimed.id)
        return got

    with ThreadPoolExecutor(4) as pool:
        got = [row_id for each in pool.map(drain, range(4)) for row_id in each]
    assert sorted(got) == sorted(ids)


def test_of_many_wake_ups_for_one_row_one_claims_it(database: Database) -> None:
    work = WorkQueue()
    (row_id,) = fill(database, work, 1)
    together = threading.Barrier(4)

    def wake(_: int) -> WorkClaim | None:
        together.wait()
        with database.write() as connection:
            return work.claim_row(connection, row_id, "worker", 60)

    with ThreadPoolExecutor(4) as pool:
        claims = [claimed for claimed in pool.map(wake, range(4)) if claimed]
    assert [claimed.fence for claimed in claims] == [1]


def test_puts_that_come_together_make_one_row(database: Database) -> None:
    work = WorkQueue()

    def put(number: int) -> int:
        with database.write() as connection:
            return work.put(connection, "review", "acme/app#7", {"n": number})

    with ThreadPoolExecutor(4) as pool:
        ids = set(pool.map(put, range(24)))
    assert len(ids) == 1
    claimed = claim(database, work)
    assert claimed is not None
    assert claimed.revision == 24
    assert claim(database, work) is None


def test_processes_never_claim_the_same_row(database: Database, url: str) -> None:
    ids = fill(database, WorkQueue())
    with child(DRAIN, url) as one, child(DRAIN, url) as two:
        for each in (one, two):
            assert each.stdout
            assert each.stdout.readline() == "ready\n"
        for each in (one, two):
            assert each.stdin
            each.stdin.write("\n")
            each.stdin.flush()
        outputs = [each.communicate(timeout=60)[0].split() for each in (one, two)]
    assert sorted(int(row_id) for each in outputs for row_id in each) == sorted(ids)
    with database.read() as connection:
        assert WorkQueue().counts(connection) == {}


@pytest.mark.parametrize("when", ["hold", "write"])
def test_a_row_of_a_killed_process_is_reaped_and_run_again(database: Database, url: str, when: str) -> None:
    work = WorkQueue()
    (row_id,) = fill(database, work, 1)
    with child(HOLD, url, when) as worker:
        assert worker.stdout
        assert worker.stdout.readline() == f"{row_id}\n"
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    assert claim(database, work) is None

    reaped: list[State] = []
    for _ in range(100):
        with database.write() as connection:
            reaped = [one.state for one in work.reap(connection)]
        if reaped:
            break
        time.sleep(0.05)
    assert reaped == [State.READY]
    again = claim(database, work)
    assert again is not None
    assert (again.id, again.fence, again.attempts) == (row_id, 2, 2)


def test_a_guard_holds_the_row_until_its_transaction_ends(database: Database) -> None:
    """Between the guard and the commit nobody can supersede the row, so what is written with it was rightful."""
    work = WorkQueue()
    fill(database, work, 1)
    claimed = claim(database, work)
    assert claimed is not None
    order: list[str] = []
    guarded, tried = threading.Event(), threading.Event()

    def supersede() -> None:
        guarded.wait()
        tried.set()
        with database.write() as connection:
            assert work.supersede(connection, "review", "acme/app#0", "a new head")
            order.append("superseded")

    thread = threading.Thread(target=supersede)
    thread.start()
    with database.write() as connection:
        claimed.guard(connection)
        guarded.set()
        tried.wait()
        thread.join(0.3)
        order.append("written")
    thread.join()
    assert order == ["written", "superseded"]
    with database.write() as connection, pytest.raises(StaleClaim):
        claimed.guard(connection)


def test_a_row_that_another_is_just_claiming_is_passed_over(database: Database) -> None:
    if database.is_sqlite:
        pytest.skip("SQLite has one writer at a time")
    work = WorkQueue()
    fill(database, work, 2)
    with database.write() as one, database.write() as two:
        first = work.claim(one, ("review",), "ada", 60)
        second = work.claim(two, ("review",), "bob", 60)
        assert first is not None
        assert second is not None
        assert first.id != second.id


def test_reaping_passes_over_a_row_that_its_worker_is_writing(database: Database) -> None:
    if database.is_sqlite:
        pytest.skip("SQLite has one writer at a time")
    work = WorkQueue()
    fill(database, work, 1)
    claimed = claim(database, work, lease=-1)
    assert claimed is not None
    with database.write() as working, database.write() as reaping:
        claimed.guard(working)
        assert work.reap(reaping) == []
        assert work.heartbeat(working, claimed, 60)
    with database.write() as connection:
        assert work.reap(connection) == []
