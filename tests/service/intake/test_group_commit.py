"""The writer: what waits together is committed together, and every failure is an answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from service.intake.metrics import Metrics
from service.intake.refusal import Refusal
from service.intake.wakeups import Wakeups
from service.intake.writer import Writer
from service.store.database import Database
from service.store.deliveries import DeliveryState, NewDelivery, add_deliveries
from service.store.types import utc_now


class _Gate:
    """A sink that blocks until it is opened, and remembers its batches."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()
        self.batches: list[list[str]] = []
        self.rows = 0

    def __call__(self, deliveries: Sequence[NewDelivery]) -> Sequence[int | None]:
        self.batches.append([delivery.guid for delivery in deliveries])
        self.entered.set()
        assert self.open.wait(10)
        self.rows += len(deliveries)
        return list(range(self.rows - len(deliveries), self.rows))


def _delivery(guid: str, state: DeliveryState = DeliveryState.RECEIVED) -> NewDelivery:
    return NewDelivery(guid, "pull_request", {}, b"{}", utc_now(), state=state)


def _run(sink: Any, scenario: Any, limit: int = 4096) -> list[int]:
    """Runs `scenario(writer)`; returns the ids that workers were woken for."""
    woken: list[int] = []

    async def main() -> None:
        metrics = Metrics()
        wakeups = Wakeups(woken.extend, metrics)
        writer = Writer(sink, wakeups, metrics, limit)
        wakeups.start()
        writer.start()
        await scenario(writer)
        await writer.close()
        wakeups.close()

    asyncio.run(main())
    return woken


def test_what_comes_during_a_commit_is_one_transaction_after_it() -> None:
    gate = _Gate()

    async def scenario(writer: Writer) -> None:
        first = asyncio.create_task(writer.add(_delivery("first")))
        await asyncio.to_thread(gate.entered.wait, 10)
        others = [asyncio.create_task(writer.add(_delivery(f"{n}"))) for n in range(50)]
        await asyncio.sleep(0)
        gate.open.set()
        assert await asyncio.gather(first, *others) == list(range(51))

    woken = _run(gate, scenario)
    assert gate.batches == [["first"], [f"{n}" for n in range(50)]]
    assert woken == list(range(51))


def test_nothing_is_answered_before_the_sink_has_returned() -> None:
    gate = _Gate()

    async def scenario(writer: Writer) -> None:
        waiting = [asyncio.create_task(writer.add(_delivery(f"{n}"))) for n in range(5)]
        await asyncio.to_thread(gate.entered.wait, 10)
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in waiting)
        gate.open.set()
        await asyncio.gather(*waiting)

    _run(gate, scenario)


def test_a_batch_has_a_limit() -> None:
    gate = _Gate()

    async def scenario(writer: Writer) -> None:
        tasks = [asyncio.create_task(writer.add(_delivery(f"{n}"))) for n in range(1000)]
        await asyncio.sleep(0)
        gate.open.set()
        assert await asyncio.gather(*tasks) == list(range(1000))

    _run(gate, scenario)
    assert sum(map(len, gate.batches)) == 1000
    assert max(map(len, gate.batches)) == 256


def test_a_full_queue_refuses_and_takes_again_once_it_is_shorter() -> None:
    gate = _Gate()

    async def scenario(writer: Writer) -> None:
        waiting = [asyncio.create_task(writer.add(_delivery(f"{n}"))) for n in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Refusal, match="too many deliveries are waiting") as refused:
            await writer.add(_delivery("one too many"))
        assert refused.value.status == 503
        gate.open.set()
        await asyncio.gather(*waiting)
        assert await writer.add(_delivery("later")) == 3

    _run(gate, scenario, limit=3)


def test_a_sink_that_fails_refuses_its_batch_alone_and_wakes_nobody() -> None:
    calls = 0

    def sink(deliveries: Sequence[NewDelivery]) -> Sequence[int | None]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError("no space left on device")
        return [7]

    async def scenario(writer: Writer) -> None:
        with pytest.raises(Refusal) as refused:
            await writer.add(_delivery("lost"))
        assert refused.value.status == 503
        assert await writer.add(_delivery("kept")) == 7

    assert _run(sink, scenario) == [7]


