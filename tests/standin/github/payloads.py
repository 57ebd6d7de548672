"""Webhook bodies, as GitHub sends them: a snapshot at the time of the event."""

from __future__ import annotations

from typing import Any

from tests.standin.github.contract import Contract
from tests.standin.github.hooks import Hooks
from tests.standin.github.render import apps, base, checks, pulls, repos, runs
from tests.standin.github.render.base import Json
from tests.standin.github.state import (
    CheckRun,
    CheckSuite,
    Installation,
    IssueComment,
    PullRequest,
    Repository,
    Review,
    ReviewComment,
    Thread,
    User,
    WorkflowRun,
    World,
)


class Announcer:
    """Turns a change of state into the webhooks that GitHub sends for it."""

    def __init__(self, world: World, hooks: Hooks, contract: Contract) -> None:
        self._world = world
        self._hooks = hooks
        self._contract = contract

    def __call__(
        self, event: str, action: str | None, repo: Repository, sender: User, *about: Any, **more: Any
    ) -> None:
        """`about` are the things that the event concerns, `more` what else its body says (`changes`, `label`)."""
        body: Json = {"action": action} if action else {}
        only = None
        for one in about:
            body.update(self._show(event, one, about))
            if isinstance(one, CheckRun):
                only = one.suite.app
            elif isinstance(one, CheckSuite) and action != "completed":
                # That one ended is told to every app that may read checks.
                only = one.app
        body.update(more)
        body["repository"] = _repository(self._world, repo)
        body["sender"] = base.user(self._world, sender)
        self._contract.check_event(event, body)
        self._hooks.send(event, body, repo, only)

    def installation(self, action: str, one: Installation) -> None:
        shown = {
            "action": action,
            "installation": apps.installation(self._world, one),
            "repositories": [
                {key: value for key, value in repos.minimal(self._world, repo).items() if key in _BRIEF}
                for repo in self._world.repos.values()
                if repo.owner is one.account
            ],
            "sender": base.user(self._world, one.account),
        }
        self._contract.check_event("installation", shown)
        self._hooks.send("installation", shown, None, one.app)

    def _show(self, event: str, one: Any, about: tuple[Any, ...]) -> Json:
        world = self._world
        pull = next((other for other in about if isinstance(other, PullRequest)), None)
        match one:
            case PullRequest() if event == "issue_comment":
                return {"issue": pulls.issue(world, one)}
            case PullRequest() if event == "pull_request":
                return {"number": one.number, "pull_request": _pull(world, one, full=True)}
            case PullRequest():
                return {"pull_request": _pull(world, one, full=False)}
            case IssueComment() if pull:
                return {"comment": pulls.comment(world, pull, one)}
            case Review() if pull:
                shown = pulls.review(world, pull, one)
                return {
                    "review": {**shown, "state": one.state.lower(), "submitted_at": shown.get("submitted_at")}
                }
            case ReviewComment() if pull:
                return {"comment": pulls.review_comment(world, pull, one)}
            case Thread() if pull:
                comments = [pulls.review_comment(world, pull, each) for each in one.comments]
                return {"thread": {"node_id": base.node_id("PRRT", one.id), "comments": comments}}
            case CheckRun():
                return {"check_run": checks.hook_run(world, one)}
            case CheckSuite():
                return {"check_suite": checks.hook_suite(world, one)}
            case WorkflowRun():
                return {"workflow_run": runs.run(world, one), "workflow": runs.workflow(world, one)}
        raise TypeError(f"{event} says nothing of {one!r}")


_BRIEF = ("id", "node_id", "name", "full_name", "private")


def _pull(world: World, pull: PullRequest, *, full: bool) -> Json:
    shown = pulls.full(world, pull) if full else pulls.simple(world, pull)
    for end in ("head", "base"):
        repo = pull.head_repo if end == "head" else pull.repo
        shown[end]["repo"] = _repository(world, repo) if repo else None
    return shown


def _repository(world: World, repo: Repository) -> Json:
    return {**repos.repository(world, repo), "custom_properties": {}}
