"""Check runs of an App, and commit statuses in their place with a token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reviewer.report.check import Annotation
from service.forge.base import Button, Check, Conclusion, ForgeError
from service.forge.github.forge import GitHubForge
from tests.service.forge_github.connect import Connect
from tests.standin.github import GitHub, Pull, Repo
from tests.standin.github.state import App


@pytest.fixture
def pull(repo: Repo) -> Pull:
    return repo.open_pull(files={"a.py": "x\n"})


def annotations(count: int) -> tuple[Annotation, ...]:
    return tuple(
        Annotation("a.py", 1, 1, "failure", f"[P1] finding {number}", f"message {number}")
        for number in range(count)
    )


def check(head_sha: str, **more: object) -> Check:
    plain = Check(
        "whitesmoke/review", head_sha, "completed", "failure", "BLOCKED(1)", "the summary", "the text"
    )
    return replace(plain, **more)  # type: ignore[arg-type]


def test_a_check_run_is_queued_runs_and_completes(forge: GitHubForge, pull: Pull) -> None:
    made = forge.create_check("acme/app", Check("whitesmoke/review", pull.head_sha, "queued", title="Queued"))
    assert forge.find_check("acme/app", pull.head_sha, "whitesmoke/review") == made
    assert [(one.status, one.conclusion) for one in pull.checks] == [("queued", None)]
    assert forge.update_check("acme/app", made, check(pull.head_sha, status="in_progress", conclusion=None))
    assert [one.status for one in pull.checks] == ["in_progress"]
    button = Button("Review again", "Makes a new round of it", "full")
    done = check(pull.head_sha, buttons=(button,), details_url="https://example.org/rounds/1")
    assert forge.update_check("acme/app", made, done)
    (run,) = pull.checks
    assert (run.id, run.status, run.conclusion) == (made, "completed", "failure")
    assert (run.title, run.summary, run.text) == ("BLOCKED(1)", "the summary", "the text")
    assert run.details_url == "https://example.org/rounds/1"
    assert [one["identifier"] for one in run.actions] == ["full"]


def test_annotations_beyond_fifty_are_sent_in_further_requests(forge: GitHubForge, pull: Pull) -> None:
    forge.create_check("acme/app", check(pull.head_sha, annotations=annotations(120)))
    (run,) = pull.checks
    assert [one["title"] for one in run.annotations] == [f"[P1] finding {number}" for number in range(120)]
    assert run.conclusion == "failure"


def test_annotations_that_a_check_has_are_not_sent_again(forge: GitHubForge, pull: Pull, hub: GitHub) -> None:
    # The first two batches arrive, then the connection goes.
    hub.fail("PATCH /repos/*/*/check-runs/*", skip=1, drop="before")
    wanted = check(pull.head_sha, annotations=annotations(120))
    with pytest.raises(ForgeError) as lost:
        forge.create_check("acme/app", wanted)
    assert lost.value.retry_after
    (run,) = pull.checks
    assert len(run.annotations) == 100
    for _ in range(2):
        assert forge.update_check("acme/app", run.id, wanted)
    (run,) = pull.checks
    assert [one["title"] for one in run.annotations] == [f"[P1] finding {number}" for number in range(120)]


def test_a_check_that_is_not_there_is_told(forge: GitHubForge, pull: Pull) -> None:
    assert forge.find_check("acme/app", pull.head_sha, "whitesmoke/review") is None
    assert not forge.update_check("acme/app", 999_999, check(pull.head_sha))
    assert not forge.update_check("acme/app", 999_999, check(pull.head_sha, annotations=annotations(1)))


def test_the_newest_own_check_of_the_name_is_found(
    forge: GitHubForge, hub: GitHub, pull: Pull, connect: Connect
) -> None:
    other = hub.create_app("other", permissions={"checks": "write"})
    hub.world.installations.insert(0, hub.install(other, "acme"))
    forge.create_check("acme/app", check(pull.head_sha))
    newest = forge.create_check("acme/app", check(pull.head_sha))
    forge.create_check("acme/app", check(pull.head_sha, name="whitesmoke/ci"))
    connect.app(hub, other).create_check("acme/app", check(pull.head_sha))
    assert forge.find_check("acme/app", pull.head_sha, "whitesmoke/review") == newest
    assert len(pull.checks) == 4


@pytest.mark.parametrize(
    ("conclusion", "state"),
    [
        (None, "pending"),
        ("success", "success"),
        ("failure", "failure"),
        ("action_required", "error"),
        ("cancelled", "error"),
        ("timed_out", "error"),
    ],
)
def test_with_a_token_a_status_takes_its_place(
    hub: GitHub, repo: Repo, pull: Pull, connect: Connect, conclusion: Conclusion | None, state: str
) -> None:
    repo.grant("carol", "write")
    forge = connect.token(hub, "carol")
    status = "completed" if conclusion else "in_progress"
    posted = check(pull.head_sha, status=status, conclusion=conclusion, title="t" * 200)
    made = forge.create_check("acme/app", posted)
    assert forge.find_check("acme/app", pull.head_sha, "whitesmoke/review") is None
    assert forge.update_check("acme/app", made, posted)
    assert [(one.context, one.state, one.description) for one in pull.statuses] == [
        ("whitesmoke/review", state, "t" * 140)
    ]


def test_an_app_that_may_not_write_checks_is_told_what_it_lacks(
    hub: GitHub, repo: Repo, pull: Pull, connect: Connect
) -> None:
    poor: App = hub.create_app("poor", permissions={"pull_requests": "write"})
    hub.install(poor, "acme")
    with pytest.raises(ForgeError, match=r"grant .*[Cc]hecks: write") as refused:
        connect.app(hub, poor).create_check("acme/app", check(pull.head_sha))
    assert (refused.value.status, refused.value.retry_after) == (403, None)
