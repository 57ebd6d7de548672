"""Everything that passes through the stand-in is held against GitHub's own description of it."""

from __future__ import annotations

import pytest
import requests

from tests.standin.github import GitHub, Pull, Repo
from tests.standin.github import contract as contracts
from tests.standin.github.answer import Answer
from tests.standin.github.routing import ROUTES, find_route


@pytest.fixture
def pull(repo: Repo) -> Pull:
    return repo.open_pull(files={"a.py": "a\n"})


def broken(hub: GitHub) -> str:
    """The violation that the test planted; there must be one, and it is taken away."""
    [violation] = hub.contract.violations
    hub.contract.violations.clear()
    return violation


def test_every_route_is_an_operation_of_the_description(hub: GitHub) -> None:
    described = contracts._description()["operations"]
    assert [one.name for one in ROUTES if one.name not in described] == []
    assert len(ROUTES) > 60


def test_a_wrong_answer_is_found(hub: GitHub, pull: Pull, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.standin.github.render import pulls

    right = pulls.simple
    monkeypatch.setattr(pulls, "simple", lambda world, one: {**right(world, one), "number": str(one.number)})
    requests.get(f"{hub.api_url}/repos/acme/app/pulls", timeout=10)
    assert broken(hub) == (
        'GET /repos/{owner}/{repo}/pulls: answer 200: "1" is not of type "integer" at [0, \'number\']'
    )


def test_a_misspelt_field_and_a_status_that_github_does_not_answer_are_found(hub: GitHub, pull: Pull) -> None:
    found = find_route("GET", "/rate_limit")
    assert found
    name = found[0].name
    right = requests.get(f"{hub.api_url}/rate_limit", timeout=10).json()
    hub.contract.check_answer(name, Answer(200, {**right, "raet": {}}))
    assert "'raet' was unexpected" in broken(hub)
    hub.contract.check_answer(name, Answer(201, {}))
    assert broken(hub) == "GET /rate_limit: GitHub does not answer 201"


def test_a_wrong_request_is_found(hub: GitHub, pull: Pull) -> None:
    headers = {"Authorization": f"token {hub.token('bob')}"}
    url = f"{hub.api_url}/repos/acme/app/issues/1/comments"
    requests.get(url, params={"per_pge": 10}, timeout=10)
    assert "unknown query parameter 'per_pge'" in broken(hub)
    assert requests.get(url, params={"since": "yesterday"}, timeout=10).status_code == 422
    assert '"yesterday" is not a "date-time"' in broken(hub)
    requests.post(url, json={"body": "x", "boddy": "y"}, headers=headers, timeout=10)
    assert "'boddy' was unexpected" in broken(hub)
    assert pull.comments


def test_what_the_stand_in_does_not_serve_is_404_and_reported(hub: GitHub) -> None:
    answer = requests.get(f"{hub.api_url}/repos/acme/app/deployments", timeout=10)
    assert answer.status_code == 404
    assert broken(hub) == "GET /repos/acme/app/deployments is not served by the stand-in"


def test_a_violation_fails_the_test_at_its_end(hub: GitHub) -> None:
    hub.contract.report("planted")
    with pytest.raises(AssertionError, match="planted"):
        hub.finish()
    hub.contract.violations.clear()


def test_a_wrong_webhook_is_found(hub: GitHub, pull: Pull) -> None:
    hub.contract.check_event("pull_request", {"action": "opened"})
    assert any("required property" in one for one in hub.contract.violations)
    hub.contract.violations.clear()
    hub.contract.check_event("pull_request", {"action": "exploded"})
    assert broken(hub) == "webhook pull_request has no action 'exploded'"
