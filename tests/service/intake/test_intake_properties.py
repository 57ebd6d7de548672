"""Whatever comes in: no 500, no hang, and nothing stored that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from service.events.payloads import PayloadError, read_payload

_KNOWN = {202, 400, 401, 405, 413, 415, 503}
_quiet = settings(
    max_examples=150, deadline=5_000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
_bodies = st.one_of(
    st.binary(max_size=300),
    _values.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(st.sampled_from(["action", "repository", "number", "\0"]), _values).map(
        lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    ),
)
_header_values = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0"), max_size=120)
_words = _header_values | st.sampled_from(["pull_request", "issue_comment", "push"])
_types = (
    st.sampled_from(["application/json", "application/x-www-form-urlencoded", "text/plain"]) | _header_values
)


@_quiet
@given(body=_bodies, event=_words, content_type=_types, guid=_words, signed=st.booleans())
def test_every_request_gets_a_known_answer_and_what_is_stored_can_be_read(
    intake: Any, stored: Any, body: bytes, event: str, content_type: str, guid: str, signed: bool
) -> None:
    changes = {} if signed else {"x_hub_signature_256": "sha256=" + guid}
    before = len(stored())
    answer = intake.deliver(
        body, x_github_event=event, x_github_delivery=guid, content_type=content_type, **changes
    )
    assert answer.status in _KNOWN
    rows = stored()
    assert len(rows) - before == (answer.status == 202 and answer.json["status"] != "duplicate")
    for row in rows[before:]:
        _read(row)


def _read(row: Any) -> None:
    """Fails where a worker could not read the body as JSON; that a field is missing is another matter."""
    assert isinstance(json.loads(row.body), dict)
    try:
        read_payload(row.event, row.body)
    except PayloadError as error:
        if "JSON" in str(error):
            raise


@_quiet
@given(value=st.dictionaries(st.text(), _values))
def test_json_and_form_store_the_same_object(intake: Any, stored: Any, value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    plain = intake.deliver(body)
    form = b"payload=" + quote(body).encode()
    encoded = intake.deliver(form, content_type="application/x-www-form-urlencoded")
    assert plain.status == encoded.status
    if plain.status == 202:
        assert [row.body for row in stored()[-2:]] == [body, body]


@_quiet
@given(line=st.binary(max_size=200), rest=st.binary(max_size=200))
def test_bytes_that_may_be_http_never_give_a_500(intake: Any, line: bytes, rest: bytes) -> None:
    with intake.connect() as connection:
        connection.sendall(b"POST /webhook HTTP/1.1\r\n" + line + b"\r\n\r\n" + rest)
        connection.shutdown(1)
        connection.settimeout(0.05)
        try:
            answer = connection.recv(100)
        except (TimeoutError, ConnectionError):
            answer = b""
    assert not answer.startswith(b"HTTP/1.1 5")


class _GitHub(requests.auth.AuthBase):
    """Signs what is sent, as GitHub does."""

    def __init__(self, sign: Any) -> None:
        self._sign = sign

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        body = request.body or b""
        body = body.encode() if isinstance(body, str) else body
        request.headers["X-Hub-Signature-256"] = self._sign(body)
        return request


_OPERATIONS = ["POST /webhook", "GET /healthz", "GET /readyz", "GET /metrics"]


def _check(intake: Any, operation: str, modes: Sequence[GenerationMode], auth: Any = None) -> None:
    """Sends requests made from the description, good or bad ones, and compares the answers with it."""
    url = f"http://127.0.0.1:{intake.port}"
    method, path = operation.split()
    described = schemathesis.openapi.from_url(f"{url}/openapi.json")[path][method]
    cases = st.one_of(described.as_strategy(mode) for mode in modes)

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=cases)
    def check(case: schemathesis.Case) -> None:
        # That a form's field holds JSON is nothing that a schema can say.
        is_form = case.media_type == "application/x-www-form-urlencoded"
        case.call_and_validate(
            base_url=url, excluded_checks=[positive_data_acceptance] if is_form else [], auth=auth
        )

    check()


def test_the_description_is_complete(intake: Any) -> None:
    paths = intake.get("/openapi.json").json["paths"]
    assert {f"{method.upper()} {path}" for path in paths for method in paths[path]} == set(_OPERATIONS)


@pytest.mark.parametrize("operation", _OPERATIONS)
def test_requests_are_answered_as_the_description_says(intake: Any, operation: str) -> None:
    _check(intake, operation, list(GenerationMode))


def test_signed_requests_are_answered_as_the_description_says(intake: Any, signature_of: Any) -> None:
    _check(intake, "POST /webhook", [GenerationMode.POSITIVE], _GitHub(signature_of))
