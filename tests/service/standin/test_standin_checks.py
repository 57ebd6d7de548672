"""Check runs, suites, commit statuses and workflow runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from github import Github, GithubException

from tests.standin.github import GitHub, Pull, Repo

Client = Callable[[str], Github]
NOTE = {"path": "a.py", "start_line": 1, "end_line": 1, "annotation_level": "failure", "message": "no"}
BUTTON = {"label": "Review again", "description": "A new round", "identifier": "again"}


@pytest.fixture
def pull(repo: Repo) -> Pull:
    return repo.open_pull(files={"a.py": "a\n"})


@pytest.fixture
def seen(hub: GitHub, pull: Pull, as_app: Callable[..., Github]) -> Any:
    app = hub.create_app()
    hub.install(app, "acme")
    return as_app(app).get_repo("acme/app")


def test_a_check_run_goes_from_queued_to_completed_and_gathers_annotations(pull: Pull, seen: Any) -> None:
    run = seen.create_check_run("whitesmoke/review", pull.head_sha, status="queued")
    run.edit(status="in_progress", output={"title": "Round 1", "summary": "running"})
    notes = [{**NOTE, "start_line": at, "end_line": at} for at in range(1, 61)]
    run.edit(output={"title": "t", "summary": "s", "annotations": notes[:50]})
    run.edit(
        conclusion="failure",
        output={"title": "t", "summary": "s", "annotations": notes[50:]},
        actions=[BUTTON],
    )

    [made] = pull.checks
    assert (made.status, made.conclusion, made.title) == ("completed", "failure", "t")
    assert [one["start_line"] for one in made.annotations] == list(range(1, 61))
    assert [one.start_line for one in run.get_annotations()] == list(range(1, 61))
    assert made.actions == [BUTTON]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"output": {"title": "t", "summary": "s", "annotations": [NOTE] * 51}}, "50"),
        ({"actions": [BUTTON] * 4}, "3"),
        ({"actions": [{**BUTTON, "label": "x" * 21}]}, "label"),
        ({"actions": [{**BUTTON, "description": "x" * 41}]}, "description"),
        ({"actions": [{**BUTTON, "identifier": "x" * 21}]}, "identifier"),
        ({"output": {"title": "t", "summary": "x" * 65536}}, "summary"),
        ({"status": "completed"}, "conclusion"),
    ],
)
def test_what_is_over_githubs_limits_is_refused_and_breaks_the_contract_where_that_says_so(
    hub: GitHub, pull: Pull, seen: Any, fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(GithubException, match=problem) as refused:
        seen.create_check_run("whitesmoke/review", pull.head_sha, **fields)
    assert refused.value.status == 422
    assert pull.checks == []
    assert all("request body" in one for one in hub.contract.violations)
    hub.contract.violations.clear()


def test_a_user_token_makes_no_check_runs(pull: Pull, client: Client) -> None:
    with pytest.raises(GithubException) as refused:
        client("ada").get_repo("acme/app").create_check_run("whitesmoke/review", pull.head_sha)
    assert refused.value.status == 403
    assert pull.checks == []


def test_another_app_may_not_touch_a_run(
    hub: GitHub, pull: Pull, seen: Any, as_app: Callable[..., Github]
) -> None:
    run = seen.create_check_run("whitesmoke/review", pull.head_sha)
    other = hub.create_app("other")
    hub.install(other, "acme")
    theirs = as_app(other).get_repo("acme/app").get_check_run(run.id)
    with pytest.raises(GithubException, match="403"):
        theirs.edit(status="in_progress")
    assert [one.status for one in pull.checks] == ["queued"]


def test_runs_are_listed_newest_first_by_name_and_app_and_only_the_latest(pull: Pull, seen: Any) -> None:
    made = [seen.create_check_run(name, pull.head_sha).id for name in ("a", "a", "b")]
    commit = seen.get_commit(pull.head_sha)
    app_id = pull.checks[0].suite.app.id
    assert [one.id for one in commit.get_check_runs()] == [made[2], made[1]]
    assert [one.id for one in commit.get_check_runs(check_name="a", filter="all")] == [made[1], made[0]]
    url = f"{commit.url}/check-runs"
    for number, count in ((app_id, 2), (app_id + 1, 0)):
        _, listed = seen.requester.requestJsonAndCheck("GET", url, parameters={"app_id": number})
        assert listed["total_count"] == count


def test_buttons_and_reruns_reach_the_app_that_owns_the_run_alone(
    hub: GitHub, repo: Repo, pull: Pull, seen: Any
) -> None:
    other = hub.create_app("other")
    hub.install(other, "acme")
    mine = next(one for one in hub.world.apps.values() if one.slug == "whitesmoke")
    hub.webhook("http://127.0.0.1:9/mine", "s", app=mine)
    hub.webhook("http://127.0.0.1:9/other", "s", app=other)
    seen.create_check_run("whitesmoke/review", pull.head_sha, conclusion="failure", actions=[BUTTON])
    [run] = pull.checks
    repo.press(run, "again", by="ada")
    repo.rerequest(run, by="ada")
    repo.rerequest_suite(run, by="ada")

    assert [(one.event, one.action) for one in hub.deliveries if one.hook.app is mine] == [
        ("check_run", "created"),
        ("check_run", "completed"),
        ("check_suite", "completed"),
        ("check_run", "requested_action"),
        ("check_run", "rerequested"),
        ("check_suite", "rerequested"),
    ]
    others = [(one.event, one.action) for one in hub.deliveries if one.hook.app is other]
    assert others == [("check_suite", "completed")]
    pressed = next(one for one in hub.deliveries if one.action == "requested_action").payload
    assert pressed["requested_action"] == {"identifier": "again"}
    assert [one["number"] for one in pressed["check_run"]["pull_requests"]] == [1]


def test_a_run_of_a_forks_head_names_no_pull_request(hub: GitHub, repo: Repo, seen: Any) -> None:
    pull = repo.open_pull(author="eve", fork=True, files={"a.py": "e\n"})
    run = seen.create_check_run("whitesmoke/review", pull.head_sha)
    assert run.pull_requests == []
    assert pull.checks


def test_every_push_requests_a_suite_of_apps_that_write_checks(hub: GitHub, repo: Repo) -> None:
    app = hub.create_app()
    hub.install(app, "acme")
    hub.webhook("http://127.0.0.1:9/", "s", app=app)
    sha = repo.push("topic", {"a.py": "a\n"})
    requested = [one.payload["check_suite"] for one in hub.deliveries if one.event == "check_suite"]
    assert [(one["head_sha"], one["head_branch"], one["status"]) for one in requested] == [
        (sha, "topic", "queued")
    ]


def test_commit_statuses_are_combined_by_context(pull: Pull, client: Client) -> None:
    seen = client("ada").get_repo("acme/app").get_commit(pull.head_sha)
    seen.create_status("pending", context="whitesmoke/review", description="running")
    seen.create_status(
        "failure", context="whitesmoke/review", description="BLOCKED(1)", target_url="https://example.org"
    )
    seen.create_status("success", context="other")
    assert seen.get_combined_status().state == "failure"
    _, listed = seen.requester.requestJsonAndCheck("GET", f"{seen.url}/statuses")
    assert [one["state"] for one in listed] == ["success", "failure", "pending"]
    assert {one.context: one.state for one in pull.statuses} == {
        "whitesmoke/review": "failure",
        "other": "success",
    }


def test_a_status_needs_write_permission_and_a_short_description(pull: Pull, client: Client) -> None:
    with pytest.raises(GithubException, match="403"):
        client("eve").get_repo("acme/app").get_commit(pull.head_sha).create_status("success")
    with pytest.raises(GithubException, match="140"):
        client("ada").get_repo("acme/app").get_commit(pull.head_sha).create_status(
            "success", description="x" * 141
        )
    assert pull.statuses == []


def test_a_finished_workflow_run_sends_its_event(hub: GitHub, repo: Repo, pull: Pull) -> None:
    hub.webhook("http://127.0.0.1:9/", "s")
    run = repo.workflow_run("Smoke test", pull.head_sha, status="in_progress", conclusion=None)
    repo.finish_run(run, "failure")
    sent, _ = hub.deliveries
    assert [(one.event, one.action) for one in hub.deliveries] == [
        ("workflow_run", "completed"),
        ("check_suite", "completed"),
    ]
    assert sent.payload["workflow_run"]["conclusion"] == "failure"
    assert sent.payload["workflow"]["path"] == ".github/workflows/smoke-test.yml"


def test_workflow_runs_are_listed_rerun_and_approved(repo: Repo, pull: Pull, client: Client) -> None:
    failed = repo.workflow_run("Smoke test", pull.head_sha, conclusion="failure")
    waiting = repo.workflow_run("Smoke test", pull.head_sha, conclusion="action_required")
    repo.grant("wendy", "write")
    seen = client("wendy").get_repo("acme/app")
    assert [one.id for one in seen.get_workflow_runs(head_sha=pull.head_sha)] == [waiting.id, failed.id]
    seen.get_workflow_run(failed.id).rerun_failed_jobs()
    assert seen.get_workflow_run(failed.id).run_attempt == 2
    assert not seen.get_workflow_run(failed.id).rerun()
    url = f"/repos/acme/app/actions/runs/{waiting.id}/approve"
    seen.requester.requestJsonAndCheck("POST", url)
    assert (failed.reruns, waiting.reruns) == (["failed"], ["approve"])
    with pytest.raises(GithubException, match="403"):
        client("eve").requester.requestJsonAndCheck("POST", url)
