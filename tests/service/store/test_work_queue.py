from __future__ import annotations

from typing import Any, Protocol

import pytest

from service.store.database import Database
from service.store.errors import StaleClaim
from service.store.lease import Reaped, State, backoff
from service.store.work import WorkClaim, WorkQueue


class Clock(Protocol):
    def __call__(self) -> Any: ...
    def advance(self, seconds: float) -> None: ...


SUBJECT = "acme/app#7"


@pytest.fixture
def work(clock: Clock) -> WorkQueue:
    return WorkQueue(clock)


def put(database: Database, work: WorkQueue, subject: str = SUBJECT, **options: Any) -> int:
    payload = options.pop("payload", {"head": "a"})
    with database.write() as connection:
        return work.put(connection, "review", subject, payload, **options)


def claim(database: Database, work: WorkQueue, owner: str = "ada", lease: float = 30) -> WorkClaim | None:
    with database.write() as connection:
        return work.claim(connection, ("review",), owner, lease)


def held(claimed: WorkClaim | None) -> WorkClaim:
    assert claimed is not None
    return claimed


def counts(database: Database, work: WorkQueue) -> dict[str, int]:
    with database.read() as connection:
        return {str(state): count for (_, state), count in work.counts(connection).items()}


def test_work_is_claimed_once_and_carries_its_payload(database: Database, work: WorkQueue) -> None:
    row_id = put(database, work, payload={"head": "ünïcode \0 \ud800", "full": True})
    claimed = held(claim(database, work))
    assert (claimed.id, claimed.kind, claimed.subject) == (row_id, "review", SUBJECT)
    assert claimed.payload == {"head": "ünïcode \0 \ud800", "full": True}
    assert (claimed.owner, claimed.fence, claimed.attempts) == ("ada", 1, 1)
    assert claim(database, work, "bob") is None


def test_other_kinds_are_left_alone(database: Database, work: WorkQueue) -> None:
    put(database, work)
    with database.write() as connection:
        assert work.claim(connection, ("command", "publish"), "ada", 30) is None
        assert work.claim(connection, ("command", "review"), "ada", 30) is not None


def test_the_longest_due_is_claimed_first(database: Database, work: WorkQueue, clock: Clock) -> None:
    put(database, work, "acme/app#1", delay=5)
    put(database, work, "acme/app#2", delay=2)
    put(database, work, "acme/app#3", delay=9)
    clock.advance(6)
    with database.read() as connection:
        assert work.due(connection, ("review",), 10) == [2, 1]
        assert work.due(connection, ("review",), 1) == [2]
    assert held(claim(database, work)).subject == "acme/app#2"
    assert held(claim(database, work)).subject == "acme/app#1"
    assert claim(database, work) is None


def test_asking_again_joins_the_open_row_and_the_later_payload_wins(
    database: Database, work: WorkQueue
) -> None:
    first = put(database, work, payload={"head": "a"})
    assert put(database, work, payload={"head": "b"}) == first
    assert put(database, work, "acme/app#8") != first
    assert counts(database, work) == {"ready": 2}
    assert held(claim(database, work)).payload == {"head": "b"}


def test_three_pushes_within_the_delay_wait_for_the_last_of_them(
    database: Database, work: WorkQueue, clock: Clock
) -> None:
    for _ in range(3):
        put(database, work, delay=30)
        clock.advance(20)
    assert claim(database, work) is None
    clock.advance(10)
    assert held(claim(database, work)).attempts == 1


def test_pushes_that_never_end_put_work_off_no_longer_than_the_maximum(
    database: Database, work: WorkQueue, clock: Clock
) -> None:
    for _ in range(9):
        put(database, work, delay=30, max_wait=100)
        clock.advance(11)
    assert claim(database, work) is None
    clock.advance(1)
    assert claim(database, work) is not None


def test_a_command_does_not_wait_for_the_debounce_of_a_push(database: Database, work: WorkQueue) -> None:
    put(database, work, delay=30)
    put(database, work, delay=0)
    assert claim(database, work) is not None


