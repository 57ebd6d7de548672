from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from reviewer.engines.base import Completion, Key
from service.forge.base import PullState
from service.store import audit, budgets, deliveries, pulls, retention, rounds, schema
from service.store.database import Database
from service.store.deliveries import DeliveryState, NewDelivery, add_deliveries
from service.store.outbox import Outbox
from service.store.retention import Keep, prune
from service.store.rounds import RepOutputs
from service.store.work import WorkQueue
from tests.kit.rounds import answers, review

OLD = datetime(2020, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 9, 1, 12, 0, tzinfo=UTC)
KEEP = Keep()


def count(database: Database, table: sa.Table) -> int:
    with database.read() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def deliver(database: Database, guid: str, at: datetime, state: DeliveryState) -> int:
    with database.write() as connection:
        (row_id,) = add_deliveries(connection, [NewDelivery(guid, "push", {}, b"{}", at)])
        assert row_id is not None
        if state is not DeliveryState.RECEIVED:
            deliveries.settle(connection, row_id, state, at)
        return row_id


def bodies(database: Database) -> dict[str, bytes | None]:
    with database.read() as connection:
        table = schema.deliveries
        return {row.guid: row.body for row in connection.execute(sa.select(table.c.guid, table.c.body))}


def test_bodies_go_before_their_deliveries_and_nothing_unprocessed_goes(database: Database) -> None:
    deliver(database, "recent", NOW - timedelta(days=13), DeliveryState.DONE)
    deliver(database, "older", NOW - timedelta(days=15), DeliveryState.FAILED)
    deliver(database, "ancient", OLD, DeliveryState.DONE)
    deliver(database, "waiting", OLD, DeliveryState.RECEIVED)
    pruned = prune(database, NOW, KEEP)
    assert bodies(database) == {"recent": b"{}", "older": None, "waiting": b"{}"}
    assert (pruned["bodies"], pruned["deliveries"]) == (2, 1)
    with database.write() as connection:
        assert not deliveries.replay(connection, 2)
        assert deliveries.received(connection, 10) == [4]


def test_batches_reach_every_row(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_BATCH", 3)
    with database.write() as connection:
        for number in range(6):
            audit.first_time(connection, f"old{number}", OLD)
            audit.record(connection, OLD, "ada", "dismiss", "F1", {})
            budgets.add(connection, f"acme/{number}", OLD.date(), 1, 0.0)
        audit.first_time(connection, "new", NOW)
        audit.record(connection, NOW, "ada", "dismiss", "F1", {})
        budgets.add(connection, "acme/app", NOW.date(), 1, 0.0)
    pruned = prune(database, NOW, KEEP)
    assert {name: pruned[name] for name in ("effects", "audit", "budgets")} == {
        "effects": 6, "audit": 6, "budgets": 6,
    }  # fmt: skip
    assert [count(database, table) for table in (schema.effects, schema.audit, schema.budgets)] == [1, 1, 1]
    assert set(prune(database, NOW, KEEP).values()) == {0}


def test_finished_work_goes_and_open_work_stays(database: Database, clock: Any) -> None:
    work = WorkQueue(clock)
    clock.now = OLD
    with database.write() as connection:
        for subject in ("finished", "leased"):
            work.put(connection, "review", subject, {})
        finished = work.claim(connection, ("review",), "ada", 30)
        assert finished is not None
        work.claim(connection, ("review",), "ada", 30)
        work.finish(connection, finished)
        work.put(connection, "review", "ready", {})
    assert prune(database, NOW, KEEP)["work"] == 1
    with database.read() as connection:
        left = connection.execute(sa.select(schema.work.c.subject)).scalars()
        assert sorted(left) == ["leased", "ready"]


@pytest.mark.parametrize(
    ("state", "seen", "sent", "goes"),
    [
        ("closed", OLD, True, True),
        ("closed", OLD, False, False),
        ("open", OLD, True, False),
        ("closed", NOW - timedelta(days=300), True, False),
    ],
)
def test_a_pull_request_goes_when_it_is_long_closed_and_all_is_said(
    database: Database, pull_state: PullState, clock: Any, state: Any, seen: datetime, sent: bool, goes: bool
) -> None:
    outbox = Outbox(clock)
    clock.now = OLD
    result = review(answers(), reps=3, agentic_reps=0)
    with database.write() as connection:
        pull = pulls.remember(connection, "github", replace(pull_state, state=state), seen)
        begun = rounds.start(connection, pull.id, 1, "1" * 40, "0" * 40, OLD)
        rounds.finish(connection, begun.id, result.report, OLD)
        pulls.save_ledger(connection, pull, result.ledger, OLD)
        outbox.put(connection, "comment", "comment", {}, pull_id=pull.id)
        if sent:
            claimed = outbox.claim(connection, ("comment",), "ada", 30)
            assert claimed is not None
            outbox.finish(connection, claimed, "1")
    assert prune(database, NOW, KEEP)["pulls"] == int(goes)
    left = [count(database, table) for table in (schema.pulls, schema.rounds, schema.outbox)]
    assert left == ([0, 0, 0] if goes else [1, 1, 1])


def test_completions_of_a_finished_round_go_and_those_of_a_running_one_stay(
    database: Database, pull_state: PullState
) -> None:
    result = review(answers(), reps=3, agentic_reps=0)
    key = Key("discover", 0, "shard")
    with database.write() as connection:
        pull = pulls.remember(connection, "github", pull_state, NOW)
        done = rounds.start(connection, pull.id, 1, "1" * 40, "0" * 40, OLD)
        running = rounds.start(connection, pull.id, 2, "1" * 40, "0" * 40, OLD)
        for one in (done, running):
            RepOutputs(one.id).put(connection, key, "v1", Completion("paid"), OLD)
        rounds.finish(connection, done.id, result.report, OLD)
    assert prune(database, NOW, KEEP)["completions"] == 1
    with database.read() as connection:
        assert RepOutputs(done.id).get(connection, key, "v1") is None
        assert RepOutputs(running.id).get(connection, key, "v1") == Completion("paid")
        assert rounds.report(connection, done.id) == result.report


def test_effects_of_no_pull_request_go_with_finished_work(database: Database, clock: Any) -> None:
    outbox = Outbox(clock)
    clock.now = OLD
    with database.write() as connection:
        outbox.put(connection, "sent", "comment", {})
        claimed = outbox.claim(connection, ("comment",), "ada", 30)
        assert claimed is not None
        outbox.finish(connection, claimed, "1")
        outbox.put(connection, "waiting", "comment", {})
    assert prune(database, NOW, KEEP)["outbox"] == 1
    assert count(database, schema.outbox) == 1
