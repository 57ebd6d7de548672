from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime

import pytest

from service.store import audit, budgets
from service.store.budgets import Spent
from service.store.database import Database

NOW = datetime(2026, 9, 1, 12, 0, tzinfo=UTC)
DAY = date(2026, 9, 1)


def test_spending_adds_up_by_repository_and_day(database: Database) -> None:
    with database.write() as connection:
        assert budgets.spent(connection, "acme/app", DAY) == Spent()
        assert budgets.add(connection, "acme/app", DAY, 1_000, 0.25) == Spent(1_000, 0.25)
        assert budgets.add(connection, "acme/app", DAY, 2**40, 0.5) == Spent(1_000 + 2**40, 0.75)
        budgets.add(connection, "acme/app", date(2026, 9, 2), 5, 0.0)
        budgets.add(connection, "acme/other", DAY, 7, 0.0)
        assert budgets.spent(connection, "acme/app", DAY) == Spent(1_000 + 2**40, 0.75)


def test_no_addition_is_lost_when_many_come_at_once(database: Database) -> None:
    def spend(_: int) -> None:
        with database.write() as connection:
            budgets.add(connection, "acme/app", DAY, 1, 0.5)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(spend, range(60)))
    with database.read() as connection:
        assert budgets.spent(connection, "acme/app", DAY) == Spent(60, 30.0)


def test_deeds_are_listed_by_object_newest_first(database: Database) -> None:
    with database.write() as connection:
        for actor in ("ada", "bob"):
            audit.record(connection, NOW, actor, "dismiss", "acme/app#7 F1", {"reason": f"{actor} says\0"})
        audit.record(connection, NOW, "eve", "dismiss", "acme/app#7 F2", {})
        found = audit.entries(connection, "acme/app#7 F1", 10)
        assert [(one.actor, one.detail) for one in found] == [
            ("bob", {"reason": "bob says\0"}),
            ("ada", {"reason": "ada says\0"}),
        ]
        assert len(audit.entries(connection, "acme/app#7 F1", 1)) == 1


def test_an_effect_is_had_once_whatever_delivery_brings_it(database: Database) -> None:
    with database.write() as connection:
        assert audit.first_time(connection, "command:acme/app#7:comment:311", NOW)
        assert not audit.first_time(connection, "command:acme/app#7:comment:311", NOW)
        assert audit.first_time(connection, "command:acme/app#7:comment:312", NOW)


def test_an_effect_whose_transaction_failed_was_not_had(database: Database) -> None:
    def fail() -> None:
        with database.write() as connection:
            assert audit.first_time(connection, "command:1", NOW)
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    with database.write() as connection:
        assert audit.first_time(connection, "command:1", NOW)


def test_of_many_at_once_exactly_one_is_the_first(database: Database) -> None:
    def ask(_: int) -> bool:
        with database.write() as connection:
            return audit.first_time(connection, "command:1", NOW)

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(ask, range(12))) == [False] * 11 + [True]
