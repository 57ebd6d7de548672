"""Workflow runs."""

from __future__ import annotations

from tests.standin.github.actions import runs as actions
from tests.standin.github.answer import Answer, Refused, not_found
from tests.standin.github.render import runs
from tests.standin.github.routing import Call, route
from tests.standin.github.state import WorkflowRun

_RUNS = "/repos/{owner}/{repo}/actions/runs"
_RUN = f"{_RUNS}/{{run_id}}"
_READ, _WRITE = "actions:read", "actions:write"


@route(f"GET {_RUNS}", _READ)
def list_runs(call: Call) -> Answer:
    found = list(reversed(call.repo().runs))
    for parameter, of in (
        ("head_sha", lambda one: (one.head_sha,)),
        ("branch", lambda one: (one.head_branch,)),
        ("event", lambda one: (one.event,)),
        ("actor", lambda one: (one.actor.login,)),
        ("status", lambda one: (one.status, one.conclusion)),
    ):
        if parameter in call.query:
            found = [one for one in found if call.query[parameter] in of(one)]
    return call.page(found, lambda one: runs.run(call.world, one), "workflow_runs")


@route(f"GET {_RUN}", _READ)
def get_run(call: Call) -> Answer:
    return Answer(200, runs.run(call.world, _run(call)))


@route(f"POST {_RUN}/rerun", _WRITE, role="write")
def rerun(call: Call) -> Answer:
    return _again(call, "all")


@route(f"POST {_RUN}/rerun-failed-jobs", _WRITE, role="write")
def rerun_failed(call: Call) -> Answer:
    return _again(call, "failed")


def _again(call: Call, what: str) -> Answer:
    run = _run(call)
    if run.status != "completed":
        raise Refused(403, "This workflow is already running")
    actions.rerun(call.world, run, what)
    return Answer(201, {})


@route(f"POST {_RUN}/approve", _WRITE, role="write")
def approve(call: Call) -> Answer:
    run = _run(call)
    if run.conclusion != "action_required":
        raise Refused(403, "This run is not from a fork pull request or queued for approval")
    actions.rerun(call.world, run, "approve")
    return Answer(201, {})


def _run(call: Call) -> WorkflowRun:
    wanted = call.integer(call.params["run_id"])
    found = next((one for one in call.repo().runs if one.id == wanted), None)
    if found is None:
        raise not_found()
    return found
