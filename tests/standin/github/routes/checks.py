"""Check runs, check suites and commit statuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.standin.github.actions import checks as actions
from tests.standin.github.answer import Answer, Refused, invalid, not_found
from tests.standin.github.render import checks, repos
from tests.standin.github.routing import BODY_LIMIT, Call, route
from tests.standin.github.state import App, CheckRun, CheckSuite

_REPO = "/repos/{owner}/{repo}"
_RUN = f"{_REPO}/check-runs/{{check_run_id}}"
_SUITE = f"{_REPO}/check-suites/{{check_suite_id}}"
_READ, _WRITE = "checks:read", "checks:write"
_ANNOTATIONS = 50
_STATUS_DESCRIPTION = 140


@route(f"POST {_REPO}/check-runs", _WRITE)
def create_run(call: Call) -> Answer:
    app = _app(call)
    repo = call.repo()
    if repo.git.resolve(call.body["head_sha"]) != call.body["head_sha"]:
        raise Refused(422, f"No commit found for SHA: {call.body['head_sha']}")
    _validate(call.body)
    made = actions.create_run(call.world, repo, app, call.body, seen=False)
    return Answer(201, checks.run(call.world, made))


@route(f"PATCH {_RUN}", _WRITE)
def update_run(call: Call) -> Answer:
    run = _run(call)
    if run.suite.app is not _app(call):
        raise Refused(
            403, "Invalid app_id `None` - check run can only be modified by the GitHub App that created it."
        )
    _validate(call.body)
    actions.update_run(call.world, call.repo(), run, call.body, seen=False)
    return Answer(200, checks.run(call.world, run))


@route(f"GET {_RUN}", _READ)
def get_run(call: Call) -> Answer:
    return Answer(200, checks.run(call.world, _run(call)))


@route(f"GET {_RUN}/annotations", _READ)
def list_annotations(call: Call) -> Answer:
    run = _run(call)
    repo = call.repo()
    return call.page(run.annotations, lambda one: checks.annotation(call.world, repo, run, one))


@route(f"POST {_RUN}/rerequest", _WRITE)
def rerequest_run(call: Call) -> Answer:
    actions.rerequest_run(call.world, call.repo(), _run(call), call.sender())
    return Answer(201, {})


@route(f"GET {_REPO}/commits/{{ref}}/check-runs", _READ)
def list_runs(call: Call) -> Answer:
    sha = call.commit()
    return _runs(call, [one for one in call.repo().suites if one.head_sha == sha])


@route(f"GET {_SUITE}/check-runs", _READ)
def list_runs_of_suite(call: Call) -> Answer:
    return _runs(call, [_suite(call)])


@route(f"GET {_SUITE}", _READ)
def get_suite(call: Call) -> Answer:
    return Answer(200, checks.suite(call.world, _suite(call)))


@route(f"POST {_SUITE}/rerequest", _WRITE)
def rerequest_suite(call: Call) -> Answer:
    actions.rerequest_suite(call.world, call.repo(), _suite(call), call.sender())
    return Answer(201, {})


@route(f"GET {_REPO}/commits/{{ref}}/check-suites", _READ)
def list_suites(call: Call) -> Answer:
    sha = call.commit()
    found = [one for one in call.repo().suites if one.head_sha == sha]
    if "app_id" in call.query:
        found = [one for one in found if str(one.app.id) == call.query["app_id"]]
    return call.page(found, lambda one: checks.suite(call.world, one), "check_suites")


@route(f"POST {_REPO}/statuses/{{sha}}", "statuses:write", role="write")
def create_status(call: Call) -> Answer:
    repo = call.repo()
    sha = call.commit("sha")
    if len(call.body.get("description") or "") > _STATUS_DESCRIPTION:
        message = f"description is too long (maximum is {_STATUS_DESCRIPTION} characters)"
        raise invalid("Status", "description", "custom", message)
    made = actions.set_status(call.world, repo, sha, call.sender(), call.body, seen=False)
    return Answer(201, checks.status(call.world, repo, made))


@route(f"GET {_REPO}/commits/{{ref}}/statuses", "statuses:read")
def list_statuses(call: Call) -> Answer:
    repo = call.repo()
    sha = call.commit()
    newest_first = [one for one in reversed(repo.statuses) if one.sha == sha]
    return call.page(newest_first, lambda one: checks.status(call.world, repo, one))


@route(f"GET {_REPO}/commits/{{ref}}/status", "statuses:read")
def combined_status(call: Call) -> Answer:
    repo = call.repo()
    sha = call.commit()
    found = actions.latest_statuses(repo, sha)
    states = {one.state for one in found}
    worst = "failure" if states & {"failure", "error"} else "success" if states == {"success"} else "pending"
    url = f"{repos.repo_url(call.world, repo)}/commits/{sha}"
    shown = {
        "state": worst,
        "statuses": [
            {key: value for key, value in checks.status(call.world, repo, one).items() if key != "creator"}
            for one in found
        ],
        "sha": sha,
        "total_count": len(found),
        "repository": repos.minimal(call.world, repo),
        "commit_url": url,
        "url": f"{url}/status",
    }
    return Answer(200, shown)


def _app(call: Call) -> App:
    if call.actor.installation is None:
        raise Refused(403, "You must authenticate via a GitHub App.")
    return call.actor.installation.app


def _run(call: Call) -> CheckRun:
    wanted = call.integer(call.params["check_run_id"])
    for suite in call.repo().suites:
        for run in suite.runs:
            if run.id == wanted:
                return run
    raise not_found()


def _suite(call: Call) -> CheckSuite:
    wanted = call.integer(call.params["check_suite_id"])
    for suite in call.repo().suites:
        if suite.id == wanted:
            return suite
    raise not_found()


def _runs(call: Call, suites: list[CheckSuite]) -> Answer:
    found = [run for suite in suites for run in suite.runs]
    for parameter, of in (
        ("check_name", lambda one: one.name),
        ("status", lambda one: one.status),
        ("app_id", lambda one: str(one.suite.app.id)),
    ):
        if parameter in call.query:
            found = [one for one in found if of(one) == call.query[parameter]]
    if call.query.get("filter", "latest") == "latest":
        newest = {(one.suite.id, one.name): one for one in found}
        found = [one for one in found if one in newest.values()]
    # Newest first.
    found.sort(key=lambda one: -one.id)
    return call.page(found, lambda one: checks.run(call.world, one), "check_runs")


def _validate(body: Mapping[str, Any]) -> None:
    if body.get("status") == "completed" and not body.get("conclusion"):
        raise Refused(422, "Invalid request.\n\nMissing required field: conclusion.")
    output = body.get("output") or {}
    if len(output.get("annotations", [])) > _ANNOTATIONS:
        raise Refused(422, f"Invalid request.\n\nNo more than {_ANNOTATIONS} items are allowed; annotations.")
    for name in ("summary", "text"):
        if len(output.get(name) or "") > BODY_LIMIT - 1:
            raise Refused(422, f"Invalid request.\n\nOnly {BODY_LIMIT - 1} characters are allowed; {name}.")
    actions_given = body.get("actions", [])
    if len(actions_given) > 3:
        raise Refused(422, "Invalid request.\n\nNo more than 3 items are allowed; actions.")
    for button in actions_given:
        for name, most in (("label", 20), ("description", 40), ("identifier", 20)):
            if len(button[name]) > most:
                raise Refused(422, f"Invalid request.\n\nOnly {most} characters are allowed; {name}.")
    for one in output.get("annotations", []):
        if one["start_line"] > one["end_line"]:
            raise Refused(422, "Invalid request.\n\nend_line must not precede start_line; annotations.")
        if one["start_line"] != one["end_line"] and ("start_column" in one or "end_column" in one):
            raise Refused(
                422, "Invalid request.\n\nColumns need start_line and end_line to be equal; annotations."
            )
        if len(one["message"].encode()) > 64 * 1024:
            raise Refused(422, "Invalid request.\n\nmessage is larger than 64 KB; annotations.")
        if len(one.get("title") or "") > 255:
            raise Refused(422, "Invalid request.\n\nOnly 255 characters are allowed; title.")
