"""When each commit became the head of a pull request."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from service.store import heads
from service.store.database import Database

NOON = datetime(2026, 9, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=5)
PULL = ("github", "acme/app", 7)


def test_pushes_are_kept_oldest_first_and_a_step_told_twice_is_one(database: Database) -> None:
    with database.write() as connection:
        heads.record(connection, *PULL, "a", NOON)
        for at in (LATER, LATER + timedelta(hours=1)):
            heads.record(connection, *PULL, "b", at, before="a")
        assert heads.of_pull(connection, *PULL) == [("a", NOON), ("b", LATER)]


def test_an_old_step_told_late_does_not_become_the_newest(database: Database) -> None:
    with database.write() as connection:
        heads.record(connection, *PULL, "b", NOON, before="a")
        heads.record(connection, *PULL, "c", LATER, before="b")
        heads.record(connection, *PULL, "b", LATER + timedelta(hours=1), before="a")
        assert heads.of_pull(connection, *PULL)[-1] == ("c", LATER)


def test_reopening_is_no_push_and_going_back_to_an_old_head_is(database: Database) -> None:
    with database.write() as connection:
        heads.record(connection, *PULL, "a", NOON)
        heads.record(connection, *PULL, "a", LATER)
        assert heads.of_pull(connection, *PULL) == [("a", NOON)]
        heads.record(connection, *PULL, "b", LATER, before="a")
        heads.record(connection, *PULL, "a", LATER + timedelta(hours=1), before="b")
        assert [sha for sha, _ in heads.of_pull(connection, *PULL)] == ["a", "b", "a"]


def test_other_pull_requests_heads_are_not_given(database: Database) -> None:
    with database.write() as connection:
        heads.record(connection, "github", "acme/app", 7, "a", NOON)
        for forge, repo, number in (
            ("local", "acme/app", 7),
            ("github", "acme/web", 7),
            ("github", "acme/app", 8),
        ):
            assert heads.of_pull(connection, forge, repo, number) == []
