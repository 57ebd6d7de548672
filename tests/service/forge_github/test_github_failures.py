"""What goes wrong between GitHub and us: retried where that is safe, told with the time to come back otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from service.forge.base import ForgeError
from service.forge.github.client import Client
from service.forge.github.credentials import UserToken
from service.forge.github.forge import GitHubForge
from service.forge.github.transport import Transport
from tests.service.forge_github.connect import Connect
from tests.standin.github import GitHub, Pull, Repo

Count = Callable[[str, str], int]
COMMENTS = "POST /repos/*/*/issues/*/comments"


@pytest.fixture
def pull(repo: Repo) -> Pull:
    return repo.open_pull(files={"a.py": "x\n"})


@pytest.mark.parametrize("status", [500, 502])
def test_a_read_is_repeated_after_a_server_error(
    forge: GitHubForge, hub: GitHub, pull: Pull, connect: Connect, status: int
) -> None:
    hub.fail("GET /repos/*/*/pulls/1", status, times=2)
    assert forge.pull("acme/app", 1).number == 1
    assert len(connect.naps) == 2
    assert 0 < connect.naps[0] < connect.naps[1] * 3


@pytest.mark.parametrize("drop", ["before", "after"])
def test_a_read_is_repeated_after_a_lost_connection(
    forge: GitHubForge, hub: GitHub, pull: Pull, drop: str
) -> None:
    hub.fail("GET /repos/*/*/pulls/1", drop=drop, times=2)  # type: ignore[arg-type]
    assert forge.pull("acme/app", 1).number == 1


def test_a_read_that_keeps_failing_says_when_to_come_back(
    forge: GitHubForge, hub: GitHub, pull: Pull, count: Count
) -> None:
    hub.fail("GET /repos/*/*/pulls/1", 502, times=9)
    with pytest.raises(ForgeError, match="502 to GET /repos/acme/app/pulls/1") as failed:
        forge.pull("acme/app", 1)
    assert failed.value.status == 502
    assert failed.value.retry_after
    assert count("GET", "/pulls/1") == 3


@pytest.mark.parametrize("failure", [{"status": 502}, {"drop": "before"}])
def test_a_write_is_never_repeated_blindly(
    forge: GitHubForge, hub: GitHub, pull: Pull, count: Count, failure: dict[str, object]
) -> None:
    hub.fail(COMMENTS, **failure)  # type: ignore[arg-type]
    with pytest.raises(ForgeError) as failed:
        forge.create_comment("acme/app", 1, "hello")
    assert failed.value.retry_after
    assert count("POST", "/issues/1/comments") == 1
    assert pull.comments == []


@pytest.mark.parametrize("failure", [{"status": 502, "effect": True}, {"drop": "after"}])
def test_a_write_whose_answer_is_lost_stands_once_and_is_found(
    forge: GitHubForge, hub: GitHub, pull: Pull, failure: dict[str, object]
) -> None:
    hub.fail(COMMENTS, **failure)  # type: ignore[arg-type]
    with pytest.raises(ForgeError) as failed:
        forge.create_comment("acme/app", 1, "hello")
    assert failed.value.retry_after
    assert [one.body for one in pull.comments] == ["hello"]
    assert [one.body for one in forge.comments("acme/app", 1)] == ["hello"]


def test_an_answer_that_does_not_come_is_given_up(
    forge: GitHubForge, hub: GitHub, pull: Pull, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.forge.github.transport._TIMEOUT", 0.2)
    hub.fail("PATCH /repos/*/*/issues/comments/*", delay=1.0)
    comment = pull.comment("whitesmoke[bot]", "hello")
    start = time.monotonic()
    with pytest.raises(ForgeError, match="did not answer PATCH") as failed:
        forge.edit_comment("acme/app", 1, comment.id, "hi")
    assert time.monotonic() - start < 0.9
    assert (failed.value.status, failed.value.retry_after is not None) == (0, True)


def test_nobody_there_is_an_error_that_names_the_setting(connect: Connect) -> None:
    transport = Transport("http://127.0.0.1:9", connect.naps.append)
    with pytest.raises(ForgeError, match="WHITESMOKE_GITHUB_URL") as failed:
        transport.request("GET", "/rate_limit", "Bearer x")
    assert failed.value.retry_after
    assert len(connect.naps) == 2


class SignInPage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>sign in</html>")

    def log_message(self, *_: object) -> None:
        pass


def test_a_page_in_place_of_json_is_a_failure_of_the_way_there() -> None:
    with HTTPServer(("127.0.0.1", 0), SignInPage) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        transport = Transport(f"http://127.0.0.1:{server.server_port}", lambda _: None)
        with pytest.raises(ForgeError, match="did not answer GET") as failed:
            transport.request("GET", "/rate_limit", "Bearer x")
        server.shutdown()
    assert failed.value.retry_after


# Limits


def test_a_primary_limit_that_ends_soon_is_waited_for(
    forge: GitHubForge, hub: GitHub, pull: Pull, connect: Connect
) -> None:
    forge.pull("acme/app", 1)
    hub.leave_requests(0, resets_in=1)
    connect_sleeps_for_real(forge)
    assert forge.pull("acme/app", 1).number == 1


def test_a_primary_limit_that_lasts_is_told_and_no_further_request_is_made(
    forge: GitHubForge, hub: GitHub, pull: Pull
) -> None:
    forge.pull("acme/app", 1)
    hub.leave_requests(1, resets_in=600)
    forge.permission("acme/app", "ada")
    before = len(hub.requests)
    for _ in range(2):
        with pytest.raises(ForgeError, match="rate limit") as failed:
            forge.create_comment("acme/app", 1, "hello")
        assert failed.value.status == 429
        assert 590 < (failed.value.retry_after or 0) < 610
    assert len(hub.requests) == before


def test_a_secondary_limit_that_ends_soon_is_waited_for_also_by_a_write(
    forge: GitHubForge, hub: GitHub, pull: Pull, connect: Connect
) -> None:
    connect_sleeps_for_real(forge)
    hub.throttle(COMMENTS, retry_after=1)
    forge.create_comment("acme/app", 1, "hello")
    assert [one.body for one in pull.comments] == ["hello"]


def test_a_secondary_limit_that_lasts_is_told(
    forge: GitHubForge, hub: GitHub, pull: Pull, count: Count
) -> None:
    hub.throttle(COMMENTS, retry_after=120)
    with pytest.raises(ForgeError) as failed:
        forge.create_comment("acme/app", 1, "hello")
    assert failed.value.status == 429
    assert 115 < (failed.value.retry_after or 0) <= 120
    assert count("POST", "/issues/1/comments") == 1


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (429, "Too many requests"),
        (403, "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."),
        (422, "Validation Failed: was submitted too quickly"),
    ],
)
def test_a_limit_without_a_time_is_kept_for_a_minute(
    forge: GitHubForge, hub: GitHub, pull: Pull, status: int, message: str
) -> None:
    hub.fail(COMMENTS, status, message=message)
    with pytest.raises(ForgeError) as failed:
        forge.create_comment("acme/app", 1, "hello")
    assert failed.value.status == 429
    assert 55 < (failed.value.retry_after or 0) <= 60


def test_a_limit_of_one_identity_does_not_hold_up_another(
    hub: GitHub, repo: Repo, pull: Pull, connect: Connect
) -> None:
    hub.throttle("GET /repos/*/*/pulls/1", retry_after=120)
    with pytest.raises(ForgeError):
        connect.token(hub, "ada").pull("acme/app", 1)
    assert connect.token(hub, "bob").pull("acme/app", 1).number == 1


# Refusals


def test_a_wrong_token_names_the_setting(hub: GitHub, repo: Repo) -> None:
    client = Client(Transport(hub.api_url), UserToken("ghp_wrong"))
    with pytest.raises(ForgeError, match=r"Bad credentials.*check the token") as refused:
        client.get("acme/app", "/pulls/1")
    assert (refused.value.status, refused.value.retry_after) == (401, None)


def test_what_is_missing_is_named_with_the_permission_to_check(forge: GitHubForge) -> None:
    with pytest.raises(
        ForgeError, match=r"/repos/acme/app/pulls/7: Not Found; .*Pull requests: read"
    ) as refused:
        forge.pull("acme/app", 7)
    assert (refused.value.status, refused.value.retry_after) == (404, None)


def test_a_refusal_is_one_line_however_long_githubs_is(forge: GitHubForge, hub: GitHub, pull: Pull) -> None:
    hub.fail(COMMENTS, 422, message="no\n\n" + "very " * 500)
    with pytest.raises(ForgeError) as refused:
        forge.create_comment("acme/app", 1, "hello")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


def test_githubs_own_failure_under_another_number_is_worth_another_try(
    forge: GitHubForge, hub: GitHub, pull: Pull
) -> None:
    hub.fail(COMMENTS, 422, message="An internal error occurred, please try again.")
    with pytest.raises(ForgeError) as failed:
        forge.create_comment("acme/app", 1, "hello")
    assert (failed.value.status, failed.value.retry_after is not None) == (502, True)


def connect_sleeps_for_real(forge: GitHubForge) -> None:
    forge._client._transport._limits._sleep = time.sleep
