"""`whitesmoke runner-token` and `runners`: what an operator types."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ci_dispatch.protocol import Registration
from service.store import audit, gpus, runners
from service.store.database import Database
from service.store.migrations import upgrade
from service.store.types import utc_now
from tests.kit.ci import Ci, inventory, job
from tests.service.cli.conftest import Run


@pytest.fixture
def database(data: Path) -> Database:
    data.mkdir()
    made = Database(f"sqlite:///{data / 'whitesmoke.db'}")
    upgrade(made)
    return made


def test_a_token_is_printed_once_and_registers_one_host(run: Run, database: Database) -> None:
    made = run("runner-token", "create", "--arch", "sm90", "--ttl", "5")
    token = made.out.strip()
    assert made.status == 0
    assert token.startswith("wsreg_")
    asked = Registration(name="h1", inventory=inventory(2))
    with database.write() as connection:
        runners.register(connection, token, asked, utc_now())
        (entry,) = audit.entries(connection, "runners", 5)
    assert token not in str(entry)
    assert entry.detail == {"arch": "sm90", "ttl": 5}
    assert os.environ.get("USER") is None or entry.actor


def test_the_list_shows_hosts_gpus_and_what_is_wrong(run: Run, database: Database) -> None:
    assert "no runner has registered" in run("runners", "list").out
    ci = Ci(database, utc_now)  # type: ignore[arg-type]
    ci.runner("h1", gpus=2)
    ci.runner("h2", sandbox=False)
    job_id = ci.queue(job(gpus=1))
    ci.assign()
    with database.write() as connection:
        runners.leave(connection, 2, utc_now())
    assert run("runners", "quarantine", "GPU-h1-1", "--reason", "it smokes").status == 0
    assert run("runners", "drain", "h1").out == "h1 takes no more jobs\n"
    lines = [" ".join(line.split()) for line in run("runners", "list").out.splitlines()]
    assert lines[0].startswith("h1 sm90 draining slots 0/1")
    assert lines[1] == "GPU-h1-0 healthy"
    assert lines[2] == "GPU-h1-1 quarantined by person: it smokes"
    assert lines[3].startswith("h2 cpu gone slots 0/1, no sandbox")
    assert ci.job(job_id).state == "queued", "the drain put it back"


def test_a_gpu_and_a_runner_come_back(run: Run, database: Database) -> None:
    ci = Ci(database, utc_now)  # type: ignore[arg-type]
    ci.runner("h1", gpus=1)
    run("runners", "quarantine", "GPU-h1-0")
    run("runners", "drain", "h1")
    assert run("runners", "release", "GPU-h1-0").out == "GPU-h1-0 is in use again\n"
    assert run("runners", "drain", "--undo", "h1").out == "h1 takes jobs again\n"
    with database.read() as connection:
        assert gpus.quarantined(connection) == set()
    ci.queue(job(gpus=1))
    assert len(ci.assign().assigned) == 1


@pytest.mark.parametrize(
    "arguments",
    [("drain", "h9"), ("remove", "h9"), ("quarantine", "GPU-9"), ("release", "GPU-9")],
)
def test_what_is_not_known_is_named(run: Run, database: Database, arguments: tuple[str, str]) -> None:
    ran = run("runners", *arguments)
    assert ran.status == 2
    assert arguments[1] in ran.err
    assert "whitesmoke runners list" in ran.err


def test_a_removed_runner_is_listed_no_more(run: Run, database: Database) -> None:
    Ci(database, utc_now).runner("h1")  # type: ignore[arg-type]
    assert run("runners", "remove", "h1").status == 0
    assert "h1" not in run("runners", "list").out
