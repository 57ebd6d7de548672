"""What a delivery asks of the service. Values that a queue can carry: all serialise to JSON as they stand."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from reviewer.model import Frozen
from service.events.commands import Parsed
from service.forge.base import ReviewState, User

Reason = Literal["opened", "reopened", "pushed", "base_changed", "ready", "labeled", "unlabeled", "command"]


class ReviewRequested(Frozen):
    """A round on the pull request. `debounce`: wait whether another push follows."""

    kind: Literal["review_requested"] = "review_requested"
    repo: str
    number: int
    head_sha: str | None
    reason: Reason
    full: bool = False
    debounce: bool = False


class HeadChanged(Frozen):
    """The head as of now. Work on any other head is stale; `supersedes` is the one pushed over, where known, and `at` the
    forge's own time of it."""

    kind: Literal["head_changed"] = "head_changed"
    repo: str
    number: int
    head_sha: str
    supersedes: str | None = None
    at: datetime | None = None


class DraftChanged(Frozen):
    kind: Literal["draft_changed"] = "draft_changed"
    repo: str
    number: int
    draft: bool


class PullClosed(Frozen):
    kind: Literal["pull_closed"] = "pull_closed"
    repo: str
    number: int
    merged: bool


class RunCommand(Frozen):
    """One line of a comment. `inline`: the comment stands on the diff, where ids are counted apart.

    `comment_id`, `inline` and `index` (0-based within the comment) make it unique.
    """

    kind: Literal["run_command"] = "run_command"
    repo: str
    number: int
    comment_id: int
    inline: bool
    index: int
    author: User
    command: Parsed


class PhraseSaid(Frozen):
    """A comment that says the words which start CI; whether they count is the gate's question."""

    kind: Literal["phrase_said"] = "phrase_said"
    repo: str
    number: int
    comment_id: int
    author: User


class ReviewSubmitted(Frozen):
    """Somebody's review of `commit` (None where GitHub no longer has it)."""

    kind: Literal["review_submitted"] = "review_submitted"
    repo: str
    number: int
    review_id: int
    author: User
    state: ReviewState
    commit: str | None


class ReviewDismissed(Frozen):
    kind: Literal["review_dismissed"] = "review_dismissed"
    repo: str
    number: int
    review_id: int
    author: User
    commit: str | None


class Recheck(Frozen):
    """Run the check of this name again; with no name, all of ours on the commit.

    `pulls` is empty for pull requests from forks: look them up by `head_sha`.
    """

    kind: Literal["recheck"] = "recheck"
    repo: str
    head_sha: str
    check_run_id: int | None
    name: str
    pulls: tuple[int, ...]
    by: User


class ButtonPressed(Frozen):
    """A button on one of our check runs; `pulls` as in `Recheck`."""

    kind: Literal["button_pressed"] = "button_pressed"
    repo: str
    head_sha: str
    check_run_id: int
    name: str
    identifier: str
    pulls: tuple[int, ...]
    by: User


class ChecksEnded(Frozen):
    """All checks that another app made of a commit have ended."""

    kind: Literal["checks_ended"] = "checks_ended"
    repo: str
    head_sha: str


class PolicyChanged(Frozen):
    """The policy file of a branch may be another now; of interest where `branch` is a base or `default`."""

    kind: Literal["policy_changed"] = "policy_changed"
    repo: str
    branch: str
    default: bool


class InstallationChanged(Frozen):
    """The App reaches other repositories than before. `active` is False once it is suspended or removed."""

    kind: Literal["installation_changed"] = "installation_changed"
    installation_id: int
    active: bool
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class Ignored(Frozen):
    """Nothing to do, or nothing more, and why: for the log."""

    kind: Literal["ignored"] = "ignored"
    reason: str


Intent = (
    ReviewRequested
    | HeadChanged
    | DraftChanged
    | PullClosed
    | RunCommand
    | PhraseSaid
    | ReviewSubmitted
    | ReviewDismissed
    | Recheck
    | ButtonPressed
    | ChecksEnded
    | PolicyChanged
    | InstallationChanged
    | Ignored
)

_INTENT: TypeAdapter[Intent] = TypeAdapter(Annotated[Intent, Field(discriminator="kind")])


def read_intent(text: str | bytes) -> Intent:
    """An intent from what its `model_dump_json` wrote."""
    return _INTENT.validate_json(text)
