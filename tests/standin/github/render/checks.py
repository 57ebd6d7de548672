"""Check runs, check suites and commit statuses."""

from __future__ import annotations

from tests.standin.github.render.base import Json, app, node_id, time, user
from tests.standin.github.render.repos import minimal, repo_page, repo_url, simple_commit
from tests.standin.github.state import CheckRun, CheckSuite, CommitStatus, Repository, World


def repo_of(world: World, suite: CheckSuite) -> Repository:
    return next(one for one in world.repos.values() if suite in one.suites)


def pulls_of(world: World, suite: CheckSuite) -> list[Json]:
    """Open pull requests of this head. Those from forks are not listed, as on GitHub."""
    repo = repo_of(world, suite)
    shown = []
    for pull in repo.pulls.values():
        if pull.state == "open" and pull.head_sha == suite.head_sha and pull.head_repo is repo:
            brief = {"id": repo.id, "url": repo_url(world, repo), "name": repo.name}
            shown.append(
                {
                    "id": pull.id,
                    "number": pull.number,
                    "url": f"{repo_url(world, repo)}/pulls/{pull.number}",
                    "head": {"ref": pull.head_ref, "sha": pull.head_sha, "repo": brief},
                    "base": {"ref": pull.base_ref, "sha": pull.base_sha, "repo": brief},
                }
            )
    return shown


def run(world: World, one: CheckRun) -> Json:
    repo = repo_of(world, one.suite)
    url = f"{repo_url(world, repo)}/check-runs/{one.id}"
    page = f"{repo_page(world, repo)}/runs/{one.id}"
    return {
        "id": one.id,
        "node_id": node_id("CR", one.id),
        "name": one.name,
        "head_sha": one.suite.head_sha,
        "external_id": one.external_id,
        "url": url,
        "html_url": page,
        "details_url": one.details_url or page,
        "status": one.status,
        "conclusion": one.conclusion,
        "started_at": time(one.started_at),
        "completed_at": time(one.completed_at),
        "output": {
            "title": one.title,
            "summary": one.summary,
            "text": one.text,
            "annotations_count": len(one.annotations),
            "annotations_url": f"{url}/annotations",
        },
        "check_suite": {"id": one.suite.id},
        "app": app(world, one.suite.app),
        "pull_requests": pulls_of(world, one.suite),
    }


def annotation(world: World, repo: Repository, one: CheckRun, given: Json) -> Json:
    shown = {
        "start_column": None,
        "end_column": None,
        "title": None,
        "raw_details": None,
        **given,
    }
    page = f"{repo_page(world, repo)}/blob/{one.suite.head_sha}/{given['path']}"
    return {**shown, "blob_href": page}


def suite(world: World, one: CheckSuite) -> Json:
    repo = repo_of(world, one)
    open_runs = [each for each in one.runs if each.status != "completed"]
    conclusions = {each.conclusion for each in one.runs}
    worst = ("failure", "timed_out", "action_required", "cancelled", "success", "neutral", "skipped")
    done = bool(one.runs) and not open_runs
    return {
        "id": one.id,
        "node_id": node_id("CS", one.id),
        "head_branch": one.head_branch,
        "head_sha": one.head_sha,
        "status": "completed" if done else "in_progress" if one.runs else "queued",
        "conclusion": next((each for each in worst if each in conclusions), None) if done else None,
        "url": f"{repo_url(world, repo)}/check-suites/{one.id}",
        "before": "0" * 40,
        "after": one.head_sha,
        "pull_requests": pulls_of(world, one),
        "app": app(world, one.app),
        "repository": minimal(world, repo),
        "created_at": time(one.created_at),
        "updated_at": time(one.created_at),
        "head_commit": simple_commit(world, repo, one.head_sha),
        "latest_check_runs_count": len(one.runs),
        "check_runs_url": f"{repo_url(world, repo)}/check-suites/{one.id}/check-runs",
        "rerequestable": True,
        "runs_rerequestable": True,
    }


def hook_suite(world: World, one: CheckSuite) -> Json:
    shown = suite(world, one)
    for name in ("repository", "rerequestable", "runs_rerequestable"):
        del shown[name]
    return shown


def hook_run(world: World, one: CheckRun) -> Json:
    inner = hook_suite(world, one.suite)
    for name in ("head_commit", "latest_check_runs_count", "check_runs_url"):
        del inner[name]
    return {**run(world, one), "check_suite": inner}


def status(world: World, repo: Repository, one: CommitStatus) -> Json:
    return {
        "url": f"{repo_url(world, repo)}/statuses/{one.sha}",
        "avatar_url": user(world, one.creator)["avatar_url"],
        "id": one.id,
        "node_id": node_id("SC", one.id),
        "state": one.state,
        "description": one.description,
        "target_url": one.target_url,
        "context": one.context,
        "created_at": time(one.created_at),
        "updated_at": time(one.updated_at),
        "creator": user(world, one.creator),
    }
