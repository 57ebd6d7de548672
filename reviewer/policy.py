"""What a repository may decide about its reviews: the part `review` of `.whitesmoke.yml` on the base branch."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from reviewer.globs import check_glob
from reviewer.model import Frozen, Language

POLICY_FILE = ".whitesmoke.yml"


class ModelLimits(Frozen):
    """Bounds on what one request and one round may spend on models; whichever is reached first holds."""

    request_tokens: int = Field(default=16_384, ge=256, description="most tokens of one answer")
    request_seconds: float = Field(default=300, gt=0, description="longest wait for one answer")
    round_tokens: int = Field(default=5_000_000, ge=1, description="most tokens of a round, in and out")
    round_seconds: float = Field(default=3600, gt=0, description="longest round")
    round_cost_usd: float | None = Field(default=None, gt=0, description="most money of a round")


class ToolLimits(Frozen):
    """Bounds on one conversation of an agentic rep with the checkout's tools."""

    steps: int = Field(default=24, ge=1, description="most tool calls")
    bytes: int = Field(default=400_000, ge=1, description="most bytes that tools may answer")
    seconds: float = Field(default=120, gt=0, description="most seconds spent inside tools")


class ReviewPolicy(Frozen):
    """How a round is run."""

    reps: int = Field(default=5, ge=1, le=32, description="independent passes over every shard")
    agentic_reps: int = Field(default=2, ge=0, description="how many of them may read the checkout")
    quorum: int = Field(default=3, ge=1, description="distinct reps that make a finding block")
    attempts: int = Field(default=2, ge=1, le=5, description="answers asked for before a rep counts as lost")
    shard_tokens: int = Field(default=24_000, ge=500, description="most tokens of diff in one prompt")
    max_shards: int = Field(default=16, ge=1, description="shards past this are listed as not reviewed")
    min_coverage: float = Field(default=1.0, ge=0, le=1, description="below this the verdict is INCONCLUSIVE")
    paths: tuple[str, ...] = Field(default=("**",), description="globs of files to review")
    ignore: tuple[str, ...] = Field(default=(), description="globs of files to list but not review")
    language: Language = Field(default="en", description="language of reports, model text included")
    checklists: tuple[str, ...] | None = Field(
        default=None,
        description="checklists by name, or as YAML files of the base branch; all shipped ones by default",
    )
    models: tuple[str, ...] = Field(
        default=(), description="models by name; rep r is answered by r mod their number"
    )
    judge_model: str | None = Field(default=None, description="model of every step after discovery")
    prices: dict[str, tuple[float, float]] = Field(
        default={}, description="USD for a million tokens in, and out, by model; unpriced models cost nothing"
    )
    limits: ModelLimits = ModelLimits()
    tools: ToolLimits = ToolLimits()

    @field_validator("paths", "ignore")
    @classmethod
    def _globs(cls, globs: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(check_glob(glob) for glob in globs)

    @model_validator(mode="after")
    def _consistent(self) -> ReviewPolicy:
        if self.quorum > self.reps:
            raise ValueError(f"quorum {self.quorum} exceeds reps {self.reps}: nothing could ever block")
        if self.agentic_reps > self.reps:
            raise ValueError(f"agentic_reps {self.agentic_reps} exceeds reps {self.reps}")
        return self
