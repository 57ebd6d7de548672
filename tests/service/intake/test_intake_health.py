"""`/healthz`, `/readyz`, `/metrics`: who gets what."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from typing import Any

import pytest

from reviewer.errors import ReviewError
from service.intake.app import create_app
from service.intake.settings import IntakeSettings


def test_healthz_says_that_the_process_answers(intake: Any) -> None:
    assert (intake.get("/healthz").status, intake.get("/healthz").json) == (200, {"status": "alive"})


def test_readyz_is_200_when_every_check_passes(serve: Any) -> None:
    with serve(checks={"database": lambda: None, "queue": lambda: None}) as intake:
        assert (intake.get("/readyz").status, intake.get("/readyz").json) == (200, {"status": "ready"})


def test_readyz_without_checks_is_200(intake: Any) -> None:
    assert intake.get("/readyz").status == 200


def test_readyz_names_what_is_wrong_and_recovers(serve: Any) -> None:
    down = True

    def check() -> None:
        if down:
            raise ReviewError("the queue redis://localhost does not answer", "start it")

    with serve(checks={"database": lambda: None, "queue": check}) as intake:
        answer = intake.get("/readyz")
        assert answer.status == 503
        assert answer.json["problems"] == {"queue": "the queue redis://localhost does not answer; start it"}
        down = False
        assert intake.get("/readyz").status == 200


def test_readyz_does_not_show_the_text_of_errors_that_nobody_wrote_for_users(serve: Any) -> None:
    def check() -> None:
        raise OSError("postgresql://whitesmoke:password@db/whitesmoke")

    with serve(checks={"database": check}) as intake:
        answer = intake.get("/readyz")
    assert answer.json["problems"] == {"database": "OSError"}
    assert b"password" not in answer.body


def test_a_check_that_hangs_is_reported_and_not_started_again(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.intake.readiness._SECONDS", 0.2)
    release, started = threading.Event(), []

    def check() -> None:
        started.append(1)
        release.wait(20)

    with serve(checks={"queue": check, "database": lambda: None}) as intake:
        for _ in range(2):
            answer = intake.get("/readyz")
            assert answer.json["problems"] == {"queue": "gave no answer within 0.2 s"}
        assert len(started) == 1
        assert intake.deliver().status == 202
        release.set()


def test_failed_checks_leave_no_trace_in_the_log(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    def check() -> None:
        raise OSError

    with serve(checks={"queue": check}) as intake:
        assert intake.get("/readyz").status == 503
        gc.collect()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_stopping_leaves_no_thread_behind(serve: Any) -> None:
    before = set(threading.enumerate())
    with serve(checks={"queue": lambda: None}) as intake:
        assert intake.deliver().status == 202
        assert intake.get("/readyz").status == 200
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(5)  # told to end, it may still be on its way out
    assert [thread for thread in left if thread.is_alive()] == []


def test_metrics_are_open_to_loopback(intake: Any) -> None:
    answer = intake.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert b"whitesmoke_intake_commit_seconds_bucket" in answer.body


@pytest.mark.parametrize("header", ["forwarded", "via", "x_forwarded_for", "x_real_ip"])
def test_what_a_local_proxy_forwards_is_not_local(intake: Any, header: str) -> None:
    answer = intake.get("/metrics", **{header: "127.0.0.1"})
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize(
    ("peer", "token", "authorization", "status"),
    [
        ("127.0.0.1", None, "", 200),
        ("::1", None, "", 200),
        ("10.0.0.1", None, "", 401),
        ("10.0.0.1", None, "Bearer None", 401),
        ("10.0.0.1", None, "Bearer ", 401),
        ("10.0.0.1", "open", "", 401),
        ("10.0.0.1", "open", "Bearer wrong", 401),
        ("10.0.0.1", "open", "open", 401),
        ("10.0.0.1", "open", "Bearer é", 401),
        ("10.0.0.1", "open", "Bearer open", 200),
        (None, "open", "", 401),
        ("a socket", "open", "", 401),
    ],
)
def test_metrics_need_the_token_from_elsewhere(
    peer: str | None, token: str | None, authorization: str, status: int
) -> None:
    settings = IntakeSettings(secrets=(b"s",), events=frozenset(), metrics_token=token)
    app = create_app(settings, lambda rows: [], {}, lambda ids: None)
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/metrics",
        "raw_path": b"/metrics",
        "query_string": b"",
        "headers": [(b"authorization", authorization.encode("latin-1"))],
        "client": None if peer is None else (peer, 1),
    }
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == status


def test_batches_and_commits_are_measured(serve: Any) -> None:
    with serve() as intake:
        for _ in range(3):
            intake.deliver()
        assert intake.metric("whitesmoke_intake_batch_size_sum") == 3
        assert intake.metric("whitesmoke_intake_commit_seconds_count") == 3
        assert intake.metric("whitesmoke_intake_queue_depth") == 0


def test_settings_do_not_show_their_secrets() -> None:
    shown = repr(IntakeSettings(secrets=(b"hush",), events=frozenset(), metrics_token="whisper"))
    assert "hush" not in shown
    assert "whisper" not in shown


def test_an_unknown_path_is_404(intake: Any) -> None:
    assert intake.get("/").status == 404
    assert intake.request("POST", "/webhook/", b"{}").status == 404
