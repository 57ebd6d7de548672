"""`service.forge.base.Forge` on GitHub and GitHub Enterprise Server."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from ci_dispatch.native import WorkflowRun
from reviewer.checkout.snapshot import GitCheckout
from reviewer.errors import GitError
from reviewer.report.inline import InlineComment
from service.forge.base import (
    Check,
    Comment,
    Edited,
    ForgeError,
    MergeMethod,
    Permission,
    PullState,
    Reaction,
    Review,
    ReviewEvent,
    Thread,
    User,
)
from service.forge.clone import Source
from service.forge.clones import Clones
from service.forge.github import edits, threads, workflows
from service.forge.github.checks import CheckRuns, Checks, Statuses, suite_created
from service.forge.github.client import GONE, Client
from service.forge.github.deliveries import Deliveries
from service.forge.github.errors import RETRY_SECONDS
from service.forge.github.read import (
    read_comment,
    read_content,
    read_permission,
    read_pull,
    read_review,
    read_user,
)


class GitHubForge:
    """Safe to use from several threads."""

    def __init__(self, client: Client, clones: Clones, git_url: str) -> None:
        """`git_url` is where repositories are cloned from, without their names."""
        self._client = client
        self._clones = clones
        self._git_url = git_url
        self._me: User | None = None
        self._lock = threading.Lock()
        app_id = client.credentials.app_id
        self._checks: Checks = CheckRuns(client, app_id) if app_id is not None else Statuses(client)
        self._deliveries = Deliveries(client) if app_id is not None else None

    def me(self, repo: str) -> User:
        with self._lock:
            if self._me is None:
                if self._client.credentials.app_id is not None:
                    self._me = User(f"{self._client.get(None, '/app')['slug']}[bot]", is_bot=True)
                else:
                    self._me = read_user(self._client.get(None, "/user"))
            return self._me

    # Pull requests

    def pull(self, repo: str, number: int) -> PullState:
        return read_pull(repo, self._client.get(repo, f"/pulls/{number}"))

    def open_pulls(self, repo: str) -> Iterator[PullState]:
        # In the order of their making, so that one that is opened meanwhile moves none to another page.
        wanted = {"state": "open", "sort": "created", "direction": "asc"}
        return (read_pull(repo, one) for one in self._client.pages(repo, "/pulls", wanted))

    def pulls_of(self, repo: str, sha: str) -> tuple[int, ...]:
        # GitHub's list of a commit's pull requests leaves out those from forks.
        return tuple(pull.number for pull in self.open_pulls(repo) if pull.head_sha == sha)

    def checkout(self, pull: PullState, *, whole: bool = False) -> GitCheckout:
        source = Source(
            url=f"{self._git_url}/{pull.repo}.git",
            user="x-access-token",
            password=lambda: self._client.token(pull.repo),
        )
        try:
            return self._clones.open(source, f"pull-{pull.number}", pull.base_sha, pull.head_sha, whole=whole)
        except GitError as error:
            raise ForgeError(f"{pull.repo}#{pull.number}: {error.problem}", error.remedy) from error
        except OSError as error:
            raise ForgeError(
                f"{pull.repo}#{pull.number} cannot be cloned to {error.filename}: {error.strerror}",
                "check the disk and the permissions of WHITESMOKE_DATA",
                retry_after=RETRY_SECONDS,
            ) from error

    def read_file(self, repo: str, ref: str, path: str) -> bytes | None:
        """Of at most 1 MiB; `ForgeError` for a larger one."""
        wanted = {} if ref == "HEAD" else {"ref": ref}
        found = self._client.get(repo, f"/contents/{quote(path)}", wanted, absent=GONE)
        return read_content(repo, path, found)

    def permission(self, repo: str, login: str) -> Permission:
        path = f"/collaborators/{quote(login, safe='')}/permission"
        found = self._client.get(repo, path, absent=GONE)
        return Permission.NONE if found is None else read_permission(found)

    # The conversation

    def comments(self, repo: str, number: int, since: datetime | None = None) -> Iterator[Comment]:
        params = {"since": since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")} if since else None
        found = self._client.pages(repo, f"/issues/{number}/comments", params)
        return (read_comment(one) for one in found)

    def create_comment(self, repo: str, number: int, body: str) -> int:
        return _id(self._client.send("POST", repo, f"/issues/{number}/comments", {"body": body}))

    def edit_comment(self, repo: str, number: int, comment_id: int, body: str) -> bool:
        return self._edit("PATCH", repo, f"/issues/comments/{comment_id}", body=body)

    def react(self, repo: str, number: int, comment_id: int, reaction: Reaction) -> None:
        path = f"/issues/comments/{comment_id}/reactions"
        self._client.send("POST", repo, path, {"content": reaction}, repeatable=True)

    # Reviews

    def reviews(self, repo: str, number: int) -> Iterator[Review]:
        found = self._client.pages(repo, f"/pulls/{number}/reviews")
        # One that is pending is nobody's but its author's, and has no time.
        return (read_review(one) for one in found if one["state"] != "PENDING")

    def create_review(
        self,
        repo: str,
        number: int,
        head_sha: str,
        body: str,
        event: ReviewEvent,
        comments: Sequence[InlineComment],
    ) -> int:
        if on_file := next((one for one in comments if one.line is None), None):
            raise ForgeError(
                f"{repo}#{number}: GitHub takes no comment on a whole file ({on_file.path}) within a review",
                "post it by itself",
                status=422,
            )
        sent = {
            "commit_id": head_sha,
            "body": body,
            "event": event,
            "comments": [_place(one) for one in comments],
        }
        return _id(self._client.send("POST", repo, f"/pulls/{number}/reviews", sent))

    def edit_review(self, repo: str, number: int, review_id: int, body: str) -> bool:
        return self._edit("PUT", repo, f"/pulls/{number}/reviews/{review_id}", body=body)

    def dismiss_review(self, repo: str, number: int, review_id: int, message: str) -> bool:
        path = f"/pulls/{number}/reviews/{review_id}/dismissals"
        return self._edit("PUT", repo, path, message=message, event="DISMISS")

    def create_review_comment(self, repo: str, number: int, head_sha: str, comment: InlineComment) -> int:
        sent = {"commit_id": head_sha, **_place(comment)}
        return _id(self._client.send("POST", repo, f"/pulls/{number}/comments", sent))

    def review_comments(self, repo: str, number: int) -> Iterator[Comment]:
        return (read_comment(one) for one in self._client.pages(repo, f"/pulls/{number}/comments"))

    def threads(self, repo: str, number: int) -> Iterator[Thread]:
        return threads.list_threads(self._client, repo, number)

    def resolve_thread(self, repo: str, thread_id: str) -> None:
        threads.resolve(self._client, repo, thread_id)

    def set_labels(self, repo: str, number: int, add: Sequence[str], remove: Sequence[str]) -> None:
        path = f"/issues/{number}/labels"
        if add:
            self._client.send("POST", repo, path, {"labels": list(add)}, repeatable=True)
        for name in remove:
            one = f"{path}/{quote(name, safe='')}"
            self._client.send("DELETE", repo, one, absent=GONE, repeatable=True)

    # Checks

    def find_check(self, repo: str, head_sha: str, name: str) -> int | None:
        return self._checks.find(repo, head_sha, name)

    def create_check(self, repo: str, check: Check) -> int:
        return self._checks.create(repo, check)

    def update_check(self, repo: str, check_id: int, check: Check) -> bool:
        return self._checks.update(repo, check_id, check)

    # CI

    def edited(self, repo: str, number: int) -> Edited:
        return edits.list_edited(self._client, repo, number)

    def push_seen(self, repo: str, head_sha: str, branch: str) -> datetime | None:
        return suite_created(self._client, repo, head_sha, branch)

    def mergeable(self, repo: str, number: int) -> bool | None:
        known: bool | None = self._client.get(repo, f"/pulls/{number}")["mergeable"]
        return known

    def merge(self, repo: str, number: int, head_sha: str, method: MergeMethod) -> str:
        if not head_sha:
            # GitHub would merge whatever the head is.
            raise ForgeError(f"{repo}#{number}: a merge of no head", "name the commit", status=422)
        sent = {"sha": head_sha, "merge_method": method}
        try:
            made: str = self._client.send("PUT", repo, f"/pulls/{number}/merge", sent)["sha"]
        except ForgeError as error:
            if error.status == 405 and "Base branch was modified" in error.problem:
                error.retry_after = RETRY_SECONDS
            raise
        return made

    def workflow_runs(self, repo: str, head_sha: str) -> Iterator[WorkflowRun]:
        return workflows.list_runs(self._client, repo, head_sha)

    def rerun_workflow(self, repo: str, run_id: int, failed_only: bool) -> None:
        workflows.rerun(self._client, repo, run_id, failed_only)

    def approve_workflow(self, repo: str, run_id: int) -> None:
        workflows.approve(self._client, repo, run_id)

    # Deliveries

    def failed_deliveries(self, since: datetime) -> Iterator[str]:
        return self._deliveries.list_failed(since) if self._deliveries else iter(())

    def redeliver(self, guid: str) -> None:
        if self._deliveries is None:
            raise ForgeError(
                f"delivery {guid} cannot be asked for with a token",
                "use a GitHub App, or redeliver it by hand",
            )
        self._deliveries.redeliver(guid)

    def _edit(self, method: str, repo: str, path: str, **body: str) -> bool:
        return self._client.send(method, repo, path, body, absent=GONE) is not None


def _place(comment: InlineComment) -> dict[str, Any]:
    if comment.line is None:
        return {"path": comment.path, "body": comment.body, "subject_type": "file"}
    placed: dict[str, Any] = {
        "path": comment.path,
        "body": comment.body,
        "line": comment.line,
        "side": comment.side.value,
    }
    if comment.start_line is not None:
        placed["start_line"] = comment.start_line
        placed["start_side"] = (comment.start_side or comment.side).value
    return placed


def _id(made: Any) -> int:
    found: int = made["id"]
    return found
