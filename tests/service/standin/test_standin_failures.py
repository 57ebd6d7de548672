"""Failure switches, rate limits, conditional requests, and the test that overlooks something."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import requests
from github import Github, GithubException

from tests.standin.github import GitHub, Pull, Repo

Client = Callable[[str], Github]
COMMENTS = "POST /repos/*/*/issues/*/comments"


@pytest.fixture
def pull(repo: Repo) -> Pull:
    return repo.open_pull(files={"a.py": "a\n"})


@pytest.mark.parametrize("status", [403, 404, 406, 409, 422, 500, 502])
def test_a_request_fails_as_often_as_told_and_has_no_effect(pull: Pull, client: Client, status: int) -> None:
    struck = pull.repo.hub.fail(COMMENTS, status, times=2)
    seen = client("bob").get_repo("acme/app").get_pull(1)
    for _ in range(2):
        with pytest.raises(GithubException) as refused:
            seen.create_issue_comment("x")
        assert refused.value.status == status
    seen.create_issue_comment("x")
    assert len(pull.comments) == 1
    assert struck.hits == 2


def test_a_failure_can_wait_for_its_turn_and_be_taken_back(pull: Pull, client: Client) -> None:
    hub = pull.repo.hub
    hub.fail(COMMENTS, 502, skip=1)
    seen = client("bob").get_repo("acme/app").get_pull(1)
    seen.create_issue_comment("passes")
    with pytest.raises(GithubException):
        seen.create_issue_comment("fails")
    hub.fail(COMMENTS, 502, times=99)
    hub.heal()
    seen.create_issue_comment("healed")
    assert [one.body for one in pull.comments] == ["passes", "healed"]


@pytest.mark.parametrize(("drop", "effects"), [("before", 0), ("after", 1)])
def test_a_connection_is_dropped_before_or_after_the_effect(
    pull: Pull, client: Client, drop: str, effects: int
) -> None:
    pull.repo.hub.fail(COMMENTS, drop=drop)
    seen = client("bob").get_repo("acme/app").get_pull(1)
    with pytest.raises(requests.ConnectionError):
        seen.create_issue_comment("x")
    assert len(pull.comments) == effects


def test_an_error_can_come_after_the_effect(pull: Pull, client: Client) -> None:
    pull.repo.hub.fail(COMMENTS, 502, effect=True)
    with pytest.raises(GithubException, match="502"):
        client("bob").get_repo("acme/app").get_pull(1).create_issue_comment("x")
    assert len(pull.comments) == 1


def test_a_slow_answer_comes_late(hub: GitHub, repo: Repo) -> None:
    hub.fail("GET /repos/*/*", delay=0.3)
    with pytest.raises(requests.Timeout):
        requests.get(f"{hub.api_url}/repos/acme/app", timeout=0.1)
    started = time.monotonic()
    hub.fail("GET /repos/*/*", delay=0.3)
    assert requests.get(f"{hub.api_url}/repos/acme/app", timeout=5).status_code == 200
    assert time.monotonic() - started >= 0.3


def test_a_pattern_matches_whole_segments(hub: GitHub, repo: Repo, client: Client) -> None:
    hub.fail("GET /repos/*", 502)
    hub.fail("POST /repos/*/*", 502)
    assert client("bob").get_repo("acme/app").name == "app"
    hub.heal()
    hub.fail("* /repos/**", 502)
    with pytest.raises(GithubException, match="502"):
        client("bob").get_repo("acme/app")


def test_the_diff_of_too_many_files_is_406(hub: GitHub, repo: Repo) -> None:
    repo.open_pull(files={f"f{number}.py": "x\n" for number in range(301)})
    diff = {"Accept": "application/vnd.github.diff"}
    url = f"{hub.api_url}/repos/acme/app/pulls/1"
    refused = requests.get(url, headers=diff, timeout=10)
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (406, "too_large")
    hub.largest_diff(301)
    answer = requests.get(url, headers=diff, timeout=10)
    assert answer.text.count("diff --git ") == 301
    assert requests.get(f"{url}/files?per_page=100&page=4", timeout=10).json()[0]["filename"].endswith(".py")


def test_the_primary_limit_is_counted_shown_and_enforced_until_it_resets(hub: GitHub, repo: Repo) -> None:
    headers = {"Authorization": f"token {hub.token('bob')}"}
    url = f"{hub.api_url}/repos/acme/app"
    first = requests.get(url, headers=headers, timeout=10)
    assert first.headers["X-RateLimit-Remaining"] == "4999"
    hub.leave_requests(1, resets_in=60)
    assert requests.get(url, headers=headers, timeout=10).headers["X-RateLimit-Remaining"] == "0"
    refused = requests.get(url, headers=headers, timeout=10)
    assert refused.status_code == 403
    assert refused.headers["X-RateLimit-Remaining"] == "0"
    assert "rate limit exceeded" in refused.json()["message"]
    overview = requests.get(f"{hub.api_url}/rate_limit", headers=headers, timeout=10).json()
    assert overview["rate"]["remaining"] == 0
    hub.pass_time(61)
    assert requests.get(url, headers=headers, timeout=10).status_code == 200


def test_an_unchanged_answer_is_304_and_costs_nothing(hub: GitHub, repo: Repo) -> None:
    token = hub.token("bob")
    url = f"{hub.api_url}/repos/acme/app"
    first = requests.get(url, headers={"Authorization": f"token {token}"}, timeout=10)
    left = hub.requests_left(token)
    conditional = {"Authorization": f"token {token}", "If-None-Match": first.headers["ETag"]}
    again = requests.get(url, headers=conditional, timeout=10)
    assert (again.status_code, again.content, hub.requests_left(token)) == (304, b"", left)
    repo.open_pull(files={"a.py": "a\n"})
    assert requests.get(url, headers=conditional, timeout=10).status_code == 200
    assert hub.requests_left(token) == left - 1


def test_the_secondary_limit_says_when_to_come_back(hub: GitHub, pull: Pull) -> None:
    hub.throttle(COMMENTS, retry_after=7)
    answer = requests.post(
        f"{hub.api_url}/repos/acme/app/issues/1/comments",
        json={"body": "x"},
        headers={"Authorization": f"token {hub.token('bob')}"},
        timeout=10,
    )
    assert (answer.status_code, answer.headers["Retry-After"]) == (403, "7")
    assert "secondary rate limit" in answer.json()["message"]


def test_what_the_test_overlooks_fails_it(pull: Pull, client: Client) -> None:
    hub = pull.repo.hub
    seen = client("ada").get_repo("acme/app")
    comment = seen.get_pull(1).create_issue_comment("unexpected")
    seen.get_commit(pull.head_sha).create_status("success", context="ci")
    with pytest.raises(AssertionError, match="comment of ada: 'unexpected'"):
        hub.finish()
    assert pull.comments
    assert [one.partition(": ")[2] for one in hub.overlooked()] == ["status ci: success"]
    assert pull.statuses
    hub.finish()
    comment.edit("changed behind its back")
    with pytest.raises(AssertionError, match="changed behind"):
        hub.finish()
    assert pull.comments
