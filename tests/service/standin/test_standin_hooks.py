"""Webhooks: signed, in order, and troubled as the test says."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from github import Auth, GithubIntegration

from tests.standin.github import GitHub, Pull, Repo


class Receiver:
    """A webhook's other end: notes what comes, answers `status`."""

    def __init__(self) -> None:
        self.status = 202
        self.got: list[tuple[dict[str, str], bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(receiver.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/webhook"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def events(self) -> list[str]:
        return [f"{headers['x-github-event']} {json.loads(body).get('action')}" for headers, body in self.got]

    def guids(self) -> list[str]:
        return [headers["x-github-delivery"] for headers, _ in self.got]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def pull(hub: GitHub, repo: Repo, receiver: Receiver) -> Pull:
    opened = repo.open_pull(files={"a.py": "a\n"})
    hub.webhook(receiver.url, "a secret")
    return opened


def test_a_delivery_is_signed_and_named(hub: GitHub, pull: Pull, receiver: Receiver) -> None:
    pull.comment("bob", "/review \N{SNOWMAN}")
    hub.hooks.settle()
    [(headers, body)] = receiver.got
    expected = hmac.new(b"a secret", body, hashlib.sha256).hexdigest()
    assert headers["x-hub-signature-256"] == f"sha256={expected}"
    assert headers["x-github-event"] == "issue_comment"
    assert headers["content-type"] == "application/json"
    payload = json.loads(body)
    assert payload["comment"]["body"] == "/review \N{SNOWMAN}"
    assert payload["issue"]["pull_request"]["url"].endswith("/pulls/1")
    assert hub.deliveries[0].guid == headers["x-github-delivery"]
    assert (hub.deliveries[0].status, hub.deliveries[0].status_code) == ("OK", 202)


def test_held_deliveries_come_in_the_order_of_their_release(
    hub: GitHub, pull: Pull, receiver: Receiver
) -> None:
    hub.hooks.hold()
    for number in range(3):
        pull.comment("bob", str(number))
    hub.hooks.settle()
    assert receiver.got == []
    hub.hooks.release(reversed)
    hub.hooks.settle()
    assert [json.loads(body)["comment"]["body"] for _, body in receiver.got] == ["2", "1", "0"]


def test_a_duplicate_has_the_same_guid_or_a_new_one(hub: GitHub, pull: Pull, receiver: Receiver) -> None:
    hub.hooks.duplicate(1, "issue_comment")
    pull.push({"a.py": "b\n"})
    pull.comment("bob", "x")
    hub.hooks.settle()
    hub.hooks.duplicate(new_guid=True)
    pull.comment("bob", "y")
    hub.hooks.settle()
    guids = receiver.guids()
    assert receiver.events() == ["push None", "pull_request synchronize", *["issue_comment created"] * 4]
    assert guids[2] == guids[3]
    assert guids[4] != guids[5]


def test_a_lost_delivery_is_listed_as_failed_and_can_be_had_again(
    hub: GitHub, repo: Repo, pull: Pull, receiver: Receiver
) -> None:
    app = hub.create_app()
    hub.install(app, "acme")
    hub.hooks.hooks.clear()
    hub.webhook(receiver.url, "a secret", app=app)
    seen = GithubIntegration(
        auth=Auth.AppAuth(app.id, app.private_key),
        base_url=hub.api_url,
        retry=None,
        seconds_between_requests=0,
    )
    hub.hooks.lose()
    pull.comment("bob", "lost")
    pull.comment("bob", "arrived")
    hub.hooks.settle()

    def listed(**query: str) -> list[dict[str, object]]:
        _, found = seen.requester.requestJsonAndCheck("GET", "/app/hook/deliveries", parameters=query)
        return list(found)

    assert [one["status"] for one in listed()] == ["OK", "failed to connect to host"]
    [failed] = listed(status="failure")
    seen.requester.requestJsonAndCheck("POST", f"/app/hook/deliveries/{failed['id']}/attempts")
    hub.hooks.settle()
    assert receiver.guids()[-1] == failed["guid"]
    assert json.loads(receiver.got[-1][1])["comment"]["body"] == "lost"
    assert [(one["redelivery"], one["status_code"]) for one in listed()] == [
        (True, 202),
        (False, 202),
        (False, 502),
    ]
    _, shown = seen.requester.requestJsonAndCheck("GET", f"/app/hook/deliveries/{failed['id']}")
    assert shown["request"]["payload"]["comment"]["body"] == "lost"


def test_deliveries_are_listed_by_cursor(hub: GitHub, pull: Pull, receiver: Receiver) -> None:
    app = hub.create_app()
    hub.install(app, "acme")
    hub.webhook(receiver.url, "a secret", app=app)
    for number in range(5):
        pull.comment("bob", str(number))
    hub.hooks.settle()
    seen = GithubIntegration(
        auth=Auth.AppAuth(app.id, app.private_key),
        base_url=hub.api_url,
        retry=None,
        seconds_between_requests=0,
    )
    url, pages = "/app/hook/deliveries?per_page=2", []
    while url:
        headers, found = seen.requester.requestJsonAndCheck("GET", url)
        pages.append(len(found))
        url = headers.get("link", "").partition(">")[0].lstrip("<")
    assert pages == [2, 2, 1]


def test_an_app_gets_the_events_it_subscribed_to_where_it_is_installed(
    hub: GitHub, pull: Pull, receiver: Receiver
) -> None:
    app = hub.create_app(events=["issue_comment"])
    hub.hooks.hooks.clear()
    hub.webhook(receiver.url, "a secret", app=app)
    pull.comment("bob", "too early")
    made = hub.install(app, "acme")
    pull.comment("bob", "x")
    pull.label("y")
    hub.create_repo("other/app").open_pull(files={"a.py": "a\n"}).comment("bob", "not installed here")
    hub.hooks.settle()
    assert receiver.events() == ["installation created", "issue_comment created"]
    assert json.loads(receiver.got[1][1])["installation"]["id"] == made.id


def test_a_receiver_that_fails_or_is_gone_is_recorded(hub: GitHub, pull: Pull, receiver: Receiver) -> None:
    receiver.status = 500
    pull.comment("bob", "x")
    hub.hooks.settle()
    receiver.close()
    pull.comment("bob", "y")
    hub.hooks.settle()
    assert [one.status_code for one in hub.deliveries] == [500, 502]
