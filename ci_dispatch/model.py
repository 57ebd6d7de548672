"""The types that travel between policy, plan, runner and report. All are frozen and serialise to JSON as they stand.

A runner imports this module on a bare GPU machine: it stands on pydantic alone.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Arch = Literal["cpu", "sm80", "sm89", "sm90", "sm100", "sm120"]
Gpus = Literal[0, 1, 2, 4, 8]
Tree = Literal["head", "base"]


class Frozen(BaseModel):
    """Immutable, and strict about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Outcome(StrEnum):
    """How a job ended; each job has exactly one."""

    PASSED = "passed"
    CODE = "code"
    """A step failed by itself."""
    GOLDEN = "golden"
    """Raw outputs are not those kept at the base."""
    PERF = "perf"
    """Slower than the base beyond noise and threshold."""
    TIMED_OUT = "timed_out"
    INFRA = "infra"
    """Not the change's fault: a lost runner, a full host, no runner in time."""
    HARDWARE = "hardware"
    """Not the change's fault: a GPU that failed its checks or reported an error at the step's time."""
    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"

    @property
    def is_retried(self) -> bool:
        """Whether another GPU may give another answer."""
        return self in (Outcome.INFRA, Outcome.HARDWARE)

    @property
    def is_quiet(self) -> bool:
        """Whether it says nothing about the change."""
        return self in (Outcome.SUPERSEDED, Outcome.CANCELLED)


