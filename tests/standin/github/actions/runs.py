"""Workflow runs of GitHub Actions: tests make them, clients rerun and approve them."""

from __future__ import annotations

from tests.standin.github.actions.checks import suite_for
from tests.standin.github.state import App, Repository, User, WorkflowRun, World


def create(
    world: World,
    repo: Repository,
    actions_app: App,
    name: str,
    sha: str,
    branch: str,
    actor: User,
    *,
    event: str,
    status: str,
    conclusion: str | None,
    head_repo: Repository | None = None,
) -> WorkflowRun:
    now = world.now()
    run = WorkflowRun(
        id=world.next_id(),
        name=name,
        path=f".github/workflows/{name.lower().replace(' ', '-')}.yml",
        event=event,
        head_sha=sha,
        head_branch=branch,
        head_repo=head_repo or repo,
        actor=actor,
        status=status,
        conclusion=conclusion,
        created_at=now,
        updated_at=now,
        number=len(repo.runs) + 1,
        suite=suite_for(world, repo, actions_app, sha, branch),
    )
    repo.runs.append(run)
    return run


def finish(world: World, repo: Repository, run: WorkflowRun, conclusion: str) -> None:
    run.status, run.conclusion, run.updated_at = "completed", conclusion, world.now()
    world.emit("workflow_run", "completed", repo, run.actor, run)
    if all(one.status == "completed" for one in repo.runs if one.suite is run.suite):
        world.emit("check_suite", "completed", repo, run.actor, run.suite)


def rerun(world: World, run: WorkflowRun, what: str) -> None:
    run.reruns.append(what)
    if what != "approve":
        run.attempt += 1
    run.status, run.conclusion, run.updated_at = "queued", None, world.now()
