"""Jobs that run again: after an outcome that is nobody's fault, or on somebody's word. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from enum import StrEnum

from ci_dispatch.model import Frozen, Inventory, Job, JobResult, JobSpec, Outcome
from ci_dispatch.plan import (
    NO_PATHS,
    Attempt,
    Change,
    Lacking,
    Matches,
    concerns,
    is_at,
    lacking,
    new_job,
    newest,
    passed_before,
)
from ci_dispatch.policy import CiPolicy

BY_ITSELF = (Outcome.CODE, Outcome.GOLDEN, Outcome.PERF)
"""What the change did; another attempt would only hide it."""


class Left(StrEnum):
    """Why a job does not run."""

    OPEN = "open"
    PASSED = "passed"
    BY_ITSELF = "by_itself"
    NO_PATHS = "no_paths"
    NEVER_RAN = "never_ran"


class LeftOut(Frozen):
    """A job that does not run, and why. `outcome` is its last, where it has one."""

    name: str
    why: Left
    outcome: Outcome | None = None

    @property
    def sentence(self) -> str:
        match self.why:
            case Left.OPEN:
                return f"{self.name} waits or runs already"
            case Left.PASSED:
                return f"{self.name} has passed; `/ci run {self.name}` runs it again"
            case Left.BY_ITSELF:
                return f"{self.name} ended with {self.outcome}, which is the change's own; `/ci run {self.name}` runs it again"
            case Left.NO_PATHS:
                return f"{self.name} was {NO_PATHS}; `/ci run {self.name}` runs it all the same"
            case Left.NEVER_RAN:
                return f"{self.name} has not run for this commit; `/ci run {self.name}` runs it"


class Unknown(Frozen):
    """A name that no job of the policy has, and those that may have been meant, closest first."""

    name: str
    close: tuple[str, ...] = ()
    known: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        if self.close:
            return f"no job is named {self.name}; did you mean {' or '.join(self.close)}?"
        return f"no job is named {self.name}; there are {', '.join(self.known)}"


class Started(Frozen):
    """A job that runs again; `after` is how it ended last, None where it never ran for this commit."""

    name: str
    after: Outcome | None = None


class Answer(Frozen):
    """What a command starts, what it leaves and why. Each job of the policy that was meant is in one of the two."""

    jobs: tuple[Job, ...] = ()
    started: tuple[Started, ...] = ()
    left: tuple[LeftOut, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    lacking: tuple[Lacking, ...] = ()


def retry(job: Job, result: JobResult, history: Iterable[Attempt]) -> Job | None:
    """The next attempt at a job that ended with `infra` or `hardware`, up to its `retries`; None where there is none.

    One that found no runner in time is not tried again: it would only wait as long once more, beyond the wait that its owner allowed.
    `history` holds the job's other attempts at this commit; where a later one is among them, somebody was faster.
    """
    if not result.outcome.is_retried or any(notice.kind == "no_runner" for notice in result.report.notices):
        return None
    others = [
        attempt for attempt in history if _same(attempt.job, job) and attempt.job.attempt != job.attempt
    ]
    if any(attempt.job.attempt > job.attempt for attempt in others):
        return None
    failed = 1 + sum(attempt.outcome is not None and attempt.outcome.is_retried for attempt in others)
    if failed > job.spec.retries:
        return None
    return job.model_copy(update={"attempt": job.attempt + 1})


def run_again(
    policy: CiPolicy,
    change: Change,
    names: Sequence[str],
    matches: Matches,
    history: Sequence[Attempt],
    inventories: Sequence[Inventory] = (),
) -> Answer:
    """`/ci run [job ...]`. Named jobs run whatever changed and however they ended, unless they are open.

    Without names those run whose paths changed and that have not passed.
    """
    found = {spec.name.casefold(): spec for spec in policy.jobs}
    known = [spec.name for spec in policy.jobs]
    unknown = [_unknown(name, known) for name in dict.fromkeys(names) if name.casefold() not in found]
    chosen = dict.fromkeys(name.casefold() for name in names if name.casefold() in found)
    specs = [found[name] for name in chosen] if names else list(policy.jobs)
    jobs: list[Job] = []
    started: list[Started] = []
    left: list[LeftOut] = []
    for spec in specs:
        before = newest(history, change, spec.name)
        last = before.outcome if before is not None else None
        if before is not None and last is None:
            left.append(LeftOut(name=spec.name, why=Left.OPEN))
        elif not names and (last is Outcome.PASSED or _reused(spec, before, change, history)):
            left.append(LeftOut(name=spec.name, why=Left.PASSED, outcome=Outcome.PASSED))
        elif not names and before is None and not concerns(spec, change, matches):
            left.append(LeftOut(name=spec.name, why=Left.NO_PATHS))
        else:
            jobs.append(new_job(spec, change, matches, history))
            started.append(Started(name=spec.name, after=last))
    return Answer(
        jobs=tuple(jobs),
        started=tuple(started),
        left=tuple(left),
        unknown=tuple(unknown),
        lacking=lacking(jobs, inventories),
    )


def retry_again(
    policy: CiPolicy,
    change: Change,
    matches: Matches,
    history: Sequence[Attempt],
    inventories: Sequence[Inventory] = (),
) -> Answer:
    """`/ci retry`, and the button: what ended through no doing of the change, or was stopped, runs again at this commit."""
    jobs: list[Job] = []
    started: list[Started] = []
    left: list[LeftOut] = []
    for spec in policy.jobs:
        before = newest(history, change, spec.name)
        if _reused(spec, before, change, history):
            left.append(LeftOut(name=spec.name, why=Left.PASSED, outcome=Outcome.PASSED))
        elif before is None:
            why = Left.NEVER_RAN if concerns(spec, change, matches) else Left.NO_PATHS
            left.append(LeftOut(name=spec.name, why=why))
        elif before.outcome is None:
            left.append(LeftOut(name=spec.name, why=Left.OPEN))
        elif before.outcome is Outcome.PASSED or before.outcome in BY_ITSELF:
            why = Left.PASSED if before.outcome is Outcome.PASSED else Left.BY_ITSELF
            left.append(LeftOut(name=spec.name, why=why, outcome=before.outcome))
        else:
            jobs.append(new_job(spec, change, matches, history))
            started.append(Started(name=spec.name, after=before.outcome))
    return Answer(
        jobs=tuple(jobs), started=tuple(started), left=tuple(left), lacking=lacking(jobs, inventories)
    )


def _reused(spec: JobSpec, before: Attempt | None, change: Change, history: Sequence[Attempt]) -> bool:
    """Whether it did not run for this commit because the same files had passed."""
    return before is None and passed_before(spec, change, history) is not None


def _same(one: Job, other: Job) -> bool:
    """Whether both are attempts at one job of one commit."""
    change = Change(repo=one.repo, number=one.number, head_sha=one.head_sha, base_sha=one.base_sha)
    return is_at(other, change, one.spec.name)


def _unknown(name: str, known: Sequence[str]) -> Unknown:
    folded = {one.casefold(): one for one in known}
    close = difflib.get_close_matches(name.casefold()[:100], folded, n=3, cutoff=0.6)
    return Unknown(name=name, close=tuple(folded[one] for one in close), known=tuple(known))
