"""The flow on PostgreSQL, which locks and orders otherwise than SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.github_service import GitHubService, github_service
from tests.kit.postgres import Unavailable, cluster
from tests.kit.rounds import BASE, PATH
from tests.standin.github import GitHub, Repo


@pytest.fixture
def on_postgresql(hub: GitHub, cache: Repo, tmp_path: Path) -> Iterator[GitHubService]:
    try:
        with (
            cluster() as server,
            github_service(tmp_path, hub, cache, url=server.create("whitesmoke")) as service,
        ):
            yield service
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_a_pull_request_is_reviewed_dismissed_and_reviewed_again(on_postgresql: GitHubService) -> None:
    service = on_postgresql
    service.repo.grant("bob", "write")
    service.hub.hooks.duplicate(1, "pull_request")
    service.hub.hooks.duplicate(1, "pull_request", new_guid=True)
    pull = service.open()
    service.settle()
    old = pull.head_sha
    assert "round 1 - BLOCKED(1)" in service.comments(pull)[0].body
    assert [one.conclusion for one in service.checks(pull)] == ["failure"]

    pull.comment("bob", "/dismiss F1 the slot is one-based")
    service.settle()
    report, answer = service.comments(pull)
    assert "LGTM" in report.body
    assert "dismissed" in answer.body

    service.model.findings = []
    pull.push({PATH: BASE[PATH] + "\n# checked\n"})
    service.settle()
    assert "round 2" in service.comments(pull)[0].body
    assert len(service.comments(pull)) == len(service.reviews(pull)) == 2
    assert [one.conclusion for one in service.checks(pull)] == ["success"]
    assert service.unsettled() == []
    service.look(pull, old)