def _relative(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not path or path.startswith("/") or ".." in parts or "\\" in path or "\0" in path:
        raise ValueError(f"expected a path below the folder, without '..', got {path!r}")
    return path


RelativePath = Annotated[str, AfterValidator(_relative), Field(max_length=255)]
JobName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
KpiName = Annotated[str, Field(min_length=1, max_length=200)]


class Step(Frozen):
    """One command of a job, run in the checkout's root. `$OUT` in an argument is the step's output folder."""

    name: Literal["build", "smoke", "bench"]
    argv: tuple[Annotated[str, Field(max_length=4096)], ...] = Field(min_length=1, max_length=64)
    timeout: float = Field(gt=0, le=86_400, description="seconds it may run")


class Tolerance(Frozen):
    """How far two numbers may lie apart: |a - b| <= absolute + relative * |b|, b being the kept one."""

    relative: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    absolute: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class Golden(Frozen):
    """Raw outputs that must be those kept at the base.

    Both are JSON of the form `{"provenance": {...}, "cases": {name: [answer, ...] or {"error": text}}}`. Numbers under a key of
    `tolerances` are compared with its tolerance, all else exactly.
    """

    output: RelativePath = Field(description="the raw outputs, below $OUT of the smoke step")
    kept: RelativePath = Field(description="the golden, a file of the base")
    tolerances: dict[str, Tolerance] = Field(
        default={}, description="by field of an answer, such as logprobs"
    )
    provenance: tuple[str, ...] = Field(
        default=("suite", "arch", "dtype"), description="keys that must be the same for a comparison"
    )


class KpiRule(Frozen):
    """What is judged of the bench step's numbers: names by glob, the first rule that matches holds."""

    names: str = Field(default="*", max_length=200, description="glob over the names of KPIs")
    better: Literal["lower", "higher"] = "lower"
    threshold: float | None = Field(
        default=1.05,
        gt=1,
        le=10,
        description="worse than the base by more than this ratio fails; null only reports",
    )


class Perf(Frozen):
    """Interleaved runs of the bench step: base, base again and head in each round, in changing order."""

    output: RelativePath = Field(default="kpis.json", description="the numbers, below $OUT of the bench step")
    rules: tuple[KpiRule, ...] = (KpiRule(),)
    rounds: int = Field(default=6, ge=2, le=50, description="how often each side runs")
    harness: tuple[str, ...] = Field(
        default=(), description="globs of files that measure: the base's are used on both sides"
    )


class JobSpec(Frozen):
    """A job as the policy declares it."""

    name: JobName
    description: str = Field(default="", max_length=200)
    paths: tuple[str, ...] = Field(default=("**",), description="globs: it runs where one changed")
    arch: Arch = "cpu"
    gpus: Gpus = Field(default=0, description="GPUs that it gets, all at once; 0 exactly where arch is cpu")
    steps: tuple[Step, ...] = Field(min_length=1, max_length=8)
    goldens: tuple[Golden, ...] = Field(default=(), max_length=16)
    perf: Perf | None = None
    pending_minutes: float = Field(default=120, gt=0, le=10_080, description="longest wait for a runner")
    running_minutes: float = Field(default=60, gt=0, le=1_440, description="longest run, all steps together")
    retries: int = Field(default=2, ge=0, le=5, description="further attempts after infra or hardware")
    priority: int = Field(default=0, ge=-10, le=10, description="larger ones first")
    required: bool = Field(default=True, description="a merge waits for it")
    memory_mb: int = Field(default=32_768, ge=64, description="memory of all its processes")
    disk_mb: int = Field(default=20_480, ge=16, description="bytes that it may write, in MiB")
    processes: int = Field(default=4_096, ge=8, le=65_536, description="processes and threads at a time")
    cpus: int | None = Field(
        default=None, ge=1, le=4_096, description="processors' time; null takes the host's"
    )

    @model_validator(mode="after")
    def _consistent(self) -> JobSpec:
        if (self.arch == "cpu") != (self.gpus == 0):
            raise ValueError(
                f"{self.name}: arch {self.arch} with {self.gpus} gpus; 0 gpus exactly where arch is cpu"
            )
        names = [step.name for step in self.steps]
        if len(set(names)) < len(names):
            raise ValueError(f"{self.name}: two steps of one name; have one build, smoke and bench each")
        if self.goldens and "smoke" not in names:
            raise ValueError(f"{self.name}: goldens without a smoke step to compare")
        if self.perf is not None and "bench" not in names:
            raise ValueError(f"{self.name}: perf without a bench step to measure")
        return self


class Job(Frozen):
    """One attempt at a job, for one commit of one pull request. `key` names it for good."""

    repo: str
    number: int = Field(ge=0)
    head_sha: str
    base_sha: str
    spec: JobSpec
    attempt: int = Field(default=1, ge=1)
    author: str = ""
    trusted: bool = Field(default=False, description="not from a fork")
    harness_changed: bool = Field(default=False, description="the change touches what measures it")

    @property
    def key(self) -> str:
        """Repository, pull request, both commits, name, architecture, GPUs and attempt."""
        spec = self.spec
        parts = (
            self.repo,
            self.number,
            self.head_sha,
            self.base_sha,
            spec.name,
            spec.arch,
            spec.gpus,
            self.attempt,
        )
        return "/".join(map(str, parts))


class Gpu(Frozen):
    """One GPU as its host sees it."""

    uuid: str
    index: int = Field(ge=0)
    name: str = ""
    arch: Arch = "cpu"
    memory_mb: int = Field(default=0, ge=0)
    driver: str = ""
    healthy: bool = True
    reason: str = Field(default="", description="why not")


class Inventory(Frozen):
    """What a host offers. `slots` are jobs without a GPU that it runs at a time."""

    arch: Arch
    gpus: tuple[Gpu, ...] = ()
    slots: int = Field(default=1, ge=0)
    sandbox: bool = Field(description="whether jobs are confined; without, only trusted ones run")
    cpus: int = Field(default=1, ge=1)
    memory_mb: int = Field(default=0, ge=0)
    disk_free_mb: int = Field(default=0, ge=0)


Ending = Literal[
    "exited",
    "signalled",
    "timed_out",
    "cancelled",
    "memory",
    "disk",
    "log",
    "processes",
    "not_started",
    "lost",
]
"""How a step's processes ended: by themselves, or which limit the runner enforced."""


class StepRun(Frozen):
    """What the runner saw of one run of a step. `side` and `round` tell runs of an interleaved bench apart."""

    name: Literal["build", "smoke", "bench"]
    side: Literal["head", "base", "base_again"] = "head"
    round: int = Field(default=0, ge=0)
    ending: Ending
    status: int | None = Field(default=None, description="exit status; the signal, negative, where signalled")
    seconds: float = Field(ge=0)
    detail: str = Field(default="", max_length=2_000, description="what could not be started, or which limit")


class Difference(Frozen):
    """Where an answer is not the kept one."""

    case: str
    request: int = Field(ge=0)
    field: str
    expected: str = Field(max_length=500)
    actual: str = Field(max_length=500)


class Comparison(Frozen):
    """A smoke step's raw outputs beside a golden, as the runner compared them; every request is counted once."""

    kept: str
    refused: str = Field(default="", description="why nothing was compared")
    total: int = Field(default=0, ge=0)
    matched: int = Field(default=0, ge=0)
    different: int = Field(default=0, ge=0)
    failed: int = Field(default=0, ge=0)
    other: int = Field(default=0, ge=0)
    differences: tuple[Difference, ...] = Field(default=(), description="the first ones")
    failures: tuple[str, ...] = Field(default=(), description="the first of failed and other, in words")
    notes: tuple[str, ...] = Field(default=(), description="what differs and is no failure, such as versions")

    @property
    def passed(self) -> bool:
        """Whether something ran and all of it matched."""
        return not self.refused and self.total > 0 and self.matched == self.total


class Sample(Frozen):
    """One number of one bench run."""

    name: KpiName
    side: Literal["head", "base", "base_again"]
    round: int = Field(ge=0)
    value: float = Field(gt=0, allow_inf_nan=False)
    unit: str = Field(default="", max_length=20)
    extra: dict[str, float] = Field(default={}, description="beside it, such as percent of copy bandwidth")


PROGRAM_XIDS = frozenset({13, 31, 43, 45})
"""Xids that a wrong kernel causes on a good GPU: engine exception, page fault, a channel reset or cleaned up after either."""


class Notice(Frozen):
    """Evidence of the runner's own about its host; `where` is before, during or after the steps."""

    kind: Literal[
        "lost",
        "no_runner",
        "preflight",
        "gpu_missing",
        "compute",
        "ecc",
        "xid",
        "orphan",
        "memory",
        "disk",
        "source",
        "drained",
        "agent",
    ]
    where: Literal["before", "during", "after"] = "during"
    gpu: str = Field(default="", description="UUID")
    code: int | None = Field(default=None, description="the Xid's number")
    detail: str = Field(default="", max_length=2_000)
    after_seconds: float | None = Field(default=None, description="since the first step began")

    @property
    def is_program_fault(self) -> bool:
        """Whether the program did it to itself, on a good GPU."""
        return self.kind == "xid" and self.code in PROGRAM_XIDS

    @property
    def is_hardware(self) -> bool:
        """Whether it speaks against the GPU."""
        return self.kind in ("gpu_missing", "compute", "ecc", "xid") and not self.is_program_fault


class Artifact(Frozen):
    """A file that a step left, as kept by the service."""

    path: RelativePath
    bytes: int = Field(ge=0)
    sha256: str


class JobReport(Frozen):
    """What a runner reports of a job: evidence, no verdict."""

    runs: tuple[StepRun, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    samples: tuple[Sample, ...] = Field(default=(), max_length=200_000)
    bad_numbers: tuple[str, ...] = Field(default=(), description="what was no number, in words")
    notices: tuple[Notice, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    left_out: tuple[str, ...] = Field(default=(), description="artifacts not kept, and why")
    cancelled: bool = False
    runner: str = ""
    gpus: tuple[str, ...] = Field(default=(), description="UUIDs")
    sandboxed: bool = True
    environment: dict[str, str] = Field(default={}, description="clocks, driver, versions")
    log_bytes: int = Field(default=0, ge=0)
    log_tail: str = Field(default="", description="its last lines")


class KpiVerdict(Frozen):
    """One KPI, head beside base. `ratio` above 1 is worse, whichever direction is better."""

    name: KpiName
    unit: str = ""
    head: float | None = Field(default=None, description="None where only the base has it")
    base: float | None = None
    ratio: float | None = None
    low: float | None = Field(default=None, description="of the 95 % interval of the ratio")
    high: float | None = None
    noise: float | None = Field(default=None, description="the A/A runs' ratio's distance from 1, upper end")
    samples: int = Field(default=0, ge=0, description="pairs")
    extra: dict[str, float] = {}
    verdict: Literal["ok", "worse", "better", "new", "too_few", "reported"]
    detail: str = ""


class JobResult(Frozen):
    """A job's end: its one outcome, why in a line, and what it rests on."""

    outcome: Outcome
    reason: str = Field(max_length=1_000)
    report: JobReport = JobReport()
    kpis: tuple[KpiVerdict, ...] = ()
