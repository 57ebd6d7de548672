"""The real `whitesmoke serve --embedded` as a GitHub App against the stand-in: every process, no clock to move."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.kit.checkouts import Repo
from tests.kit.rounds import HEAD, PATH
from tests.kit.served import SECRET, served
from tests.standin.github import GitHub
from tests.standin.github import Repo as GitHubRepo

PAUSE = 0.1


def test_an_app_reviews_answers_and_reviews_again(
    hub: GitHub, cache: GitHubRepo, repo: Repo, tmp_path: Path
) -> None:
    app = hub.create_app()
    hub.install(app, "acme")
    key = tmp_path / "key.pem"
    key.write_text(app.private_key)
    cache.push("main", {".whitesmoke.yml": "service: {triggers: {debounce_seconds: 0}}\n"})
    with served(
        tmp_path,
        repo,
        "--embedded",
        WHITESMOKE_FORGE="github",
        WHITESMOKE_GITHUB_URL=hub.api_url,
        WHITESMOKE_GITHUB_APP_ID=str(app.id),
        WHITESMOKE_GITHUB_KEY=str(key),
    ) as service:
        hub.webhook(f"{service.url}/webhook", SECRET.decode(), app=app)
        pull = cache.open_pull(files={PATH: HEAD[PATH]}, title="Batch the writes")
        wait_for(lambda: [one.status for one in pull.checks] == ["completed"])
        wait_for(lambda: len([one for one in pull.reviews if one.body]) == 1)
        first = pull.head_sha
        pull.comment("acme", "/help")
        wait_for(lambda: len(pull.comments) == 3)
        pull.push({"README.md": "A cache of many pages.\n"})
        wait_for(lambda: [one.status for one in pull.checks] == ["completed"])
        wait_for(lambda: len([one for one in pull.reviews if one.body]) == 2)
        service.wait_until(service.is_settled, 15, "everything is done")

    report = next(one for one in pull.comments if "round" in one.body)
    assert "round 2" in report.body
    assert [one.status for one in cache.checks(first)] == ["completed"]
    assert len(pull.reviews) == 2
    assert pull.inline_comments == []
    assert service.log.read_text().count("Traceback") == 0


def wait_for(happened: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(PAUSE)
