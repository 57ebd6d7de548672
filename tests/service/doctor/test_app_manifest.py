"""The GitHub App that is asked for: enough for every call of the forge, and no more."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema
import pytest

from reviewer.errors import ConfigError
from reviewer.model import Side
from reviewer.report.inline import InlineComment
from service.events import EVENTS
from service.forge.base import Check, Forge, ForgeError
from service.forge.github import make_github
from service.manifest import APP_EVENTS, PERMISSIONS, make_link, make_manifest, missing_permissions
from tests.service.doctor.conftest import Settings
from tests.standin.github import GitHub
from tests.standin.github.packages import installed

REPO = "acme/app"

# What GitHub's documentation of webhooks asks of an App that subscribes.
NEEDED_TO_HEAR = {
    "check_run": "checks",
    "check_suite": "checks",
    "issue_comment": "issues",
    "pull_request": "pull_requests",
    "pull_request_review": "pull_requests",
    "pull_request_review_comment": "pull_requests",
    "push": "contents",
}


@pytest.fixture
def manifest() -> dict[str, Any]:
    return make_manifest("whitesmoke", "https://smoke.example/", resolve_threads=False, ci=False)


@pytest.fixture
def connect(hub: GitHub, settings: Settings, tmp_path: Path) -> Callable[[dict[str, str]], Forge]:
    """The forge of an App with these permissions, on a repository with a pull request."""

    def connect(permissions: dict[str, str]) -> Forge:
        hub.create_repo(REPO, files={"a.py": "x = 1\n"}).open_pull(files={"a.py": "x = 2\n"})
        app = hub.create_app(permissions=permissions)
        hub.install(app, "acme")
        hub.webhook("http://127.0.0.1:1/webhook", "secret", app=app)
        (tmp_path / "key.pem").write_text(app.private_key)
        return make_github(
            settings(github_url=hub.api_url, github_app_id=app.id, github_key=tmp_path / "key.pem")
        )

    return connect


class Recorder:
    """The forge, and the names of what was called."""

    def __init__(self, forge: Forge) -> None:
        self._forge = forge
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.called.append(name)
        return getattr(self._forge, name)


ONLY_WHERE_WANTED = {"workflow_runs", "rerun_workflow", "approve_workflow", "merge"}


def use_everything(forge: Any) -> None:
    """Calls every method of the protocol once, but for those that a policy must ask for."""
    forge.me(REPO)
    pull = forge.pull(REPO, 1)
    assert [one.number for one in forge.open_pulls(REPO)] == [1]
    assert forge.pulls_of(REPO, pull.head_sha) == (1,)
    with forge.checkout(pull):
        pass
    assert forge.read_file(REPO, "HEAD", "a.py") == b"x = 1\n"
    forge.permission(REPO, "ada")
    comment = forge.create_comment(REPO, 1, "hello")
    assert forge.edit_comment(REPO, 1, comment, "hello again")
    forge.react(REPO, 1, comment, "eyes")
    assert [one.id for one in forge.comments(REPO, 1)] == [comment]
    inline = InlineComment("f1", "a.py", "look", 1, Side.RIGHT, None, None)
    review = forge.create_review(REPO, 1, pull.head_sha, "reviewed", "REQUEST_CHANGES", [inline])
    assert forge.edit_review(REPO, 1, review, "reviewed again")
    assert forge.dismiss_review(REPO, 1, review, "superseded")
    assert [one.id for one in forge.reviews(REPO, 1)] == [review]
    forge.create_review_comment(REPO, 1, pull.head_sha, inline)
    assert len(list(forge.review_comments(REPO, 1))) == 2
    forge.resolve_thread(REPO, next(iter(forge.threads(REPO, 1))).id)
    forge.set_labels(REPO, 1, ["reviewed"], ["absent"])
    check = Check("whitesmoke/review", pull.head_sha, "queued")
    made = forge.create_check(REPO, check)
    assert forge.find_check(REPO, pull.head_sha, check.name) == made
    assert forge.update_check(REPO, made, check)
    assert forge.edited(REPO, 1).comments == {comment}
    assert forge.push_seen(REPO, pull.head_sha, pull.head_ref) is not None
    assert forge.mergeable(REPO, 1)
    failed = list(forge.failed_deliveries(datetime(2020, 1, 1, tzinfo=UTC)))
    forge.redeliver(failed[0])


def look_at_all(hub: GitHub) -> None:
    """The stand-in fails a test that leaves something unseen, and here that is not the subject."""
    repo = hub.repo(REPO)
    pull = repo.pull(1)
    for look in (pull.comments, pull.reviews, pull.inline_comments, repo.checks(pull.head_sha)):
        assert look is not None


# What is asked for


def test_the_permissions_are_enough_for_every_call_of_the_forge(
    hub: GitHub, connect: Callable[[dict[str, str]], Forge]
) -> None:
    recorder = Recorder(connect(PERMISSIONS))
    hub.hooks.settle()
    use_everything(recorder)
    look_at_all(hub)
    every = {name for name in vars(Forge) if not name.startswith("_")}
    assert set(recorder.called) == every - ONLY_WHERE_WANTED


def start_workflows_and_merge(hub: GitHub, forge: Any) -> None:
    repo = hub.repo(REPO)
    head = repo.pull(1).head_sha
    for name, conclusion in (("Failed", "failure"), ("Waits", "action_required")):
        repo.workflow_run(name, head, conclusion=conclusion)
    failed, waits = sorted(forge.workflow_runs(REPO, head), key=lambda one: one.id)
    forge.rerun_workflow(REPO, failed.id, True)
    forge.approve_workflow(REPO, waits.id)
    forge.merge(REPO, 1, head, "squash")


def test_what_is_asked_for_where_wanted_is_enough_for_workflows_and_merging(
    hub: GitHub, connect: Callable[[dict[str, str]], Forge]
) -> None:
    made = make_manifest("w", "https://h", resolve_threads=True, ci=True)
    recorder = Recorder(connect(made["default_permissions"]))
    start_workflows_and_merge(hub, recorder)
    assert set(recorder.called) == ONLY_WHERE_WANTED


@pytest.mark.parametrize(("left_out", "call"), [("actions", "workflow_runs"), ("contents", "merge")])
def test_without_that_workflows_and_merging_are_refused(
    hub: GitHub, connect: Callable[[dict[str, str]], Forge], left_out: str, call: str
) -> None:
    made = make_manifest("w", "https://h", resolve_threads=left_out != "contents", ci=left_out != "actions")
    recorder = Recorder(connect(made["default_permissions"]))
    with pytest.raises(ForgeError):
        start_workflows_and_merge(hub, recorder)
    assert recorder.called[-1] == call


@pytest.mark.parametrize(
    ("name", "call"), [("checks", "create_check"), ("contents", "read_file"), ("pull_requests", "pull")]
)
def test_without_one_of_them_a_call_is_refused(
    hub: GitHub, connect: Callable[[dict[str, str]], Forge], name: str, call: str
) -> None:
    recorder = Recorder(connect({key: level for key, level in PERMISSIONS.items() if key != name}))
    hub.hooks.settle()
    with pytest.raises(ForgeError):
        use_everything(recorder)
    look_at_all(hub)
    assert recorder.called[-1] == call


def test_every_event_may_be_heard_and_every_permission_is_used() -> None:
    assert set(NEEDED_TO_HEAR) == set(APP_EVENTS)
    assert set(NEEDED_TO_HEAR.values()) | {"metadata"} == set(PERMISSIONS)


def test_events_are_those_that_the_service_reads_but_for_what_every_app_gets() -> None:
    assert EVENTS - set(APP_EVENTS) == {"ping", "installation", "installation_repositories"}


def test_permissions_and_events_are_known_to_github() -> None:
    try:
        packages = installed() / "@octokit"
    except OSError as error:
        pytest.skip(str(error))
    described = json.loads((packages / "openapi/generated/api.github.com.json").read_text())
    schema = {**described["components"]["schemas"]["app-permissions"], "additionalProperties": False}
    everything = make_manifest("w", "https://smoke.example", resolve_threads=True, ci=True)
    jsonschema.validate(everything["default_permissions"], schema)
    hooks = json.loads((packages / "webhooks-schemas/schema.json").read_text())["definitions"]
    # GitHub's schemas have no definition of a push's own; it is told apart by its name.
    assert {f"{event}_event" for event in everything["default_events"]} - set(hooks) <= {"push_event"}


# The manifest


def test_the_manifest_has_what_githubs_form_takes(manifest: dict[str, Any]) -> None:
    assert set(manifest) == {
        "name", "url", "hook_attributes", "public", "default_permissions", "default_events",
    }  # fmt: skip
    assert manifest["hook_attributes"] == {"url": "https://smoke.example/webhook", "active": True}
    assert manifest["public"] is False
    assert manifest["default_permissions"] == {
        "checks": "write", "contents": "read", "issues": "write", "metadata": "read", "pull_requests": "write",
    }  # fmt: skip


def test_more_is_asked_for_only_when_wanted() -> None:
    plain = make_manifest("w", "https://h", resolve_threads=False, ci=False)["default_permissions"]
    resolving = make_manifest("w", "https://h", resolve_threads=True, ci=False)["default_permissions"]
    ci = make_manifest("w", "https://h", resolve_threads=False, ci=True)["default_permissions"]
    assert resolving == {**plain, "contents": "write"}
    assert ci == {**plain, "actions": "write"}


@pytest.mark.parametrize(
    ("name", "url"), [("", "https://h"), ("n" * 35, "https://h"), ("n", ""), ("n", "h.example")]
)
def test_what_github_would_refuse_is_refused(name: str, url: str) -> None:
    with pytest.raises(ConfigError):
        make_manifest(name, url, resolve_threads=False, ci=False)


@pytest.mark.parametrize(
    ("organisation", "path"), [("", "/settings/apps/new"), ("acme", "/organizations/acme/settings/apps/new")]
)
def test_the_link_fills_in_githubs_form_as_the_manifest_says(
    manifest: dict[str, Any], organisation: str, path: str
) -> None:
    link = urlsplit(make_link("https://github.com/", organisation, manifest))
    assert (link.scheme, link.netloc, link.path) == ("https", "github.com", path)
    fields = parse_qs(link.query, strict_parsing=True)
    assert fields.pop("events[]") == manifest["default_events"]
    single = {name: value for name, (value,) in fields.items()}
    assert single == {
        "name": "whitesmoke",
        "url": "https://smoke.example/",
        "public": "false",
        "webhook_active": "true",
        "webhook_url": "https://smoke.example/webhook",
        **manifest["default_permissions"],
    }


@pytest.mark.parametrize(
    ("granted", "missing"),
    [
        (PERMISSIONS, []),
        ({**PERMISSIONS, "contents": "write", "actions": "admin"}, []),
        ({**PERMISSIONS, "checks": "read"}, ["checks: write"]),
        ({}, ["checks: write", "contents: read", "issues: write", "metadata: read", "pull_requests: write"]),
    ],
)
def test_missing_permissions_are_named_with_their_level(granted: dict[str, str], missing: list[str]) -> None:
    assert missing_permissions(granted) == missing
