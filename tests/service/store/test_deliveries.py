from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from service.store import deliveries
from service.store.database import Database
from service.store.deliveries import Delivery, DeliveryState, NewDelivery, add_deliveries

NOW = datetime(2026, 9, 1, 12, 0, 0, 123456, tzinfo=UTC)


def new(guid: str, **fields: Any) -> NewDelivery:
    made = {"event": "pull_request", "headers": {"X-GitHub-Event": "pull_request"}, "body": b"{}"}
    return NewDelivery(**{"guid": guid, "received_at": NOW, **made, **fields})


def add(database: Database, *rows: NewDelivery) -> list[int | None]:
    with database.write() as connection:
        return add_deliveries(connection, rows)


def take(database: Database, delivery_id: int) -> Delivery | None:
    with database.write() as connection:
        return deliveries.take(connection, delivery_id)


def test_a_delivery_is_kept_byte_for_byte(database: Database) -> None:
    body = bytes(range(256)) * 90
    east = NOW.astimezone(timezone(timedelta(hours=8)))
    headers = {"X-GitHub-Event": "pull_request", "X-Odd": "é\x80"}
    (row_id,) = add(database, new("g1", body=body, headers=headers, received_at=east))
    assert row_id is not None
    assert take(database, row_id) == Delivery(
        id=row_id,
        guid="g1",
        event="pull_request",
        action="",
        repo="",
        headers=headers,
        body=body,
        received_at=NOW,
        state=DeliveryState.RECEIVED,
        error="",
        processed_at=None,
    )


def test_ids_come_in_the_order_of_the_rows_and_none_for_a_guid_that_is_known(database: Database) -> None:
    assert add(database, new("b"), new("a"), new("c")) == [1, 2, 3]
    answer = add(database, new("d"), new("a"), new("e"), new("d"))
    assert answer == [4, None, answer[2], None]
    assert add(database) == []
    with database.read() as connection:
        assert deliveries.received(connection, 10) == [1, 2, 3, 4, answer[2]]


def test_a_known_guid_keeps_its_first_body(database: Database) -> None:
    add(database, new("a", body=b"first"))
    add(database, new("a", body=b"second"))
    with database.read() as connection:
        found = deliveries.find(connection, "a")
    assert found is not None
    assert found.body == b"first"


def test_hundreds_of_deliveries_fit_one_batch(database: Database) -> None:
    ids = add(database, *(new(f"g{number}") for number in range(2_500)))
    assert ids == list(range(1, 2_501))


@pytest.mark.parametrize("guid", ["\ud800", "a\0b", "'; DROP TABLE deliveries; --", "ü" * 200])
def test_an_odd_guid_is_no_duplicate_of_itself(database: Database, guid: str) -> None:
    assert add(database, new(guid)) == [1]
    assert add(database, new(guid)) == [None]


def test_a_processed_delivery_is_not_taken_again(database: Database) -> None:
    add(database, new("a"), new("b"), new("c", state=DeliveryState.IGNORED))
    with database.write() as connection:
        assert deliveries.take(connection, 1) is not None
        deliveries.settle(connection, 1, DeliveryState.DONE, NOW, action="opened", repo="acme/app")
        deliveries.settle(connection, 2, DeliveryState.FAILED, NOW, error="no pull request\0")
    assert [take(database, number) for number in (1, 2, 3, 4)] == [None] * 4
    with database.read() as connection:
        assert deliveries.received(connection, 10) == []
        done, failed = deliveries.find(connection, "a"), deliveries.find(connection, "b")
    assert done is not None
    assert failed is not None
    assert (done.state, done.action, done.repo, done.processed_at) == ("done", "opened", "acme/app", NOW)
    assert (failed.state, failed.error) == ("failed", "no pull request\ufffd")


def test_a_worker_that_dies_while_processing_leaves_the_delivery_received(database: Database) -> None:
    add(database, new("a"))

    def die() -> None:
        with database.write() as connection:
            deliveries.settle(connection, 1, DeliveryState.DONE, NOW)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        die()
    assert take(database, 1) is not None


def test_a_delivery_can_be_replayed(database: Database) -> None:
    add(database, new("a"))
    with database.write() as connection:
        deliveries.settle(connection, 1, DeliveryState.FAILED, NOW, error="no")
        assert deliveries.replay(connection, 1)
        assert not deliveries.replay(connection, 2)
    again = take(database, 1)
    assert again is not None
    assert (again.error, again.processed_at) == ("", None)


def test_a_moment_without_a_zone_is_refused(database: Database) -> None:
    with pytest.raises(Exception, match="has no time zone"):
        add(database, new("a", received_at=datetime(2026, 9, 1)))
