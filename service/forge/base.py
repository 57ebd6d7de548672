"""What the service needs of a forge, and nothing else. `github` and `local` implement it.

All calls block: they are made by workers. Every call that fails raises `ForgeError`, which says whether trying again
can help. Logins compare case-insensitively; ids are the forge's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Literal, Protocol

from ci_dispatch.native import WorkflowRun
from reviewer.checkout.snapshot import GitCheckout
from reviewer.errors import ReviewError
from reviewer.report.check import Annotation
from reviewer.report.inline import InlineComment

CheckStatus = Literal["queued", "in_progress", "completed"]
Conclusion = Literal["success", "failure", "action_required", "neutral", "cancelled", "skipped", "timed_out"]
ReviewEvent = Literal["COMMENT", "REQUEST_CHANGES", "APPROVE"]
ReviewState = Literal["APPROVED", "CHANGES_REQUESTED", "COMMENTED", "DISMISSED", "PENDING"]
Reaction = Literal["+1", "-1", "eyes", "rocket", "confused"]
MergeMethod = Literal["merge", "squash", "rebase"]


class ForgeError(ReviewError):
    """A forge did not do what was asked. `status` is the HTTP status, 0 where there was no answer.

    `retry_after` is the number of seconds after which the same call may succeed; None where it never will. `counted`
    says that nobody promised that it does, so that attempts come to an end.
    """

    def __init__(
        self,
        problem: str,
        remedy: str,
        *,
        status: int = 0,
        retry_after: float | None = None,
        counted: bool = False,
    ) -> None:
        super().__init__(problem, remedy)
        self.status = status
        self.retry_after = retry_after
        self.counted = counted


class Permission(IntEnum):
    """What a user may do in a repository, in order."""

    NONE = 0
    READ = 1
    TRIAGE = 2
    WRITE = 3
    MAINTAIN = 4
    ADMIN = 5


@dataclass(frozen=True, slots=True)
class User:
    login: str
    is_bot: bool = False


@dataclass(frozen=True, slots=True)
class PullState:
    """A pull request as it is now. `head_repo` is where the head branch lives ("" where it is gone).

    `updated_at` is when anything about it was changed or said, where the forge tells.
    """

    repo: str
    number: int
    title: str
    body: str
    author: User
    head_sha: str
    head_ref: str
    head_repo: str
    base_ref: str
    base_sha: str
    draft: bool
    state: Literal["open", "closed"]
    merged: bool
    labels: tuple[str, ...]
    updated_at: datetime | None = None

    @property
    def is_fork(self) -> bool:
        return self.head_repo.lower() != self.repo.lower()


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment on the conversation of a pull request."""

    id: int
    author: User
    body: str
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Review:
    """A submitted review; `commit` is the head that it was made on."""

    id: int
    author: User
    state: ReviewState
    body: str
    commit: str
    submitted_at: datetime


@dataclass(frozen=True, slots=True)
class Edited:
    """Ids of the comments on the conversation, and of the reviews, whose text was changed, by whomever."""

    comments: frozenset[int]
    reviews: frozenset[int]


@dataclass(frozen=True, slots=True)
class Thread:
    """A conversation on lines of the diff. `comments` are (author, body), the first one's being the opener."""

    id: str
    resolved: bool
    outdated: bool
    comments: tuple[tuple[User, str], ...]


@dataclass(frozen=True, slots=True)
class Button:
    """A button on a check run: `label` at most 20 characters, `description` 40, `identifier` 20."""

    label: str
    description: str
    identifier: str


@dataclass(frozen=True, slots=True)
class Check:
    """A check run as it should stand. `conclusion` is set exactly when `status` is completed.

    With token authentication a commit status takes its place: title only, no annotations, no buttons.
    """

    name: str
    head_sha: str
    status: CheckStatus
    conclusion: Conclusion | None = None
    title: str = ""
    summary: str = ""
    text: str = ""
    annotations: tuple[Annotation, ...] = ()
    buttons: tuple[Button, ...] = ()
    details_url: str = ""