def test_a_failure_is_logged_once_without_what_was_to_be_stored_and_so_is_the_recovery(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = 0

    def sink(deliveries: Sequence[NewDelivery]) -> Sequence[int | None]:
        nonlocal calls
        calls += 1
        if calls <= 3:
            raise OSError("disk full\n[parameters: private code]")
        return [calls]

    async def scenario(writer: Writer) -> None:
        for number in range(3):
            with pytest.raises(Refusal):
                await writer.add(_delivery(f"{number}"))
        for number in range(3, 5):
            await writer.add(_delivery(f"{number}"))

    _run(sink, scenario)
    assert [record.getMessage() for record in caplog.records if record.levelname != "DEBUG"] == [
        "deliveries are answered 503, for they cannot be stored: disk full",
        "deliveries are stored again",
    ]


def test_a_cancelled_request_does_not_disturb_its_batch() -> None:
    gate = _Gate()

    async def scenario(writer: Writer) -> None:
        cancelled, kept = (asyncio.create_task(writer.add(_delivery(guid))) for guid in "ab")
        await asyncio.to_thread(gate.entered.wait, 10)
        cancelled.cancel()
        await asyncio.sleep(0)
        gate.open.set()
        assert await kept in (0, 1)

    _run(gate, scenario)


def test_closing_commits_and_answers_what_waits() -> None:
    gate = _Gate()

    async def scenario(writer: Writer) -> None:
        waiting = [asyncio.create_task(writer.add(_delivery(f"{n}"))) for n in range(600)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(writer.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        gate.open.set()
        await closing
        assert await asyncio.gather(*waiting) == list(range(600))

    _run(gate, scenario)


def test_duplicates_and_ignored_deliveries_wake_nobody(database: Database) -> None:
    def sink(deliveries: Sequence[NewDelivery]) -> Sequence[int | None]:
        with database.write() as connection:
            return add_deliveries(connection, deliveries)

    rows: list[int | None] = []

    async def scenario(writer: Writer) -> None:
        deliveries = ("a", "a", "b", "c")
        states = (
            DeliveryState.RECEIVED,
            DeliveryState.RECEIVED,
            DeliveryState.IGNORED,
            DeliveryState.RECEIVED,
        )
        for guid, state in zip(deliveries, states, strict=True):
            rows.append(await writer.add(_delivery(guid, state)))

    woken = _run(sink, scenario)
    assert rows[1] is None
    assert woken == [rows[0], rows[3]]


def test_of_twenty_deliveries_with_one_guid_at_once_one_is_stored(intake: Any, stored: Any) -> None:
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: intake.deliver(x_github_delivery="same"), range(20)))
    assert sorted(answer.json["status"] for answer in answers) == ["duplicate"] * 19 + ["stored"]
    assert len(stored()) == 1


def test_a_wake_up_that_fails_fails_no_request_and_is_counted(serve: Any, stored: Any) -> None:
    def broker_is_down(ids: list[int]) -> None:
        raise ConnectionError("no broker")

    with serve(on_stored=broker_is_down) as intake:
        assert [intake.deliver().status for _ in range(3)] == [202] * 3
        deadline = time.monotonic() + 5
        while intake.metric("whitesmoke_intake_lost_wakeups_total") < 3:
            assert time.monotonic() < deadline
    assert len(stored()) == 3


def test_a_wake_up_that_hangs_delays_no_answer(serve: Any) -> None:
    hanging = threading.Event()
    calls: list[list[int]] = []

    def hang(ids: list[int]) -> None:
        calls.append(ids)
        hanging.wait(20)

    with serve(on_stored=hang) as intake:
        assert [intake.deliver().status for _ in range(5)] == [202] * 5
        assert [len(ids) for ids in calls] == [1]
        hanging.set()
    assert sorted(row for ids in calls for row in ids) == [1, 2, 3, 4, 5]
