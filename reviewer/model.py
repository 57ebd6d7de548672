"""The types that travel between the steps of a review and out to whoever publishes it.

All are frozen pydantic models and serialise to JSON as they stand. The diff's own types live in
`reviewer.diff`: a patch may hold hundreds of thousands of lines, which plain slotted classes carry in a
fraction of the memory.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Language = Literal["en", "zh"]


class Frozen(BaseModel):
    """Immutable, and strict about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Severity(StrEnum):
    """P0 breaks production or loses data; P1 must be fixed before merging; P2 should be; P3 is a nit."""

    P0 = "P0"
    P1 = "P1"
    P2 = "P2"
    P3 = "P3"

    @property
    def rank(self) -> int:
        """0 for P0 up to 3 for P3: smaller is more severe."""
        return int(self.value[1])

    @property
    def can_block(self) -> bool:
        return self.rank <= 1


class Side(StrEnum):
    """Which side of the diff a line number counts on: LEFT is the base, RIGHT the head."""

    LEFT = "LEFT"
    RIGHT = "RIGHT"


class Outcome(StrEnum):
    """The three answers of a review; see `reviewer.verdict`."""

    BLOCKED = "BLOCKED"
    LGTM = "LGTM"
    INCONCLUSIVE = "INCONCLUSIVE"


class PullRequest(Frozen):
    """What is being reviewed. `base_sha` is the merge base, `head_sha` the tip; both full object names.

    Title, body and labels are the author's words: data, never instructions.
    """

    repo: str
    number: int = Field(ge=0)
    base_sha: str
    head_sha: str
    title: str = ""
    body: str = ""
    author: str = ""
    labels: tuple[str, ...] = ()


class Finding(Frozen):
    """One observation of one reviewer.

    Lines are 1-based and inclusive, counted on `side` of `path`; 0, 0 means the file as a whole.
    `quoted_code` repeats the lines at fault word for word, so that a machine can check them.
    `symbols` names what the claim rests on in the checkout (functions, classes, variables).
    `rep` is the pass that said it; detectors use -1 and name themselves in `source`.
    """

    path: str
    line_start: int = Field(default=0, ge=0)
    line_end: int = Field(default=0, ge=0)
    side: Side = Side.RIGHT
    severity: Severity
    category: str = "general"
    title: Annotated[str, Field(min_length=1)]
    body: str = ""
    suggestion: str = ""
    quoted_code: str = ""
    symbols: tuple[str, ...] = ()
    checklist_ids: tuple[str, ...] = ()
    rep: int = -1
    source: str = "model"

    @model_validator(mode="after")
    def _lines_in_order(self) -> Finding:
        if self.line_end < self.line_start:
            raise ValueError(f"line_end {self.line_end} lies before line_start {self.line_start}")
        return self


class Cluster(Frozen):
    """Findings that mean the same. `members` index the round's raw findings; `medoid` is one of them."""

    members: tuple[int, ...]
    medoid: int
    support: int = Field(ge=0)


class FactCheck(StrEnum):
    """What became of a blocking candidate's facts."""

    HOLD = "hold"
    REFUTED = "refuted"
    PARSE_FAIL = "parse_fail"


class Recheck(StrEnum):
    """The answer when an open finding of an earlier round is asked about again."""

    FIXED = "fixed"
    STILL_OPEN = "still_open"
    CANNOT_SUBSTANTIATE = "cannot_substantiate"
    FAIL = "fail"


class State(StrEnum):
    """The life of a finding in the ledger."""

    OPEN = "open"
    FIXED = "fixed"
    DISMISSED = "dismissed"
    REFUTED = "refuted"


class ReportedFinding(Frozen):
    """A finding as the round reports it: merged, voted on, checked, and known by an id that lasts.

    `support` of `of` reps said it. `demoted` says why a P0/P1 does not block; empty when it blocks or was
    never severe enough. `evidence` is the fact check's own words. `last_round` is the last round in which
    anyone said it; `merged_from` names places of the same root cause that were folded into it.
    """

    id: str
    path: str
    line_start: int
    line_end: int
    side: Side
    severity: Severity
    category: str
    title: str
    body: str
    suggestion: str = ""
    quoted_code: str = ""
    checklist_ids: tuple[str, ...] = ()
    source: str = "model"
    support: int = 0
    of: int = 0
    blocking: bool = False
    state: State = State.OPEN
    first_round: int = 1
    last_round: int = 1
    fact_check: FactCheck | None = None
    evidence: str = ""
    demoted: str = ""
    recheck: Recheck | None = None
    merged_from: tuple[str, ...] = ()

    @property
    def carried(self) -> bool:
        """Said in an earlier round and asked about again, because no rep of this round said it."""
        return self.recheck is not None

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line_start}" if self.line_start else self.path


