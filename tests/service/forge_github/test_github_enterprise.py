"""GitHub Enterprise Server: the API under /api/v3, GraphQL under /api, repositories beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reviewer.model import Side
from service.forge.github import make_github
from service.settings import ServerSettings
from tests.standin.github import GitHub


@pytest.fixture
def enterprise(hub: GitHub) -> Iterator[GitHub]:
    """`hub` skips where GitHub's description cannot be had."""
    with GitHub(enterprise=True) as made:
        yield made
        made.finish()


def test_everything_works_under_its_addresses(enterprise: GitHub, tmp_path: Path) -> None:
    repo = enterprise.create_repo("acme/app", files={"a.py": "x = 1\n"})
    app = enterprise.create_app()
    enterprise.install(app, "acme")
    pull = repo.open_pull(files={"a.py": "x = 2\n"})
    for number in range(101):
        pull.comment("bob", f"{number}")
    pull.inline("bob", "a.py", 1, "why?")
    key = tmp_path / "key.pem"
    key.write_text(app.private_key)
    assert enterprise.api_url.endswith("/api/v3")
    forge = make_github(
        ServerSettings(data=tmp_path, github_url=enterprise.api_url, github_app_id=app.id, github_key=key)
    )

    assert forge.me("acme/app").login == "whitesmoke[bot]"
    assert len(list(forge.comments("acme/app", 1))) == 101
    (thread,) = forge.threads("acme/app", 1)
    forge.resolve_thread("acme/app", thread.id)
    assert pull.threads[0].resolved_by is not None
    with forge.checkout(forge.pull("acme/app", 1)) as checkout:
        assert checkout.read("a.py", Side.RIGHT) == b"x = 2\n"
    paths = {one.path.split("/")[1] for one in enterprise.requests}
    assert paths == {"api", "acme"}