def test_a_wake_up_claims_its_row_and_a_second_one_finds_nothing(
    database: Database, work: WorkQueue, clock: Clock
) -> None:
    row_id = put(database, work, delay=5)
    with database.write() as connection:
        assert work.claim_row(connection, row_id, "ada", 30) is None
        clock.advance(5)
        claimed = held(work.claim_row(connection, row_id, "ada", 30))
        assert work.claim_row(connection, row_id, "bob", 30) is None
        work.finish(connection, claimed)
        assert work.claim_row(connection, row_id, "bob", 30) is None
        assert work.claim_row(connection, row_id + 1, "bob", 30) is None


def test_finished_work_is_done_and_asking_again_makes_a_new_row(database: Database, work: WorkQueue) -> None:
    first = put(database, work)
    with database.write() as connection:
        claimed = held(work.claim(connection, ("review",), "ada", 30))
        assert work.finish(connection, claimed) is State.DONE
    assert counts(database, work) == {}
    assert put(database, work) > first
    assert counts(database, work) == {"ready": 1}


def test_work_is_open_until_it_is_finished(database: Database, work: WorkQueue) -> None:
    def asked(subject: str = SUBJECT, kind: str = "review", *states: State) -> Any:
        with database.read() as connection:
            return work.open_payload(connection, kind, subject, *([states] if states else []))

    assert asked() is None
    put(database, work, payload={"head": "a"})
    assert (asked(), asked("acme/app#8"), asked(kind="command")) == ({"head": "a"}, None, None)
    running = held(claim(database, work))
    assert (asked(), asked(SUBJECT, "review", State.READY)) == ({"head": "a"}, None)
    with database.write() as connection:
        work.finish(connection, running)
    assert asked() is None


def test_asking_again_while_it_runs_runs_it_again_afterwards(
    database: Database, work: WorkQueue, clock: Clock
) -> None:
    put(database, work, payload={"head": "a"}, max_attempts=1)
    running = held(claim(database, work))
    put(database, work, payload={"head": "b"}, delay=10, max_attempts=1)
    assert claim(database, work, "bob") is None
    with database.write() as connection:
        assert work.finish(connection, running) is State.READY
    assert claim(database, work, "bob") is None
    clock.advance(10)
    again = held(claim(database, work, "bob"))
    assert (again.payload, again.attempts, again.fence) == ({"head": "b"}, 1, 2)
    with database.write() as connection:
        assert work.finish(connection, again) is State.DONE


@pytest.mark.parametrize("operation", ["finish", "release", "give_up", "guard"])
def test_a_superseded_claim_can_do_nothing(database: Database, work: WorkQueue, operation: str) -> None:
    put(database, work)
    claimed = held(claim(database, work))
    with database.write() as connection:
        assert work.supersede(connection, "review", SUBJECT, "a new head")
        assert not work.supersede(connection, "review", SUBJECT, "a new head")
        assert not work.heartbeat(connection, claimed, 30)
    put(database, work)
    with database.write() as connection, pytest.raises(StaleClaim, match=rf"work row {claimed.id}: .*ada"):
        {
            "finish": lambda: work.finish(connection, claimed),
            "release": lambda: work.release(connection, claimed, "oops"),
            "give_up": lambda: work.give_up(connection, claimed, "oops"),
            "guard": lambda: claimed.guard(connection),
        }[operation]()
    assert counts(database, work) == {"ready": 1}


def test_a_claim_whose_row_was_claimed_again_is_stale(
    database: Database, work: WorkQueue, clock: Clock
) -> None:
    put(database, work)
    lost = held(claim(database, work, "ada", lease=30))
    clock.advance(31)
    with database.write() as connection:
        work.reap(connection)
        current = held(work.claim(connection, ("review",), "ada", 30))
        assert current.fence == lost.fence + 1
        assert not work.heartbeat(connection, lost, 30)
        with pytest.raises(StaleClaim):
            work.finish(connection, lost)
        current.guard(connection)
        assert work.finish(connection, current) is State.DONE


def test_what_a_stale_worker_wrote_is_rolled_back_with_its_guard(
    database: Database, work: WorkQueue, clock: Clock
) -> None:
    put(database, work)
    lost = held(claim(database, work))
    clock.advance(31)
    with database.write() as connection:
        work.reap(connection)

    def write_as_before() -> None:
        with database.write() as connection:
            work.put(connection, "publish", SUBJECT, {})
            lost.guard(connection)

    with pytest.raises(StaleClaim):
        write_as_before()
    assert counts(database, work) == {"ready": 1}


