"""What is to stand on a pull request, as values: each has a key under which it is kept and made once."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from reviewer.model import Frozen, Language
from reviewer.report.inline import InlineComment
from service.forge.base import Check, ReviewEvent
from service.forge.base import Reaction as Sign

CHECK_NAME = "whitesmoke/review"


class RoundId(Frozen):
    """One round on one head of a pull request."""

    repo: str
    number: int
    head_sha: str
    round_index: int

    def __str__(self) -> str:
        return f"{self.repo}#{self.number}:{self.head_sha}:{self.round_index}"


class RoundComment(Frozen):
    """The round report: one comment a pull request, edited in place by every later round."""

    kind: Literal["round_comment"] = "round_comment"
    repo: str
    number: int
    body: str

    @property
    def key(self) -> str:
        return f"comment:{self.repo}#{self.number}"


class CiComment(Frozen):
    """The report of CI: one comment a pull request, edited in place from the first job to the last."""

    kind: Literal["ci_comment"] = "ci_comment"
    repo: str
    number: int
    body: str

    @property
    def key(self) -> str:
        return f"ci:{self.repo}#{self.number}"


class PlacedComment(Frozen):
    """An inline comment, and the place that it is about, as `path:line`: it may have to stand elsewhere."""

    comment: InlineComment
    place: str


class ReviewPost(Frozen):
    """The review of one head with its inline comments, the most severe first. Earlier ones then say that it took
    their place; with `dismiss`, none requests changes any more."""

    kind: Literal["review"] = "review"
    round: RoundId
    language: Language
    body: str
    event: ReviewEvent
    comments: tuple[PlacedComment, ...] = ()
    dismiss: bool = False

    @property
    def key(self) -> str:
        return f"review:{self.round}"


class CheckPost(Frozen):
    """The check on one head."""

    kind: Literal["check"] = "check"
    repo: str
    check: Check

    @property
    def key(self) -> str:
        return f"check:{self.repo}:{self.check.head_sha}:{self.check.name}"


class ResolveThreads(Frozen):
    """Threads of findings that are fixed are resolved, and outdated ones unless their finding is `still_open`."""

    kind: Literal["threads"] = "threads"
    round: RoundId
    fixed: tuple[str, ...]
    still_open: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"threads:{self.round}"


class Labels(Frozen):
    """The verdict's label, and none of the other verdicts'."""

    kind: Literal["labels"] = "labels"
    repo: str
    number: int
    add: tuple[str, ...]
    remove: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"labels:{self.repo}#{self.number}"


class Reply(Frozen):
    """An answer on the conversation: to a command, or said unasked. `to` names what it answers, once and for all."""

    kind: Literal["reply"] = "reply"
    repo: str
    number: int
    to: str
    body: str

    @property
    def key(self) -> str:
        return f"reply:{self.repo}#{self.number}:{self.to}"


class Reaction(Frozen):
    """An acknowledgement of someone's comment without words."""

    kind: Literal["reaction"] = "reaction"
    repo: str
    number: int
    comment_id: int
    reaction: Sign

    @property
    def key(self) -> str:
        return f"reaction:{self.repo}#{self.number}:{self.comment_id}"


Effect = RoundComment | CiComment | ReviewPost | CheckPost | ResolveThreads | Labels | Reply | Reaction

_EFFECT: TypeAdapter[Effect] = TypeAdapter(Annotated[Effect, Field(discriminator="kind")])


def to_payload(effect: Effect) -> dict[str, Any]:
    """The effect as JSON values; `from_payload` reads them back."""
    return effect.model_dump(mode="json")


def from_payload(payload: dict[str, Any]) -> Effect:
    """Raises `pydantic.ValidationError` for anything that `to_payload` did not write."""
    return _EFFECT.validate_python(payload)
