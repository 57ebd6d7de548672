"""What the gate is shown of a pull request.

No field here says who somebody is to the repository (author_association), nor when a commit says that it was made: neither
is trusted. Times are aware.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

ReviewState = Literal["APPROVED", "CHANGES_REQUESTED", "COMMENTED", "DISMISSED", "PENDING"]


@dataclass(frozen=True, slots=True)
class ReviewSeen:
    """A submitted review. `commit` is the head that it was made on, "" where that is gone; `edited`: its text was
    changed since, by whomever, or may have been."""

    id: int
    login: str
    state: ReviewState
    body: str
    commit: str
    submitted_at: datetime
    is_bot: bool = False
    edited: bool = False


@dataclass(frozen=True, slots=True)
class CommentSeen:
    """A comment on the conversation, by the forge's clock. `edited`: changed since, by whomever."""

    id: int
    login: str
    body: str
    created_at: datetime
    is_bot: bool = False
    edited: bool = False


@dataclass(frozen=True, slots=True)
class PushSeen:
    """A commit became the head. `at` is when the delivery came, or when the forge made its check suite."""

    sha: str
    at: datetime
    source: Literal["receipt", "check_suite"]


@dataclass(frozen=True, slots=True)
class GoSeen:
    """`/ci run` of somebody, or a button. `allowed`: the rights say now that they may. A button stands on a check of
    `commit`; a comment on none."""

    login: str
    created_at: datetime
    allowed: bool
    comment_id: int = 0
    commit: str = ""
    edited: bool = False


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """What our own last review of a commit came to, from our records."""

    head_sha: str
    verdict: Literal["BLOCKED", "LGTM", "INCONCLUSIVE"]


@dataclass(frozen=True, slots=True)
class Case:
    """A pull request as the gate sees it. `writers` are the logins that have write permission or better now, of those
    that `people` names. `mergeable` is None where the forge does not know yet."""

    head_sha: str
    author: str
    me: str
    is_fork: bool
    reviews: tuple[ReviewSeen, ...] = ()
    comments: tuple[CommentSeen, ...] = ()
    goes: tuple[GoSeen, ...] = ()
    pushes: tuple[PushSeen, ...] = ()
    verdict: StoredVerdict | None = None
    writers: frozenset[str] = frozenset()
    mergeable: bool | None = None

    def __post_init__(self) -> None:
        if not self.head_sha:
            raise ValueError("a case without a head: nothing is said about no commit")