def test_a_heartbeat_keeps_the_lease(database: Database, work: WorkQueue, clock: Clock) -> None:
    put(database, work)
    claimed = held(claim(database, work, lease=30))
    clock.advance(25)
    with database.write() as connection:
        assert work.heartbeat(connection, claimed, 30)
    clock.advance(25)
    with database.write() as connection:
        assert work.reap(connection) == []
        clock.advance(6)
        assert work.reap(connection) == [Reaped(claimed.id, "review", State.READY)]
        assert not work.heartbeat(connection, claimed, 30)


def test_a_row_whose_lease_keeps_running_out_is_dead_past_its_attempts_and_says_why(
    database: Database, work: WorkQueue, clock: Clock
) -> None:
    row_id = put(database, work, max_attempts=2)
    states = []
    for _ in range(2):
        held(claim(database, work, "ada"))
        clock.advance(31)
        with database.write() as connection:
            states += [reaped.state for reaped in work.reap(connection)]
    assert states == [State.READY, State.DEAD]
    assert claim(database, work) is None
    with database.read() as connection:
        error = connection.exec_driver_sql(f"SELECT error FROM work WHERE id = {row_id}").scalar()
    assert error == "the lease of ada ran out in the last of 2 attempts"


def test_a_released_row_comes_back_later_and_is_dead_past_its_attempts(
    database: Database, work: WorkQueue, clock: Clock
) -> None:
    put(database, work, max_attempts=2)
    with database.write() as connection:
        claimed = held(work.claim(connection, ("review",), "ada", 30))
        assert work.release(connection, claimed, "GitHub answered 502") is State.READY
        clock.advance(backoff(1) - 1)
        assert work.claim(connection, ("review",), "ada", 30) is None
        clock.advance(1)
        again = held(work.claim(connection, ("review",), "ada", 30))
        assert again.attempts == 2
        assert work.release(connection, again, "GitHub answered 502") is State.DEAD
    assert counts(database, work) == {"dead": 1}


def test_what_no_further_attempt_can_help_is_dead_at_once_and_can_be_asked_for_anew(
    database: Database, work: WorkQueue
) -> None:
    first = put(database, work)
    claimed = held(claim(database, work))
    with database.write() as connection:
        assert work.give_up(connection, claimed, "the repository is gone") is State.DEAD
    assert counts(database, work) == {"dead": 1}
    assert put(database, work) > first


def test_waiting_for_a_rate_limit_uses_up_no_attempt(
    database: Database, work: WorkQueue, clock: Clock
) -> None:
    put(database, work, max_attempts=1)
    for _ in range(3):
        with database.write() as connection:
            claimed = held(work.claim(connection, ("review",), "ada", 30))
            assert claimed.attempts == 1
            state = work.release(connection, claimed, "rate limited", delay=60, counted=False)
            assert state is State.READY
        clock.advance(60)


def test_a_release_after_a_newer_payload_comes_back_with_that_one_and_all_attempts(
    database: Database, work: WorkQueue
) -> None:
    put(database, work, max_attempts=1)
    claimed = held(claim(database, work))
    put(database, work, payload={"head": "b"}, max_attempts=1)
    with database.write() as connection:
        assert work.release(connection, claimed, "the head moved") is State.READY
    again = held(claim(database, work))
    assert (again.payload, again.attempts) == ({"head": "b"}, 1)


def test_reaping_takes_a_few_rows_at_a_time(database: Database, work: WorkQueue, clock: Clock) -> None:
    for number in range(5):
        put(database, work, f"acme/app#{number}")
        held(claim(database, work))
    clock.advance(31)
    with database.write() as connection:
        assert [len(work.reap(connection, limit=3)) for _ in range(3)] == [3, 2, 0]


def test_backoff_doubles_up_to_a_quarter_of_an_hour() -> None:
    assert [backoff(attempt) for attempt in (1, 2, 3, 7, 8, 50, 10**6)] == [10, 20, 40, 640, 900, 900, 900]
