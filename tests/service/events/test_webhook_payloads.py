from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from service.events import EVENTS, Context, PayloadError, decide, read_payload
from service.events.payloads import Payload, Unused
from service.forge.base import User
from tests.service.events.deliveries import HEAD, SAMPLES, commented, pulled, reviewed

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
EVENT = st.sampled_from(sorted(EVENTS)) | st.text(max_size=20)


def read(event: str, payload: Any) -> Payload:
    return read_payload(event, json.dumps(payload).encode())


def fresh(payload: Any) -> Any:
    """A copy that shares no part with the others, or with itself."""
    return json.loads(json.dumps(payload))


def answer(event: str, body: bytes) -> Payload | str:
    try:
        return read_payload(event, body)
    except PayloadError as error:
        return str(error)


def used(payload: Payload) -> bool:
    return not isinstance(payload, Unused)


def nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from nodes(value[key], (*path, key))


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    value = fresh(value)
    inner = value
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = new
    return value


def required(model: BaseModel, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in type(model).model_fields.items():
        if field.is_required() and name != "action":
            yield (*path, name)
        value = getattr(model, name)
        if isinstance(value, BaseModel) and field.is_required():
            yield from required(value, (*path, name))


def test_every_example_of_github_and_of_its_servers_is_read(examples: Any) -> None:
    assert "api.github.com" in examples
    assert len(examples) > 1
    seen = set()
    for server in examples.values():
        for event, example in server:
            payload = read(event, example)
            decide(payload, Context("whitesmoke[bot]", 1))
            if used(payload):
                seen.add(event)
            else:
                assert (event, example.get("action")) not in {(e, p.get("action")) for e, p in SAMPLES}
    assert seen == EVENTS


@pytest.mark.parametrize(
    ("event", "payload"), SAMPLES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_field_that_is_needed_is_named_where_it_lacks(event: str, payload: dict[str, Any]) -> None:
    for path in required(read(event, payload)):
        broken = fresh(payload)
        inner = broken
        for part in path[:-1]:
            inner = inner[part]
        del inner[path[-1]]
        with pytest.raises(PayloadError, match=f"^{event} delivery: ") as error:
            read(event, broken)
        assert (error.value.event, error.value.field) == (event, ".".join(path))


def test_an_event_or_action_without_use_asks_for_no_field() -> None:
    for event, body in (
        ("star", {"action": "created"}),
        ("pull_request", {"action": "assigned"}),
        ("fork", {}),
    ):
        assert read(event, body) == Unused(event=event, action=body.get("action", ""))
    assert not used(read("fork", {"action": 7}))


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"null", b"\xff", b'{"action": "opened"'])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(PayloadError):
        read_payload("pull_request", body)


@pytest.mark.parametrize(
    "wrong",
    [
        {"number": 0},
        {"number": "7"},
        {"number": 2**31},
        {"number": True},
        {"head": {"sha": "main"}},
        {"head": {"sha": "--upload-pack=x"}},
        {"head": {"sha": HEAD + "\n"}},
    ],
)
def test_numbers_and_names_of_commits_are_what_they_say(wrong: dict[str, Any]) -> None:
    with pytest.raises(PayloadError):
        read("pull_request", pulled("opened", **wrong))


@pytest.mark.parametrize("name", ["acme", "acme/app/x", "../app", "acme/a b", "acme/app\n", "/app"])
def test_a_repository_has_an_owner_and_a_name(name: str) -> None:
    payload = pulled("opened")
    payload["repository"] = {"id": 5, "full_name": name}
    if name == "../app":
        assert used(read("pull_request", payload)), "dots are letters of names: no path is ever made of them"
        return
    with pytest.raises(PayloadError, match=r"repository\.full_name"):
        read("pull_request", payload)


def test_a_deleted_account_is_a_ghost_without_rights() -> None:
    (intent,) = decide(read("issue_comment", commented("/help", author=None)), Context("me"))
    assert getattr(intent, "author", None) == User("ghost")


def test_a_review_whose_commit_is_gone_is_read() -> None:
    assert used(read("pull_request_review", reviewed("submitted", commit_id=None)))


def test_secrets_in_a_payload_do_not_reach_the_message() -> None:
    payload = pulled("opened", head={"sha": "hunter2"})
    with pytest.raises(PayloadError) as error:
        read("pull_request", payload)
    assert "hunter2" not in str(error.value)


@given(EVENT, st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_a_payload_or_an_error_of_one_line(event: str, body: bytes) -> None:
    found = answer(event, body)
    if isinstance(found, str):
        assert "\n" not in found
    else:
        assert decide(found, Context("me", 1))


@settings(max_examples=400)
@given(st.sampled_from(SAMPLES), st.data())
def test_a_payload_with_one_wrong_part_is_decided_or_refused(
    sample: tuple[str, Any], data: st.DataObject
) -> None:
    event, payload = sample
    path = data.draw(st.sampled_from(list(nodes(payload))))
    broken = put(payload, path, data.draw(JSON))
    found = answer(event, json.dumps(broken).encode())
    if isinstance(found, str):
        assert found.startswith(f"{event} delivery: ")
    else:
        assert decide(found, Context("me", 77))
