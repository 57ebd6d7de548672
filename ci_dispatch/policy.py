"""What a repository may decide about its CI: the part `ci` of `.whitesmoke.yml` on the base branch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from ci_dispatch.model import Frozen, JobSpec

Login = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,38}(\[bot\])?$")]

DEFAULT_PHRASE = "lgtm ready to ci"


class GatePolicy(Frozen):
    """Who may start CI."""

    phrase: str = Field(default=DEFAULT_PHRASE, description="alone on a line of a comment or review")
    trusted: tuple[Login, ...] = Field(
        default=(), description="trusted beside those with write permission; bots only if named here"
    )
    approvals: bool = Field(default=True, description="an approving review qualifies without the phrase")
    blocked: Literal["stop", "warn"] = Field(default="stop", description="what a BLOCKED review of ours does")

    @field_validator("phrase")
    @classmethod
    def _words(cls, phrase: str) -> str:
        words = phrase.split()
        if not words or not all(word.isalnum() for word in words) or len(phrase) > 100:
            raise ValueError("expected words of letters and digits; write them as in 'lgtm ready to ci'")
        return " ".join(words)


class NativePolicy(Frozen):
    """The forge's own workflow, where `mode` is native."""

    workflow: str = Field(
        default="", max_length=200, description="file name of the workflow; empty takes any for pull requests"
    )
    max_age_days: float = Field(default=30, gt=0, le=400, description="an older run cannot be run again")


class MergePolicy(Frozen):
    """Merging once everything required is green."""

    automatic: bool = Field(
        default=False, description="merge a qualified pull request when its required jobs pass"
    )
    method: Literal["merge", "squash", "rebase"] = "squash"


class CiPolicy(Frozen):
    """GPU CI: who starts it, what runs, what a merge waits for."""

    mode: Literal["off", "native", "runner"] = Field(
        default="off", description="native re-runs the forge's workflow; runner plans jobs for our own GPUs"
    )
    tree: Literal["head", "merge"] = Field(
        default="head", description="what is tested: the head, or its merge into the base"
    )
    say_phrase: bool = Field(default=False, description="the bot's own LGTM reviews say the phrase too")
    gate: GatePolicy = GatePolicy()
    native: NativePolicy = NativePolicy()
    merge: MergePolicy = MergePolicy()
    jobs: tuple[JobSpec, ...] = Field(default=(), max_length=100)

    @model_validator(mode="after")
    def _consistent(self) -> CiPolicy:
        names = [job.name.casefold() for job in self.jobs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two jobs are named {', '.join(twice)}; give each its own name")
        if self.mode == "runner" and not self.jobs:
            raise ValueError("mode runner without jobs; declare some, or set mode: off")
        return self
