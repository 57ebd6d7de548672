"""What clients do to connections: cut, slow, pipelined, chunked, too long, or not HTTP at all."""

from __future__ import annotations

import resource
import socket
import time
from pathlib import Path
from typing import Any

import pytest

BODY = b'{"action": "opened"}'


def _head(headers: dict[str, str], **more: str) -> bytes:
    lines = ["POST /webhook HTTP/1.1", "host: localhost"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in (headers | more).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _answers(connection: socket.socket, count: int) -> list[int]:
    """The next `count` answers' statuses; fewer where the server closes first."""
    reader = connection.makefile("rb")
    statuses: list[int] = []
    while len(statuses) < count and (line := reader.readline()):
        statuses.append(int(line.split()[1]))
        length = 0
        while (header := reader.readline().strip()) != b"":
            name, _, value = header.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        reader.read(length)
    return statuses


def _is_closed(connection: socket.socket) -> bool:
    """Whether the server closes within the socket's timeout."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def test_a_body_cut_short_is_not_stored_and_counted(serve: Any, stored: Any, headers_for: Any) -> None:
    with serve() as intake:
        with intake.connect() as connection:
            connection.sendall(_head(headers_for(BODY), content_length="20") + BODY[:10])
            time.sleep(0.1)
        deadline = time.monotonic() + 5
        while not intake.metric("whitesmoke_deliveries_total", event="pull_request", outcome="disconnected"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert stored() == []


def test_a_content_length_shorter_than_the_body_fails_the_signature(
    intake: Any, stored: Any, headers_for: Any
) -> None:
    with intake.connect() as connection:
        connection.sendall(_head(headers_for(BODY), content_length="10") + BODY)
        # What follows the first ten bytes is read as a request, and is none.
        assert _answers(connection, 2) in ([401, 400], [400])
    assert stored() == []


@pytest.mark.parametrize("length", ["-1", "ten", "1e3", "99999999999999999999999", ""])
def test_a_content_length_that_is_no_number_is_400(intake: Any, headers_for: Any, length: str) -> None:
    with intake.connect() as connection:
        connection.sendall(_head(headers_for(BODY), content_length=length) + BODY)
        assert _answers(connection, 1) == [400]
        assert _is_closed(connection)


def test_a_length_together_with_chunks_is_400(intake: Any, stored: Any, headers_for: Any) -> None:
    with intake.connect() as connection:
        connection.sendall(
            _head(headers_for(BODY), content_length="20", transfer_encoding="chunked") + b"0\r\n\r\n"
        )
        assert _answers(connection, 1) == [400]
    assert stored() == []


def test_a_chunked_body_is_taken(intake: Any, stored: Any, headers_for: Any) -> None:
    with intake.connect() as connection:
        connection.sendall(_head(headers_for(BODY), transfer_encoding="chunked"))
        for byte in BODY:
            connection.sendall(b"1\r\n%c\r\n" % byte)
        connection.sendall(b"0\r\n\r\n")
        assert _answers(connection, 1) == [202]
    assert stored()[0].body == BODY


def test_a_declared_length_over_the_limit_is_413_before_the_body(intake: Any, headers_for: Any) -> None:
    with intake.connect() as connection:
        connection.sendall(_head(headers_for(BODY), content_length=str(26 * 1024 * 1024 + 1)))
        assert _answers(connection, 1) == [413]


def test_a_chunked_body_over_the_limit_is_413_and_not_kept_in_memory(intake: Any, headers_for: Any) -> None:
    chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    with intake.connect() as connection:
        connection.sendall(_head(headers_for(BODY), transfer_encoding="chunked"))
        for _ in range(26):
            connection.sendall(chunk)
        assert _answers(connection, 1) == [413]
        before = _memory()
        for _ in range(200):
            connection.sendall(chunk)
        assert _memory() - before < 20_000_000
        # The connection is still in step: the refused body ends, and a delivery follows on it.
        connection.sendall(b"0\r\n\r\n" + _head(headers_for(BODY), content_length="20") + BODY)
        assert _answers(connection, 1) == [202]


def test_a_refused_body_is_skipped_and_the_connection_goes_on(intake: Any, headers_for: Any) -> None:
    unsigned = headers_for(BODY, x_hub_signature_256=None)
    with intake.connect() as connection:
        connection.sendall(_head(unsigned, content_length="3000000"))
        assert _answers(connection, 1) == [401]
        connection.sendall(b"x" * 3_000_000)
        connection.sendall(_head(headers_for(BODY), content_length="20") + BODY)
        assert _answers(connection, 1) == [202]


def test_pipelined_deliveries_are_all_answered_in_order(intake: Any, stored: Any, headers_for: Any) -> None:
    requests = [
        _head(headers_for(BODY, x_github_delivery=str(number)), content_length="20") + BODY
        for number in range(10)
    ]
    requests[4] = _head(headers_for(BODY, x_hub_signature_256="sha256=0"), content_length="20") + BODY
    with intake.connect() as connection:
        connection.sendall(b"".join(requests))
        assert _answers(connection, 10) == [202] * 4 + [401] + [202] * 5
    assert [row.guid for row in stored()] == ["0", "1", "2", "3", "5", "6", "7", "8", "9"]


def test_a_client_that_expects_100_continue_gets_it(intake: Any, headers_for: Any) -> None:
    with intake.connect() as connection:
        connection.sendall(_head(headers_for(BODY), content_length="20", expect="100-continue"))
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(BODY)
        assert _answers(connection, 1) == [202]


@pytest.mark.parametrize(
    "noise",
    [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"\r\n\x00\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
)
def test_what_is_not_http_is_turned_away(intake: Any, noise: bytes) -> None:
    with intake.connect() as connection:
        connection.sendall(noise)
        assert _answers(connection, 1) == [400]
        assert _is_closed(connection)
    assert intake.get("/healthz").status == 200


def test_head_and_body_that_never_come_are_cut_off_and_others_are_served(
    serve: Any, stored: Any, headers_for: Any
) -> None:
    head = _head(headers_for(BODY), content_length="20")
    with serve(patience=1.0) as intake:
        silent, half_head, half_body, refused = (intake.connect() for _ in range(4))
        half_head.sendall(head[:30])
        half_body.sendall(head + BODY[:5])
        refused.sendall(_head(headers_for(BODY, x_hub_signature_256=None), content_length="20"))
        for _ in range(4):
            # Something now and then does not help: the whole request counts.
            time.sleep(0.3)
            _send(half_head, b"x-pad: 1\r\n")
            _send(half_body, b" ")
            assert intake.deliver(BODY).status == 202
        for connection in (silent, half_head, half_body, refused):
            connection.settimeout(5)
            assert _is_closed(connection)
            connection.close()
        assert intake.deliver(BODY).status == 202
    assert {row.body for row in stored()} == {BODY}


def test_an_idle_connection_lives_as_long_as_requests_come(serve: Any, headers_for: Any) -> None:
    with serve(patience=1.5) as intake, intake.connect() as connection:
        for _ in range(8):
            connection.sendall(_head(headers_for(BODY), content_length="20") + BODY)
            assert _answers(connection, 1) == [202]
            time.sleep(0.5)


def _send(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(data)
    except ConnectionError:
        """Cut off already, which is what the test waits for."""


def _memory() -> int:
    """Bytes of this process, the service's thread included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
