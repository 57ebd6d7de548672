"""Check suites, check runs and commit statuses."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tests.standin.github.state import (
    App,
    CheckRun,
    CheckSuite,
    CommitStatus,
    Repository,
    User,
    World,
)


def suite_for(world: World, repo: Repository, app: App, sha: str, branch: str | None = None) -> CheckSuite:
    """The app's suite of a commit, made where there is none."""
    for one in repo.suites:
        if one.app is app and one.head_sha == sha:
            return one
    if branch is None:
        branch = next((name for name, tip in repo.git.branches().items() if tip == sha), None)
    made = CheckSuite(world.next_id(), app, sha, branch, world.now())
    repo.suites.append(made)
    return made


def request_suites(world: World, repo: Repository, sha: str, branch: str, user: User) -> None:
    """GitHub asks every app that may write checks for a suite of each pushed commit."""
    for one in world.installations:
        if one.account is repo.owner and one.app.permissions.get("checks") == "write" and not one.suspended:
            suite = suite_for(world, repo, one.app, sha, branch)
            world.emit("check_suite", "requested", repo, user, suite)


def create_run(
    world: World, repo: Repository, app: App, fields: Mapping[str, Any], *, seen: bool = True
) -> CheckRun:
    now = world.now()
    suite = suite_for(world, repo, app, fields["head_sha"])
    run = CheckRun(
        id=world.next_id(),
        created_at=now,
        updated_at=now,
        seen=seen,
        suite=suite,
        name=fields["name"],
        status="queued",
        conclusion=None,
        started_at=now,
    )
    suite.runs.append(run)
    _apply(world, run, fields)
    world.emit("check_run", "created", repo, app.bot, run)
    _completed(world, repo, run)
    return run


def update_run(
    world: World, repo: Repository, run: CheckRun, fields: Mapping[str, Any], *, seen: bool = True
) -> None:
    done = run.status == "completed"
    _apply(world, run, fields)
    run.seen = seen
    if not done:
        _completed(world, repo, run)


def rerequest_run(world: World, repo: Repository, run: CheckRun, user: User) -> None:
    # The event still shows the run as it was.
    world.emit("check_run", "rerequested", repo, user, run)
    run.status, run.conclusion, run.completed_at = "queued", None, None


def rerequest_suite(world: World, repo: Repository, suite: CheckSuite, user: User) -> None:
    world.emit("check_suite", "rerequested", repo, user, suite)
    for run in suite.runs:
        run.status, run.conclusion, run.completed_at = "queued", None, None


def press(world: World, repo: Repository, run: CheckRun, user: User, identifier: str) -> None:
    """A button of a check run."""
    known = [one["identifier"] for one in run.actions]
    assert identifier in known, f"the check run has no button {identifier!r}, only {known}"
    world.emit("check_run", "requested_action", repo, user, run, requested_action={"identifier": identifier})


def set_status(
    world: World, repo: Repository, sha: str, user: User, fields: Mapping[str, Any], *, seen: bool = True
) -> CommitStatus:
    now = world.now()
    made = CommitStatus(
        id=world.next_id(),
        created_at=now,
        updated_at=now,
        seen=seen,
        sha=sha,
        creator=user,
        state=fields["state"],
        context=fields.get("context", "default"),
        description=fields.get("description"),
        target_url=fields.get("target_url"),
    )
    repo.statuses.append(made)
    return made


def latest_statuses(repo: Repository, sha: str) -> list[CommitStatus]:
    """The newest status of each context."""
    newest: dict[str, CommitStatus] = {}
    for one in repo.statuses:
        if one.sha == sha:
            newest[one.context] = one
    return list(newest.values())


def _apply(world: World, run: CheckRun, fields: Mapping[str, Any]) -> None:
    now = world.now()
    for name in ("name", "details_url", "external_id"):
        if name in fields:
            setattr(run, name, fields[name])
    if "started_at" in fields:
        run.started_at = datetime.fromisoformat(fields["started_at"])
    if fields.get("conclusion") is not None:
        run.status, run.conclusion = "completed", fields["conclusion"]
    elif "status" in fields:
        run.status = fields["status"]
        if run.status != "completed":
            run.conclusion = run.completed_at = None
    if run.status == "completed":
        told = fields.get("completed_at")
        run.completed_at = datetime.fromisoformat(told) if told else run.completed_at or now
    output = fields.get("output") or {}
    for name in ("title", "summary", "text"):
        if name in output:
            setattr(run, name, output[name])
    # GitHub adds the annotations of every request to those before.
    run.annotations += output.get("annotations", [])
    if "actions" in fields:
        run.actions = list(fields["actions"])
    run.updated_at = now


def _completed(world: World, repo: Repository, run: CheckRun) -> None:
    if run.status != "completed":
        return
    world.emit("check_run", "completed", repo, run.suite.app.bot, run)
    if all(one.status == "completed" for one in run.suite.runs):
        world.emit("check_suite", "completed", repo, run.suite.app.bot, run.suite)
