"""GitHub's webhook payloads: the fields that the service uses, and nothing else of them.

Each class is what one group of actions must carry; everything more is let pass.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from reviewer.errors import ReviewError
from reviewer.report.escape import plain
from service.forge.base import ReviewState, User

Sha = Annotated[str, Field(pattern=r"^[0-9a-f]{40}(?:[0-9a-f]{24})?$")]
Id = Annotated[int, Field(ge=1, lt=2**63)]
Number = Annotated[int, Field(ge=1, lt=2**31)]
RepoName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}/[A-Za-z0-9._-]{1,100}$")]
Name = Annotated[str, Field(min_length=1, max_length=255)]


class PayloadError(ReviewError):
    """A delivery does not carry what its event should. `field` is where, in dots."""

    def __init__(self, event: str, field: str, what: str) -> None:
        super().__init__(
            f"{event} delivery: {field}: {what}",
            "look whether it came from GitHub; if so, the payload has changed and whitesmoke must learn it",
        )
        self.event = event
        self.field = field


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class Account(_Read):
    login: Name
    type: str = "User"

    @property
    def user(self) -> User:
        return User(self.login, is_bot=self.type == "Bot" or self.login.endswith("[bot]"))


# GitHub shows a deleted account under this name.
_GHOST = Account(login="ghost")
Author = Annotated[Account, BeforeValidator(lambda value: _GHOST if value is None else value)]


class Repository(_Read):
    id: Id
    full_name: RepoName
    default_branch: Name = "main"


class Label(_Read):
    name: Name


class Head(_Read):
    sha: Sha


class RepositoryId(_Read):
    id: Id


class Base(_Read):
    repo: RepositoryId


class Pull(_Read):
    """A pull request as it was when the event happened."""

    number: Number
    state: str
    user: Author
    head: Head
    draft: bool = False
    merged: bool | None = None
    labels: tuple[Label, ...] = ()
    updated_at: datetime | None = None


class PullReference(_Read):
    number: Number
    base: Base


class App(_Read):
    id: Id


class Payload(_Read):
    """What every delivery has; `sender` is who did it."""

    sender: Author = _GHOST


class Unused(Payload):
    """An event or action that the service has no use for."""

    event: str
    action: str


class Ping(Payload):
    pass


class _InRepository(Payload):
    action: str
    repository: Repository

    @property
    def repo(self) -> str:
        return self.repository.full_name


class PullEvent(_InRepository):
    pull_request: Pull


class PullPushed(PullEvent):
    """`before` is the head that was pushed over."""

    before: Sha | None = None


class BaseWas(_Read):
    ref: Any = None


class Changes(_Read):
    base: BaseWas | None = None


class PullEdited(PullEvent):
    """`changes.base` is there where the base branch is another now."""

    changes: Changes


class PullLabeled(PullEvent):
    label: Label


class PullNumber(_Read):
    number: Number


class ReviewObject(_Read):
    id: Id
    user: Author
    state: Annotated[
        ReviewState, BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value)
    ]
    commit_id: Sha | None


class ReviewEvent(_InRepository):
    pull_request: PullNumber
    review: ReviewObject


class CommentObject(_Read):
    id: Id
    user: Author
    body: str | None
    performed_via_github_app: App | None = None


class Issue(_Read):
    number: Number
    pull_request: Any = None


class IssueCommentEvent(_InRepository):
    """A comment on an issue; on a pull request where `issue.pull_request` is there."""

    issue: Issue
    comment: CommentObject


class ReviewCommentEvent(_InRepository):
    pull_request: PullNumber
    comment: CommentObject


class CheckRunObject(_Read):
    id: Id
    name: Name
    head_sha: Sha
    app: App | None
    pull_requests: tuple[PullReference, ...] = ()


class CheckRunEvent(_InRepository):
    check_run: CheckRunObject


class RequestedAction(_Read):
    identifier: Name


class CheckButton(CheckRunEvent):
    requested_action: RequestedAction


class CheckSuiteObject(_Read):
    id: Id
    head_sha: Sha
    app: App | None
    pull_requests: tuple[PullReference, ...] = ()


class CheckSuiteEvent(_InRepository):
    check_suite: CheckSuiteObject


class Commit(_Read):
    added: tuple[str, ...] = ()
    modified: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class PushEvent(Payload):
    """`commits` are the newest 2,048 at most."""

    repository: Repository
    ref: str
    deleted: bool = False
    forced: bool = False
    commits: tuple[Commit, ...] = ()


class Installation(_Read):
    id: Id


class InstalledRepository(_Read):
    full_name: RepoName


class InstallationEvent(Payload):
    action: str
    installation: Installation
    repositories: tuple[InstalledRepository, ...] = ()


class InstallationRepositories(Payload):
    action: str
    installation: Installation
    repositories_added: tuple[InstalledRepository, ...] = ()
    repositories_removed: tuple[InstalledRepository, ...] = ()


_COMMENTED = ("created", "edited", "deleted")
_SHAPES: dict[tuple[str, str], type[Payload]] = {
    ("ping", ""): Ping,
    ("push", ""): PushEvent,
    **{
        ("pull_request", action): PullEvent
        for action in ("opened", "reopened", "ready_for_review", "converted_to_draft", "closed")
    },
    ("pull_request", "synchronize"): PullPushed,
    ("pull_request", "edited"): PullEdited,
    **{("pull_request", action): PullLabeled for action in ("labeled", "unlabeled")},
    **{("pull_request_review", action): ReviewEvent for action in ("submitted", "edited", "dismissed")},
    **{("issue_comment", action): IssueCommentEvent for action in _COMMENTED},
    **{("pull_request_review_comment", action): ReviewCommentEvent for action in _COMMENTED},
    ("check_run", "rerequested"): CheckRunEvent,
    ("check_run", "requested_action"): CheckButton,
    **{("check_suite", action): CheckSuiteEvent for action in ("requested", "rerequested", "completed")},
    **{
        ("installation", action): InstallationEvent
        for action in ("created", "deleted", "suspend", "unsuspend", "new_permissions_accepted")
    },
    **{("installation_repositories", action): InstallationRepositories for action in ("added", "removed")},
}
EVENTS = frozenset(event for event, _ in _SHAPES)


class _Action(_Read):
    action: Annotated[str, BeforeValidator(lambda value: value if isinstance(value, str) else "")] = ""


def read_payload(event: str, body: bytes) -> Payload:
    """`body` as what `event` (X-GitHub-Event) says it is; `Unused` where nobody needs it.

    Raises `PayloadError` naming the event and the field that is missing or wrong.
    """
    try:
        action = _Action.model_validate_json(body).action
        shape = _SHAPES.get((event, action))
        if shape is None:
            return Unused(event=plain(event)[:100], action=plain(action)[:100])
        return shape.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "body"
        raise PayloadError(plain(event)[:100], field, first["msg"]) from None
