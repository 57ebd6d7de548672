"""Webhook deliveries that did not arrive, found and asked for again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from service.forge.base import ForgeError
from service.forge.github.forge import GitHubForge
from tests.service.forge_github.connect import Connect
from tests.standin.github import GitHub, Repo
from tests.standin.github.state import App


def test_failed_deliveries_are_found_redelivered_and_found_no_more(
    forge: GitHubForge, hub: GitHub, app: App, repo: Repo
) -> None:
    hub.webhook("http://127.0.0.1:9/", "secret", app=app)
    start = datetime.now(UTC) - timedelta(minutes=1)
    repo.open_pull(files={"a.py": "x\n"})
    hub.hooks.settle()
    sent = [one.guid for one in hub.deliveries]
    assert len(sent) >= 2
    assert list(forge.failed_deliveries(start)) == sent

    forge.redeliver(sent[0])
    hub.hooks.settle()
    again = hub.deliveries[-1]
    assert (again.guid, again.redelivery) == (sent[0], True)
    # Still failed: told once for all its attempts.
    assert sorted(forge.failed_deliveries(start)) == sorted(sent)
    again.status_code = 202
    assert list(forge.failed_deliveries(start)) == sent[1:]


def test_deliveries_over_all_pages_are_looked_through_back_to_the_time(
    forge: GitHubForge, hub: GitHub, app: App, repo: Repo
) -> None:
    hub.webhook("http://127.0.0.1:9/", "secret", app=app)
    pull = repo.open_pull(files={"a.py": "x\n"})
    old = [one.guid for one in hub.deliveries]
    hub.hooks.settle()
    hub.pass_time(120)
    for number in range(105):
        pull.comment("bob", f"{number}")
    hub.hooks.settle()
    since = hub.world.now() - timedelta(minutes=1)
    found = list(forge.failed_deliveries(since))
    assert len(found) == 105
    assert not set(found) & set(old)
    # One that was not listed can be asked for all the same.
    forge.redeliver(old[0])
    hub.hooks.settle()
    assert hub.deliveries[-1].guid == old[0]


def test_a_delivery_that_github_forgot_is_told(forge: GitHubForge) -> None:
    with pytest.raises(ForgeError, match="no delivery 0000"):
        forge.redeliver("0000")


def test_a_token_sees_no_deliveries(hub: GitHub, repo: Repo, connect: Connect) -> None:
    forge = connect.token(hub)
    assert list(forge.failed_deliveries(datetime.now(UTC))) == []
    with pytest.raises(ForgeError, match="use a GitHub App"):
        forge.redeliver("0000")
