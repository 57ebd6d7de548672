"""Workflow runs."""

from __future__ import annotations

from urllib.parse import quote

from tests.standin.github.render.base import Json, node_id, time, user
from tests.standin.github.render.checks import pulls_of, repo_of
from tests.standin.github.render.repos import minimal, repo_page, repo_url, simple_commit
from tests.standin.github.state import Repository, WorkflowRun, World


def _workflow_id(repo: Repository, one: WorkflowRun) -> int:
    # Each file of a repository is a workflow with an id of its own, that of its first run here.
    return next(each.id for each in repo.runs if each.path == one.path) + 500_000


def run(world: World, one: WorkflowRun) -> Json:
    repo = repo_of(world, one.suite)
    url = f"{repo_url(world, repo)}/actions/runs/{one.id}"
    return {
        "id": one.id,
        "name": one.name,
        "node_id": node_id("WFR", one.id),
        "check_suite_id": one.suite.id,
        "check_suite_node_id": node_id("CS", one.suite.id),
        "head_branch": one.head_branch,
        "head_sha": one.head_sha,
        "path": one.path,
        "display_title": simple_commit(world, repo, one.head_sha)["message"].split("\n")[0],
        "run_number": one.number,
        "run_attempt": one.attempt,
        "event": one.event,
        "status": one.status,
        "conclusion": one.conclusion,
        "workflow_id": _workflow_id(repo, one),
        "url": url,
        "html_url": f"{repo_page(world, repo)}/actions/runs/{one.id}",
        "pull_requests": pulls_of(world, one.suite),
        "created_at": time(one.created_at),
        "updated_at": time(one.updated_at),
        "run_started_at": time(one.created_at),
        "actor": user(world, one.actor),
        "triggering_actor": user(world, one.actor),
        "referenced_workflows": [],
        "jobs_url": f"{url}/jobs",
        "logs_url": f"{url}/logs",
        "check_suite_url": f"{repo_url(world, repo)}/check-suites/{one.suite.id}",
        "artifacts_url": f"{url}/artifacts",
        "cancel_url": f"{url}/cancel",
        "rerun_url": f"{url}/rerun",
        "previous_attempt_url": f"{url}/attempts/{one.attempt - 1}" if one.attempt > 1 else None,
        "workflow_url": f"{repo_url(world, repo)}/actions/workflows/{_workflow_id(repo, one)}",
        "head_commit": simple_commit(world, repo, one.head_sha),
        "repository": minimal(world, repo),
        "head_repository": minimal(world, one.head_repo),
    }


def workflow(world: World, one: WorkflowRun) -> Json:
    repo = repo_of(world, one.suite)
    number = _workflow_id(repo, one)
    return {
        "id": number,
        "node_id": node_id("W", number),
        "name": one.name,
        "path": one.path,
        "state": "active",
        "created_at": time(one.created_at),
        "updated_at": time(one.created_at),
        "url": f"{repo_url(world, repo)}/actions/workflows/{number}",
        "html_url": f"{repo_page(world, repo)}/blob/{repo.default_branch}/{one.path}",
        "badge_url": f"{repo_page(world, repo)}/workflows/{quote(one.name)}/badge.svg",
    }
