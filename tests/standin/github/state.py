"""What the stand-in remembers. Plain data: `actions` change it, `render` shows it."""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.standin.github.gitstore import GitStore
from tests.standin.github.patch import FileChange, Side

ROLES = ("none", "read", "triage", "write", "maintain", "admin")


@dataclass(eq=False)
class User:
    id: int
    login: str
    type: str = "User"


@dataclass(eq=False)
class App:
    id: int
    slug: str
    owner: User
    bot: User
    private_key: str
    """PEM; what the app signs its tokens with."""
    public_key: str
    permissions: dict[str, str]
    events: tuple[str, ...]
    created_at: datetime


@dataclass(eq=False)
class Installation:
    id: int
    app: App
    account: User
    created_at: datetime
    suspended: bool = False


@dataclass(eq=False)
class Token:
    """`installation` is set for an app's token, else it is a personal one of `user`."""

    value: str
    user: User
    installation: Installation | None = None
    expires_at: datetime | None = None
    permissions: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class Posted:
    """Something that a client can leave on a pull request. `seen` is False from the time when a client changes it
    over HTTP until the test looks at it."""

    id: int
    created_at: datetime
    updated_at: datetime
    seen: bool


@dataclass(eq=False)
class IssueComment(Posted):
    user: User
    body: str
    app: App | None = None
    reactions: list[Reaction] = field(default_factory=list)
    edited_at: datetime | None = None


@dataclass(eq=False)
class Reaction:
    id: int
    user: User
    content: str
    created_at: datetime


@dataclass(eq=False)
class Review(Posted):
    user: User
    body: str
    state: str
    commit: str
    submitted_at: datetime | None = None
    edited_at: datetime | None = None


@dataclass(eq=False)
class ReviewComment(Posted):
    user: User
    body: str
    path: str
    review: Review
    commit: str
    original_commit: str
    diff_hunk: str
    subject_type: str
    line: int | None = None
    side: Side = "RIGHT"
    start_line: int | None = None
    start_side: Side | None = None
    position: int | None = None
    original_line: int | None = None
    original_start_line: int | None = None
    outdated: bool = False
    reply_to: ReviewComment | None = None
    reactions: list[Reaction] = field(default_factory=list)


@dataclass(eq=False)
class Thread:
    id: int
    comments: list[ReviewComment]
    resolved_by: User | None = None


@dataclass(eq=False)
class PullRequest:
    id: int
    number: int
    repo: Repository
    head_repo: Repository | None
    """None once it was deleted."""
    head_owner: User
    head_ref: str
    head_sha: str
    base_ref: str
    base_sha: str
    user: User
    title: str
    body: str | None
    draft: bool
    created_at: datetime
    updated_at: datetime
    state: str = "open"
    closed_at: datetime | None = None
    merged_at: datetime | None = None
    merged_by: User | None = None
    merge_commit: str | None = None
    labels: list[str] = field(default_factory=list)
    comments: list[IssueComment] = field(default_factory=list)
    reviews: list[Review] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)

    def review_comments(self) -> list[ReviewComment]:
        return sorted((one for thread in self.threads for one in thread.comments), key=lambda one: one.id)

    def changes(self, head: str | None = None) -> tuple[FileChange, ...]:
        """The three-dot diff of the pull request, at its head or at an earlier commit of it."""
        head = head or self.head_sha
        git = self.repo.git
        return git.changes(git.merge_base(self.base_sha, head), head)


@dataclass(eq=False)
class CheckSuite:
    id: int
    app: App
    head_sha: str
    head_branch: str | None
    created_at: datetime
    runs: list[CheckRun] = field(default_factory=list)


@dataclass(eq=False)
class CheckRun(Posted):
    suite: CheckSuite
    name: str
    status: str
    conclusion: str | None
    started_at: datetime
    completed_at: datetime | None = None
    details_url: str | None = None
    external_id: str = ""
    title: str | None = None
    summary: str | None = None
    text: str | None = None
    annotations: list[dict[str, Any]] = field(default_factory=list)
    actions: list[dict[str, str]] = field(default_factory=list)


@dataclass(eq=False)
class CommitStatus(Posted):
    sha: str
    creator: User
    state: str
    context: str
    description: str | None
    target_url: str | None


@dataclass(eq=False)
class WorkflowRun:
    id: int
    name: str
    path: str
    event: str
    head_sha: str
    head_branch: str
    head_repo: Repository
    actor: User
    status: str
    conclusion: str | None
    created_at: datetime
    updated_at: datetime
    number: int
    suite: CheckSuite
    attempt: int = 1
    reruns: list[str] = field(default_factory=list)
    """What clients asked for: `all`, `failed` or `approve`."""


@dataclass(eq=False)
class Label:
    id: int
    name: str
    color: str = "ededed"
    description: str | None = None


@dataclass(eq=False)
class Repository:
    id: int
    owner: User
    name: str
    git: GitStore
    private: bool
    default_branch: str
    created_at: datetime
    parent: Repository | None = None
    roles: dict[str, str] = field(default_factory=dict)
    """Lower-case login to one of ROLES."""
    pulls: dict[int, PullRequest] = field(default_factory=dict)
    labels: dict[str, Label] = field(default_factory=dict)
    suites: list[CheckSuite] = field(default_factory=list)
    statuses: list[CommitStatus] = field(default_factory=list)
    runs: list[WorkflowRun] = field(default_factory=list)

    @property
    def full_name(self) -> str:
        return f"{self.owner.login}/{self.name}"

    def role(self, user: User) -> str:
        if user is self.owner:
            return "admin"
        return self.roles.get(user.login.lower(), "none" if self.private else "read")


Emit = Callable[..., None]


class World:
    """Everything there is, under one lock. `emit` announces a change to webhooks."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.folder = tempfile.TemporaryDirectory(prefix="github-standin-")
        self.api_url = self.html_url = ""
        self.users: dict[str, User] = {}
        self.repos: dict[str, Repository] = {}
        self.apps: dict[int, App] = {}
        self.installations: list[Installation] = []
        self.tokens: dict[str, Token] = {}
        self.emit: Emit = lambda *_, **__: None
        self._ids = itertools.count(1001)
        self._skew = timedelta()

    def next_id(self) -> int:
        return next(self._ids)

    def now(self) -> datetime:
        """GitHub's times have no fractions of a second."""
        return datetime.now(UTC).replace(microsecond=0) + self._skew

    def pass_time(self, seconds: float) -> None:
        self._skew += timedelta(seconds=seconds)

    def user(self, login: str, kind: str = "User") -> User:
        """The user of this login, created when first named."""
        return self.users.setdefault(login.lower(), User(self.next_id(), login, kind))

    def folder_for(self, repo: str) -> Path:
        return Path(self.folder.name) / f"{self.next_id()}-{repo.replace('/', '-')}.git"

    def pulls(self) -> Iterator[PullRequest]:
        for repo in self.repos.values():
            yield from repo.pulls.values()