class Forge(Protocol):
    """One forge, seen with the service's own identity."""

    def me(self, repo: str) -> User:
        """Who the service is there."""
        ...

    def pull(self, repo: str, number: int) -> PullState: ...

    def open_pulls(self, repo: str) -> Iterator[PullState]: ...

    def pulls_of(self, repo: str, sha: str) -> tuple[int, ...]:
        """Numbers of the open pull requests whose head is this commit, those from forks included."""
        ...

    def checkout(self, pull: PullState, *, whole: bool = False) -> GitCheckout:
        """Base and head with their history, fetched by commit; close it after use.

        `whole`: every file of both is there, not only what a review reads.
        """
        ...

    def read_file(self, repo: str, ref: str, path: str) -> bytes | None:
        """A file at a branch or commit, or None where there is none; `HEAD` is the default branch."""
        ...

    def permission(self, repo: str, login: str) -> Permission: ...

    # What stands on the pull request

    def comments(self, repo: str, number: int, since: datetime | None = None) -> Iterator[Comment]: ...

    def create_comment(self, repo: str, number: int, body: str) -> int: ...

    def edit_comment(self, repo: str, number: int, comment_id: int, body: str) -> bool:
        """False where the comment is gone."""
        ...

    def react(self, repo: str, number: int, comment_id: int, reaction: Reaction) -> None:
        """Twice is once."""
        ...

    def reviews(self, repo: str, number: int) -> Iterator[Review]: ...

    def create_review(
        self,
        repo: str,
        number: int,
        head_sha: str,
        body: str,
        event: ReviewEvent,
        comments: Sequence[InlineComment],
    ) -> int:
        """Submits a review whole, or raises `ForgeError` with status 422 where one comment is refused."""
        ...

    def edit_review(self, repo: str, number: int, review_id: int, body: str) -> bool: ...

    def dismiss_review(self, repo: str, number: int, review_id: int, message: str) -> bool: ...

    def create_review_comment(self, repo: str, number: int, head_sha: str, comment: InlineComment) -> int:
        """One inline comment by itself. Raises `ForgeError` with status 422 where its place is refused."""
        ...

    def review_comments(self, repo: str, number: int) -> Iterator[Comment]:
        """All inline comments."""
        ...

    def threads(self, repo: str, number: int) -> Iterator[Thread]: ...

    def resolve_thread(self, repo: str, thread_id: str) -> None: ...

    def set_labels(self, repo: str, number: int, add: Sequence[str], remove: Sequence[str]) -> None: ...

    # Checks

    def find_check(self, repo: str, head_sha: str, name: str) -> int | None:
        """Our own newest check run of this name on a commit (None with token authentication)."""
        ...

    def create_check(self, repo: str, check: Check) -> int: ...

    def update_check(self, repo: str, check_id: int, check: Check) -> bool: ...

    # CI: what its gate and a merge ask for, and the forge's own workflows

    def edited(self, repo: str, number: int) -> Edited:
        """Exact where `Comment.updated_at` is not: GitHub's times are whole seconds."""
        ...

    def push_seen(self, repo: str, head_sha: str, branch: str) -> datetime | None:
        """When the forge made its check suite for a commit, None where it made none, or for another branch than this
        one of the head: a commit that was pushed elsewhere before has an older one."""
        ...

    def mergeable(self, repo: str, number: int) -> bool | None:
        """False where the head conflicts with its base; None while the forge does not know yet, or it is closed."""
        ...

    def merge(self, repo: str, number: int, head_sha: str, method: MergeMethod) -> str:
        """The commit that the merge made. Nothing is merged but this head.

        Raises `ForgeError` with status 409 where the head is another one by now, and 405 where it cannot be merged, with
        `retry_after` where only the base moved meanwhile.
        """
        ...

    def workflow_runs(self, repo: str, head_sha: str) -> Iterator[WorkflowRun]:
        """All runs for a commit, whatever started them, the newest first."""
        ...

    def rerun_workflow(self, repo: str, run_id: int, failed_only: bool) -> None:
        """Runs all jobs again, or those that failed.

        Raises `ForgeError` with status 409 where the run is active, and 403 where it cannot be run again: with
        `retry_after` unless a permission is missing.
        """
        ...

    def approve_workflow(self, repo: str, run_id: int) -> None:
        """Lets the run of a fork's first contributor begin. Raises as `rerun_workflow`."""
        ...

    # Deliveries

    def failed_deliveries(self, since: datetime) -> Iterator[str]:
        """GUIDs of webhook deliveries that the forge could not hand over (App authentication; else none)."""
        ...

    def redeliver(self, guid: str) -> None: ...
