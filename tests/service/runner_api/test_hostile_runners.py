"""What a broken or hostile host sends: contained, named, and nothing of it kept."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci_dispatch.model import JobReport
from service.runner_api.files import CiFiles, FileRefused, NotHere, TooLarge
from service.runner_api.limits import Buckets
from tests.kit.ci import inventory, job
from tests.service.runner_api.conftest import Api

Start = Callable[..., Any]


def leased(api: Api) -> tuple[int, str, str]:
    """A job, its lease's path and token."""
    secret = api.register()
    job_id = api.ci.queue(job())
    lease, token, _ = api.grant(secret)
    return job_id, lease, token


BAD_NAMES = [
    "../x",
    "a/../../x",
    "%2e%2e/x",
    "%2Fetc/passwd",
    "a//b",
    ".hidden",
    "a/.git/config",
    "a%00b",
    "a%0Ab",
    "a%5Cb",
    "a%1b%5B31m",
    "/".join("abcdefghi"),
    "n" * 256,
    "a/",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_leads_elsewhere_is_refused(start: Start, name: str) -> None:
    with start() as api:
        job_id, lease, token = leased(api)
        answer = api.call("PUT", f"{lease}/artifacts/{name}", token, b"x")
        assert answer.status in (404, 422), answer
        assert api.ci.job(job_id).state == "leased"
        left = [path for path in api.files.root.rglob("*") if path.is_file()]
        assert left == []


def test_limits_hold_and_what_fits_is_kept(start: Start) -> None:
    with start(log_bytes=10, log_chunk=8, artifact_bytes=10, small_body=2000, report=3000) as api:
        job_id, lease, token = leased(api)
        assert api.call("POST", f"{lease}/log?offset=0", token, b"12345678").status == 204
        assert api.call("POST", f"{lease}/log?offset=8", token, b"9abcd").status == 413
        assert api.files.read_log(job_id) == b"123456789a"
        assert api.call("POST", f"{lease}/log?offset=0", token, b"123456789").status == 413
        assert api.call("POST", f"{lease}/log?offset=11", token, b"x").status == 422
        assert api.call("POST", f"{lease}/log?offset=-1", token, b"x").status == 422
        assert api.call("PUT", f"{lease}/artifacts/a", token, b"123456").status == 201
        assert api.call("PUT", f"{lease}/artifacts/b", token, b"12345").status == 413
        assert api.call("PUT", f"{lease}/artifacts/a", token, b"1234567890").status == 201, "in its place"
        assert api.call("PUT", f"{lease}/artifacts/c", token, b"x" * 100).status == 413
        folder = api.files.root / "artifacts" / str(job_id)
        assert [path.name for path in folder.iterdir()] == ["a"]
        assert api.call("POST", f"{lease}/beat", token, b" " * 2001).status == 413
        assert api.call("POST", f"{lease}/report", token, JobReport(log_tail="x" * 3000)).status == 413
        assert api.ci.job(job_id).state == "leased"


def test_a_body_without_its_length_is_measured_as_it_comes(start: Start) -> None:
    with start(artifact_bytes=1000) as api:
        _, lease, token = leased(api)
        head = f"PUT /runner/v1{lease}/artifacts/a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        with socket.create_connection(("127.0.0.1", api.port), timeout=30) as client:
            client.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            client.sendall(b"3e8\r\n" + b"x" * 1000 + b"\r\n1\r\nx\r\n0\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 413 ")


def test_an_upload_that_is_cut_off_leaves_nothing(start: Start) -> None:
    with start() as api:
        job_id, lease, token = leased(api)
        head = f"PUT /runner/v1{lease}/artifacts/a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        folder = api.files.root / "artifacts" / str(job_id)
        with socket.create_connection(("127.0.0.1", api.port), timeout=30) as client:
            client.sendall(f"{head}Content-Length: 1000\r\n\r\n".encode() + b"x" * 10)
            deadline = time.monotonic() + 20
            while not (folder.exists() and list(folder.iterdir())) and time.monotonic() < deadline:
                time.sleep(0.02)
        while list(folder.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert list(folder.iterdir()) == []


def test_a_client_that_says_no_more_is_cut_off(start: Start) -> None:
    with start(patience=0.3) as api:
        _, lease, token = leased(api)
        head = f"POST /runner/v1{lease}/report HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        with socket.create_connection(("127.0.0.1", api.port), timeout=30) as client:
            client.sendall(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
            assert client.recv(100).startswith(b"HTTP/1.1 408 ")


def test_a_lease_that_is_lost_while_a_file_comes_in_keeps_nothing_of_it(start: Start) -> None:
    with start() as api:
        job_id, lease, token = leased(api)
        head = f"PUT /runner/v1{lease}/artifacts/a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        with socket.create_connection(("127.0.0.1", api.port), timeout=30) as client:
            client.sendall(f"{head}Content-Length: 2\r\n\r\nx".encode())
            assert api.call("POST", f"{lease}/report", token, JobReport()).status == 204
            client.sendall(b"y")
            assert client.recv(100).startswith(b"HTTP/1.1 409 ")
        with pytest.raises(NotHere):
            api.files.open_artifact(job_id, "a")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"step": 1}', b'{"stop": "x"}', b"\xff\xfe", b'{"step": "\\ud800"}']
)
def test_what_is_malformed_is_named(start: Start, body: bytes) -> None:
    with start() as api:
        _, lease, token = leased(api)
        answer = api.call("POST", f"{lease}/beat", token, body)
        assert answer.status == 422
        assert answer.json["problem"]


def test_what_no_schema_allows_is_no_500(start: Start) -> None:
    with start() as api:
        _, lease, token = leased(api)
        for path in ("/leases/x/beat", "/leases/-1/beat", f"/leases/{10**30}/beat", "/leases/1%00/beat"):
            assert api.call("POST", path, token, {}).status in (401, 404, 422), path
        assert api.call("GET", f"{lease}/source/elsewhere", token).status == 422
        assert api.call("POST", f"{lease}/log", token, b"x").status == 422
        assert api.call("POST", f"{lease}/log?offset={10**30}", token, b"x").status == 422
        assert api.call("POST", "/runners/self/claim?wait=nan", token).status in (401, 422)
        secret = api.register("h2")
        assert api.call("POST", "/runners/self/claim?wait=nan", secret).status in (200, 204, 422)
        assert api.call("POST", "/runners/self/claim?wait=-5", secret).status in (200, 204)
        named = {"name": "../x", "inventory": inventory().model_dump(mode="json")}
        assert api.call("POST", "/runners", api.token(), named).status == 422
        huge = {**named, "name": "h4"}
        huge["inventory"] = {**huge["inventory"], "slots": 10**30, "memory_mb": 10**30}
        assert api.call("POST", "/runners", api.token(), huge).status == 201
        other = {"name": "h3", "version": 2, "inventory": inventory().model_dump(mode="json")}
        answer = api.call("POST", "/runners", api.token(), other)
        assert answer.status == 422
        assert "version 2" in answer.json["problem"]


def test_a_runner_that_asks_without_pause_is_told_to_wait_and_others_are_not(start: Start) -> None:
    with start(rate=1, burst=10) as api:
        loud, quiet = api.register("h1"), api.register("h2")
        answers = [api.claim(loud).status for _ in range(20)]
        assert answers.count(429) >= 8
        refused = api.claim(loud)
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert api.claim(quiet).status == 204


def test_guessing_is_slowed_and_stops_nobody_who_has_a_token(start: Start) -> None:
    with start(refusals=0.1, refused_burst=5) as api:
        secret = api.register()
        answers = [api.claim(f"wsrun_{number}").status for number in range(10)]
        assert answers == [401] * 5 + [429] * 5
        assert api.claim(secret).status == 204


def test_a_disk_that_is_full_is_said_so(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    with start() as api:
        job_id, lease, token = leased(api)

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("service.runner_api.files._write", full)
        answer = api.call("POST", f"{lease}/log?offset=0", token, b"x")
        assert answer.status == 503
        assert "No space left" in answer.json["problem"]
        assert api.call("PUT", f"{lease}/artifacts/a", token, b"x").status == 503
        assert list((api.files.root / "artifacts" / str(job_id)).iterdir()) == []


# The files alone


@pytest.fixture
def files(tmp_path: Path) -> CiFiles:
    return CiFiles(tmp_path)


def keep(files: CiFiles, path: str, data: bytes = b"x", job_id: int = 1, limit: int = 100) -> None:
    upload = files.begin_artifact(job_id, path, limit)
    try:
        upload.write(data)
        upload.finish()
    finally:
        upload.abandon()


def test_links_in_the_folders_are_not_followed(files: CiFiles, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"of another")
    place = files.root / "artifacts" / "1"
    place.mkdir()
    (place / "folder").symlink_to(outside)
    (place / "file").symlink_to(outside / "secret")
    (files.root / "logs" / "1.log").symlink_to(outside / "secret")
    (files.root / "sources" / f"{'1' * 40}.tar.gz").symlink_to(outside / "secret")
    with pytest.raises(FileRefused):
        keep(files, "folder/new")
    for path in ("folder/secret", "file"):
        with pytest.raises(NotHere):
            files.open_artifact(1, path)
    with pytest.raises(NotHere):
        files.open_source("1" * 40)
    with pytest.raises(OSError, match="symbolic"):
        files.append_log(1, 0, b"x", 100)
    assert files.read_log(1) == b""
    keep(files, "file")
    assert files.open_artifact(1, "file").read() == b"x"
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_bytes() == b"of another"


def test_a_pipe_in_the_folders_holds_nobody_up(files: CiFiles) -> None:
    os.mkfifo(files.root / "sources" / f"{'1' * 40}.tar.gz")
    with pytest.raises(NotHere):
        files.open_source("1" * 40)


@pytest.mark.parametrize("commit", ["", "1" * 39, "../" + "1" * 37, "G" * 40, "1" * 41])
def test_a_source_is_named_by_a_commit(files: CiFiles, commit: str) -> None:
    with pytest.raises(FileRefused):
        files.open_source(commit)


def test_a_file_where_a_folder_is_wanted_is_refused(files: CiFiles) -> None:
    keep(files, "a/b")
    with pytest.raises(FileRefused):
        keep(files, "a")
    with pytest.raises(FileRefused):
        keep(files, "a/b/c")
    assert files.open_artifact(1, "a/b").read() == b"x"


def test_two_uploads_at_once_do_not_exceed_the_limit_together(files: CiFiles) -> None:
    one, two = (files.begin_artifact(1, name, 10) for name in ("a", "b"))
    one.write(b"123456")
    two.write(b"123456")
    with pytest.raises(TooLarge):
        one.finish()
    two.finish()
    assert files.open_artifact(1, "b").read() == b"123456"


def test_so_many_files_and_no_more(files: CiFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.runner_api.files._FILES", 3)
    for name in "abc":
        keep(files, name)
    with pytest.raises(FileRefused, match="3 artifacts"):
        keep(files, "d")


def test_a_log_is_read_from_its_end(files: CiFiles) -> None:
    files.append_log(1, 0, b"0123456789", 100)
    assert files.read_log(1, -4) == b"6789"
    assert files.read_log(1, -99) == b"0123456789"
    assert files.read_log(1, 8) == b"89"
    assert files.read_log(2) == b""


def test_a_bucket_fills_again_and_forgets_who_came_long_ago() -> None:
    buckets = Buckets(rate=2, burst=2, callers=2)
    assert [buckets.take("a", 0.0) for _ in range(3)] == [0, 0, 0.5]
    assert buckets.take("a", 0.5) == 0
    assert buckets.take("a", 0.5) == 0.5
    buckets.take("b", 0.5)
    buckets.take("c", 0.5)
    assert [buckets.take("a", 0.5) for _ in range(2)] == [0, 0]
