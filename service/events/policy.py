"""What a repository may decide about the service: the part `service` of `.whitesmoke.yml`."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import Field, model_validator

from reviewer.model import Frozen
from service.forge.base import Permission

Level = Literal["read", "triage", "write", "maintain", "admin"]
LabelName = Annotated[str, Field(min_length=1, max_length=50)]

NumberT = TypeVar("NumberT", int, float)


class Triggers(Frozen):
    """When a review starts without anyone asking for it."""

    automatic: bool = Field(
        default=True,
        description="review what is opened and pushed; otherwise only by command, label or button",
    )
    drafts: bool = Field(default=False, description="review drafts too, before they are ready")
    bots: bool = Field(default=True, description="review pull requests that bots open")
    labels: tuple[LabelName, ...] = Field(
        default=(), description="adding one of these asks for a review, of a draft too"
    )
    skip_labels: tuple[LabelName, ...] = Field(
        default=(), description="a pull request with one of these is reviewed only on request"
    )
    debounce_seconds: int = Field(
        default=30,
        ge=0,
        le=3600,
        description="how long a push waits for the next one before its review starts",
    )


class Rights(Frozen):
    """The permission in the repository that each command asks for."""

    review: Level = Field(default="triage", description="/review")
    review_full: Level = Field(default="write", description="/review full")
    dismiss: Level = Field(
        default="write",
        description="/dismiss; never a blocker of one's own pull request, whatever the permission",
    )
    reopen: Level = Field(default="write", description="/reopen")
    explain: Level = Field(default="read", description="/explain")
    help: Level = Field(default="read", description="/help")
    ci_run: Level = Field(default="write", description="/ci run")
    ci_retry: Level = Field(default="write", description="/ci retry")
    ci_cancel: Level = Field(default="write", description="/ci cancel")
    ci_status: Level = Field(default="read", description="/ci status")
    author_may_review: bool = Field(
        default=True, description="authors may /review their own pull request without the permission"
    )

    def needed(self, right: str) -> Level:
        """The level that one command asks for, by the name of its field."""
        level: Level = getattr(self, right)
        return level


class SizeLimits(Frozen):
    """The largest pull request that is reviewed; a larger one is told so."""

    files: int = Field(default=3_000, ge=1, description="most changed files")
    patch_bytes: int = Field(default=50_000_000, ge=1, description="largest patch")


class Budget(Frozen):
    """What all reviews of the repository may spend in one day (UTC)."""

    tokens_per_day: int | None = Field(
        default=50_000_000, ge=1, description="most tokens, in and out; null: no limit"
    )
    cost_usd_per_day: float | None = Field(default=None, gt=0, description="most money; null: no limit")


class VerdictLabels(Frozen):
    """Labels that say the verdict on the pull request; null sets none."""

    blocked: LabelName | None = Field(default=None, description="while something blocks")
    lgtm: LabelName | None = Field(default=None, description="while nothing blocks")
    inconclusive: LabelName | None = Field(default=None, description="while there is no verdict")

    def names(self) -> tuple[str, ...]:
        return tuple(name for name in (self.blocked, self.lgtm, self.inconclusive) if name is not None)


class ServicePolicy(Frozen):
    """Reviews as a service: when they start, who may command them, what they may cost, what they post."""

    triggers: Triggers = Triggers()
    permissions: Rights = Rights()
    size: SizeLimits = SizeLimits()
    budget: Budget = Budget()
    review_event: Literal["COMMENT", "REQUEST_CHANGES"] = Field(
        default="COMMENT",
        description="the event of a BLOCKED review; REQUEST_CHANGES is dismissed again on LGTM",
    )
    labels: VerdictLabels = VerdictLabels()

    @model_validator(mode="after")
    def _labels_apart(self) -> ServicePolicy:
        ours = [name.casefold() for name in self.labels.names()]
        if len(set(ours)) < len(ours):
            raise ValueError("labels: one label cannot say two verdicts; name a label for each")
        theirs = {name.casefold(): name for name in (*self.triggers.labels, *self.triggers.skip_labels)}
        for name in ours:
            if name in theirs:
                raise ValueError(
                    f"the label {theirs[name]!r} says a verdict and is a trigger too; name two labels"
                )
        return self


class ServerCaps(Frozen):
    """What no repository's policy may go beyond. `rights` are the lowest levels that a policy may ask for."""

    rights: Rights = Rights(review="read", review_full="triage", reopen="triage")
    size: SizeLimits = SizeLimits()
    budget: Budget = Budget()


def resolve(base: ServicePolicy, default: ServicePolicy, caps: ServerCaps) -> ServicePolicy:
    """The policy in force on a pull request: `base` is the file of its base branch, `default` that of the default
    branch, which alone says who is trusted and what may be spent."""
    asked, floor = default.permissions, caps.rights
    levels = {
        right: max(asked.needed(right), floor.needed(right), key=permission_of)
        for right in Rights.model_fields
        if right != "author_may_review"
    }
    rights = Rights(**levels, author_may_review=asked.author_may_review and floor.author_may_review)
    budget = Budget(
        tokens_per_day=_least(default.budget.tokens_per_day, caps.budget.tokens_per_day),
        cost_usd_per_day=_least(default.budget.cost_usd_per_day, caps.budget.cost_usd_per_day),
    )
    size = SizeLimits(
        files=min(base.size.files, caps.size.files),
        patch_bytes=min(base.size.patch_bytes, caps.size.patch_bytes),
    )
    return base.model_copy(update={"permissions": rights, "budget": budget, "size": size})


def permission_of(level: Level) -> Permission:
    return Permission[level.upper()]


def _least(one: NumberT | None, other: NumberT | None) -> NumberT | None:
    return min((value for value in (one, other) if value is not None), default=None)
