from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from service.store.database import Database
from service.store.errors import StaleClaim
from service.store.lease import State
from service.store.outbox import Outbox, OutboxClaim

KEY = "comment:round:acme/app#7"


@pytest.fixture
def outbox(clock: Callable[[], datetime]) -> Outbox:
    return Outbox(clock)


def put(database: Database, outbox: Outbox, body: str) -> int | None:
    with database.write() as connection:
        return outbox.put(connection, KEY, "comment", {"body": body})


def claim(database: Database, outbox: Outbox) -> OutboxClaim | None:
    with database.write() as connection:
        return outbox.claim(connection, ("comment",), "ada", 30)


def send(database: Database, outbox: Outbox, external_id: str) -> OutboxClaim:
    claimed = claim(database, outbox)
    assert claimed is not None
    with database.write() as connection:
        assert outbox.finish(connection, claimed, external_id) is State.DONE
    return claimed


def test_an_effect_is_sent_once(database: Database, outbox: Outbox) -> None:
    row_id = put(database, outbox, "round 1")
    claimed = send(database, outbox, "4711")
    assert (claimed.id, claimed.key, claimed.payload) == (row_id, KEY, {"body": "round 1"})
    assert claimed.external_id == ""
    assert put(database, outbox, "round 1") is None
    assert claim(database, outbox) is None


def test_a_new_payload_edits_what_was_sent(database: Database, outbox: Outbox) -> None:
    row_id = put(database, outbox, "round 1")
    send(database, outbox, "4711")
    assert put(database, outbox, "round 2") == row_id
    edited = send(database, outbox, "4711")
    assert (edited.payload, edited.external_id, edited.attempts) == ({"body": "round 2"}, "4711", 1)
    with database.read() as connection:
        assert outbox.external_id(connection, KEY) == "4711"
        assert outbox.external_id(connection, "comment:other") == ""


def test_an_edit_that_is_given_up_keeps_the_id_of_what_stands(database: Database, outbox: Outbox) -> None:
    put(database, outbox, "round 1")
    send(database, outbox, "4711")
    put(database, outbox, "round 2")
    with database.write() as connection:
        claimed = outbox.claim(connection, ("comment",), "ada", 30)
        assert claimed is not None
        assert outbox.give_up(connection, claimed, "the pull request is locked") is State.DEAD
        assert outbox.external_id(connection, KEY) == "4711"


def test_an_effect_without_a_new_id_keeps_the_one_it_has(database: Database, outbox: Outbox) -> None:
    put(database, outbox, "round 1")
    send(database, outbox, "4711")
    put(database, outbox, "round 2")
    send(database, outbox, "")
    with database.read() as connection:
        assert outbox.external_id(connection, KEY) == "4711"


def test_the_same_payload_twice_before_it_is_sent_is_one(database: Database, outbox: Outbox) -> None:
    row_id = put(database, outbox, "round 1")
    assert put(database, outbox, "round 1") is None
    assert put(database, outbox, "round 2") == row_id
    assert send(database, outbox, "4711").payload == {"body": "round 2"}


def test_the_order_of_keys_does_not_make_a_payload_new(database: Database, outbox: Outbox) -> None:
    with database.write() as connection:
        outbox.put(connection, KEY, "comment", {"a": 1, "b": "\ud800"})
        assert outbox.put(connection, KEY, "comment", {"b": "\ud800", "a": 1}) is None


def test_a_payload_that_comes_while_the_older_is_being_sent_is_sent_next(
    database: Database, outbox: Outbox
) -> None:
    row_id = put(database, outbox, "round 1")
    sending = claim(database, outbox)
    assert sending is not None
    assert put(database, outbox, "round 2") == row_id
    assert claim(database, outbox) is None
    with database.write() as connection:
        assert outbox.finish(connection, sending, "4711") is State.READY
    edited = send(database, outbox, "4711")
    assert (edited.payload, edited.external_id) == ({"body": "round 2"}, "4711")


@pytest.mark.parametrize("how", ["dead", "superseded"])
def test_an_effect_that_was_given_up_can_be_asked_for_again(
    database: Database, outbox: Outbox, how: str
) -> None:
    row_id = put(database, outbox, "round 1")
    claimed = claim(database, outbox)
    assert claimed is not None
    with database.write() as connection:
        if how == "dead":
            outbox.give_up(connection, claimed, "the pull request is locked")
        else:
            assert outbox.supersede(connection, KEY, "a new head")
    assert claim(database, outbox) is None
    assert put(database, outbox, "round 1") == row_id
    assert send(database, outbox, "4711").attempts == 1


def test_superseding_leaves_what_was_sent(database: Database, outbox: Outbox) -> None:
    put(database, outbox, "round 1")
    send(database, outbox, "4711")
    with database.write() as connection:
        assert not outbox.supersede(connection, KEY, "a new head")
    assert put(database, outbox, "round 1") is None


def test_a_sender_that_died_is_replaced_and_its_return_has_no_effect(
    database: Database, outbox: Outbox, clock: Any
) -> None:
    put(database, outbox, "round 1")
    lost = claim(database, outbox)
    assert lost is not None
    clock.advance(31)
    with database.write() as connection:
        assert [reaped.state for reaped in outbox.reap(connection)] == [State.READY]
    current = claim(database, outbox)
    assert current is not None
    with pytest.raises(StaleClaim, match="outbox row"), database.write() as connection:
        outbox.finish(connection, lost, "1")
    with database.write() as connection:
        outbox.finish(connection, current, "2")
        assert outbox.external_id(connection, KEY) == "2"