class Fate(Frozen):
    """What became of one raw finding: which reported finding carries it, and how it got there."""

    raw: Finding
    finding_id: str
    outcome: Literal["blocking", "non_blocking", "merged", "refuted", "dismissed"]
    reason: str = ""


class ToolUse(Frozen):
    """One call of a tool by an agentic rep; `bytes` is the size of what the tool answered."""

    step: str
    rep: int
    name: str
    arguments: str
    ok: bool
    bytes: int


class Answer(StrEnum):
    """A reviewer's answer to one checklist item."""

    PASS = "pass"
    FAIL = "fail"
    UNSURE = "unsure"


class ChecklistResult(Frozen):
    """One applicable checklist item after all reps answered it.

    `findings` are ids of reported findings that fail the item; `evidence` speaks where none does.
    """

    id: str
    checklist: str
    section: str
    text: str
    answer: Answer
    votes: dict[Answer, int] = {}
    findings: tuple[str, ...] = ()
    evidence: str = ""


class Unreviewed(Frozen):
    """A file, or part of one, that no model saw, and why: never passed over in silence."""

    path: str
    reason: str
    lines: int = 0


class ConfirmKpi(Frozen):
    candidates: int = 0
    to_block: int = 0
    confirm_fail: int = 0


class FactCheckKpi(Frozen):
    checked: int = 0
    hold: int = 0
    refuted: int = 0
    parse_fail: int = 0


class RecheckKpi(Frozen):
    fixed: int = 0
    still_open: int = 0
    cannot_substantiate: int = 0
    fail: int = 0


class ChecklistKpi(Frozen):
    total: int = 0
    fail: int = 0
    unsure: int = 0


class Kpi(Frozen):
    """The round in numbers. The first 21 keys and their order are the established report format's;
    from `delta_lines` on they are ours. The identities between them are properties tested in
    tests/reviewer/test_round_properties.py.
    """

    reps: int
    agentic_reps: int
    diff_truncated: bool
    patch_bytes: int
    coverage: float
    shards: int
    discover_ok: int
    discover_fail: int
    discover_attempts: int
    clusters: int
    synth_fail: int
    confirm: ConfirmKpi
    blocking_dedup_merged: int
    fact_check: FactCheckKpi
    model: str
    round_index: int
    delta_files: int
    full_files: int
    new_findings: int
    merged: int
    recheck: RecheckKpi
    blocking: int
    blocking_on_unchanged: int
    delta_lines: int
    models: tuple[str, ...]
    detector_findings: int
    checklist: ChecklistKpi
    tool_calls: int
    tokens_in: int
    tokens_out: int
    cost_usd: float
    seconds: float


class Verdict(Frozen):
    """`reasons` say why a round is inconclusive; `detectors_only` that no model looked at the change."""

    outcome: Outcome
    blocking: int = 0
    reasons: tuple[str, ...] = ()
    detectors_only: bool = False

    def __str__(self) -> str:
        if self.outcome is Outcome.BLOCKED:
            return f"BLOCKED({self.blocking})"
        if self.outcome is Outcome.LGTM and self.detectors_only:
            return "LGTM (detectors only)"
        return self.outcome.value


class RoundReport(Frozen):
    """Everything one round found, decided and left out.

    `closed` are findings that this round saw fixed or found dismissed; `reviewed_at` is ISO 8601 with a zone.
    """

    schema_version: Literal[1] = 1
    pull: PullRequest
    round_index: int
    reviewed_at: str
    language: Language
    verdict: Verdict
    blocking: tuple[ReportedFinding, ...]
    non_blocking: tuple[ReportedFinding, ...]
    closed: tuple[ReportedFinding, ...]
    checklist: tuple[ChecklistResult, ...]
    strengths: tuple[str, ...]
    unreviewed: tuple[Unreviewed, ...]
    fates: tuple[Fate, ...]
    tool_calls: tuple[ToolUse, ...]
    warnings: tuple[str, ...]
    kpi: Kpi
