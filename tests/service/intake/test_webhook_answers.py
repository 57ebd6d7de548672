"""Every answer that the webhook gives, over real HTTP, and what is in the database afterwards."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any
from urllib.parse import quote_plus, urlencode

import pytest

from reviewer.errors import ConfigError
from service.intake.signature import Signatures

BODY = json.dumps({"action": "opened", "title": "größer 😀"}, ensure_ascii=False).encode()


def test_a_signed_delivery_is_stored_and_answered_202(intake: Any, stored: Any) -> None:
    answer = intake.deliver(BODY, x_github_delivery="one", x_github_hook_id="42")
    assert (answer.status, answer.json) == (202, {"status": "stored"})
    (row,) = stored()
    assert (row.guid, row.event, row.body, row.state) == ("one", "pull_request", BODY, "received")
    assert row.headers["x-github-hook-id"] == "42"


def test_the_signature_is_not_kept(intake: Any, stored: Any) -> None:
    intake.deliver(BODY)
    (row,) = stored()
    assert set(row.headers) == {"x-github-event", "x-github-delivery", "content-type", "user-agent"}


def test_the_same_delivery_again_is_answered_202_and_has_no_second_effect(intake: Any, stored: Any) -> None:
    for _ in range(3):
        answer = intake.deliver(BODY, x_github_delivery="one")
        assert answer.status == 202
    assert answer.json == {"status": "duplicate"}
    assert len(stored()) == 1
    _until(lambda: intake.woken == [stored()[0].id])


def test_an_event_that_nobody_acts_on_is_kept_as_ignored_and_wakes_nobody(intake: Any, stored: Any) -> None:
    answer = intake.deliver(BODY, x_github_event="fork")
    assert (answer.status, answer.json) == (202, {"status": "ignored"})
    assert [row.state for row in stored()] == ["ignored"]
    intake.deliver(BODY)
    _until(lambda: intake.woken == [stored()[1].id])


@pytest.mark.parametrize(
    "signature",
    [
        None,
        "",
        "sha256=",
        "sha256=" + "0" * 64,
        "sha1=" + "0" * 40,
        "sha256=" + "é" * 32,
        "0" * 64,
    ],
)
def test_a_missing_or_wrong_signature_is_401(intake: Any, stored: Any, signature: str | None) -> None:
    assert intake.deliver(BODY, x_hub_signature_256=signature).status == 401
    assert stored() == []


def test_a_body_changed_by_one_bit_is_401(intake: Any, stored: Any, headers_for: Any) -> None:
    changed = bytes([BODY[0] ^ 1]) + BODY[1:]
    assert intake.request("POST", "/webhook", changed, headers_for(BODY)).status == 401
    assert stored() == []


def test_during_a_rotation_both_secrets_are_good_and_a_third_is_not(serve: Any) -> None:
    with serve(secrets=(b"new", b"old")) as intake:
        answers = [intake.deliver(BODY, secret=secret).status for secret in (b"new", b"old", b"other")]
    assert answers == [202, 202, 401]


@pytest.mark.parametrize("secrets", [(), (b"",), (b"good", b"")])
def test_an_empty_secret_is_refused_at_the_start(secrets: tuple[bytes, ...]) -> None:
    with pytest.raises(ConfigError, match="the webhook secret is empty; set "):
        Signatures(secrets)


@pytest.mark.parametrize("name", ["x_github_event", "x_github_delivery"])
@pytest.mark.parametrize("value", [None, "", "x" * 101, "two words", "caf\xe9"])
def test_a_missing_or_malformed_header_is_400(intake: Any, stored: Any, name: str, value: str | None) -> None:
    answer = intake.deliver(BODY, **{name: value})
    assert answer.status == 400
    assert name.replace("_", "-") in answer.json["error"].lower()
    assert stored() == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"payload",
        b"[]",
        b"null",
        b"3",
        b'"{}"',
        b'{"a": 1,}',
        b'{"a": 1} {}',
        b"\xef\xbb\xbf{}",
        b'{"a": "\xff"}',
        b'{"a": "\\ud800"}',
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' + b"9" * 5_000 + b"}",
    ],
    ids=lambda body: body[:12].hex(),
)
def test_a_body_that_is_not_a_json_object_is_400(intake: Any, stored: Any, body: bytes) -> None:
    assert intake.deliver(body).status == 400
    assert stored() == []


def test_a_form_delivery_is_signed_as_sent_and_stored_as_json(intake: Any, stored: Any) -> None:
    form = urlencode({"other": "1", "payload": BODY}).encode()
    answer = intake.deliver(form, content_type="application/x-www-form-urlencoded; charset=utf-8")
    assert answer.status == 202
    assert stored()[0].body == BODY


@pytest.mark.parametrize("form", [b"", b"other=1", b"payload=", b"payload=%5B%5D", b"payload=%zz"])
def test_a_form_without_a_json_object_is_400(intake: Any, stored: Any, form: bytes) -> None:
    assert intake.deliver(form, content_type="application/x-www-form-urlencoded").status == 400
    assert stored() == []


@pytest.mark.parametrize("kind", [None, "text/plain", "application/xml", "multipart/form-data"])
def test_another_content_type_is_415(intake: Any, stored: Any, kind: str | None) -> None:
    assert intake.deliver(BODY, content_type=kind).status == 415
    assert stored() == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
def test_another_method_is_405(intake: Any, method: str) -> None:
    answer = intake.request(method, "/webhook")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


def test_a_body_at_the_limit_is_stored_and_one_byte_more_is_413(serve: Any, stored: Any) -> None:
    with serve(body_limit=1_000_000) as intake:
        body = b'{"a": "' + b"x" * (1_000_000 - 9) + b'"}'
        assert len(body) == 1_000_000
        assert intake.deliver(body).status == 202
        assert intake.deliver(body + b" ").status == 413
    assert [len(row.body) for row in stored()] == [1_000_000]


def test_the_default_limit_is_above_what_github_sends(intake: Any, stored: Any) -> None:
    body = b'{"a": "' + b"x" * 25_000_000 + b'"}'
    assert intake.deliver(body).status == 202
    assert stored()[0].body == body


def test_bodies_beyond_the_memory_limit_are_503_and_the_next_is_taken(serve: Any) -> None:
    with serve(memory_limit=100_000) as intake:
        assert intake.deliver(b'{"a": "' + b"x" * 200_000 + b'"}').status == 503
        assert intake.deliver(BODY).status == 202


def test_a_form_field_may_hold_plus_and_percent(intake: Any, stored: Any) -> None:
    body = b'{"a": "1 + 1 = 2 & 100 %"}'
    form = b"payload=" + quote_plus(body.decode()).encode()
    assert intake.deliver(form, content_type="application/x-www-form-urlencoded").status == 202
    assert stored()[0].body == body


def test_answers_are_counted_by_event_and_outcome(serve: Any) -> None:
    with serve() as intake:
        intake.deliver(BODY, x_github_delivery="one")
        intake.deliver(BODY, x_github_delivery="one")
        intake.deliver(BODY, x_github_event="made-up")
        intake.deliver(BODY, secret=b"wrong")
        counted = {
            (event, outcome): intake.metric("whitesmoke_deliveries_total", event=event, outcome=outcome)
            for event in ("pull_request", "other", "made-up")
            for outcome in ("stored", "duplicate", "ignored", "bad_signature")
        }
    assert {key: count for key, count in counted.items() if count} == {
        ("pull_request", "stored"): 1,
        ("pull_request", "duplicate"): 1,
        ("pull_request", "bad_signature"): 1,
        ("other", "ignored"): 1,
    }


def test_one_connection_serves_many_deliveries(intake: Any, stored: Any, headers_for: Any) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", intake.port, timeout=20)
    for _ in range(20):
        connection.request("POST", "/webhook", BODY, headers_for(BODY))
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (202, b'{"status": "stored"}')
    connection.close()
    assert len(stored()) == 20


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
