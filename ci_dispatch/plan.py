"""Which jobs run for a commit: a pure decision over the policy, the changed paths and what ran before.

Who may start them is the gate's question, when and where is the lease's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ci_dispatch.model import Frozen, Inventory, Job, JobSpec, Outcome
from ci_dispatch.policy import CiPolicy

Matches = Callable[[str, Sequence[str]], bool]
"""Whether any of the globs matches the path; with `!` the last one that matches decides."""

NO_PATHS = "skipped: no matching paths"


class Change(Frozen):
    """What is tested, of which pull request.

    Attributes:
        tested_tree: the tree of the tested files, by which results are known again; empty where it is not known.
        author: on whose account the jobs count.
        trusted: not from a fork.
        paths: all that changed, a renamed file's old path among them; None where nobody could say, and then every job runs.
    """

    repo: str
    number: int
    head_sha: str
    base_sha: str
    tested_tree: str = ""
    author: str = ""
    trusted: bool = False
    paths: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """A job that was started before, for this pull request or another. `outcome` is None while it is open."""

    job: Job
    tested_tree: str
    outcome: Outcome | None


class Skipped(Frozen):
    """A job that does not run and reports success all the same, as a merge may wait for it."""

    name: str
    required: bool
    reason: str = NO_PATHS


class Reused(Frozen):
    """A job that passed for exactly these files before, and why that counts here."""

    name: str
    required: bool
    key: str

    @property
    def reason(self) -> str:
        return f"passed: the same files passed as {self.key}"


class Standing(Frozen):
    """A job that was already started for this commit and is left alone. `outcome` is None while it is open."""

    name: str
    key: str
    outcome: Outcome | None


class Lacking(Frozen):
    """A job that no known runner could take; it waits all the same, since one may come."""

    name: str
    reason: str


class Plan(Frozen):
    """Every job of the policy is in exactly one of `jobs`, `skipped`, `reused` and `standing`."""

    jobs: tuple[Job, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    reused: tuple[Reused, ...] = ()
    standing: tuple[Standing, ...] = ()
    lacking: tuple[Lacking, ...] = ()

    @property
    def successes(self) -> tuple[tuple[str, str], ...]:
        """(name, why) of each job that reports success without running."""
        skipped = tuple((one.name, one.reason) for one in self.skipped)
        return skipped + tuple((one.name, one.reason) for one in self.reused)


def plan(
    policy: CiPolicy,
    change: Change,
    matches: Matches,
    inventories: Iterable[Inventory] = (),
    history: Sequence[Attempt] = (),
) -> Plan:
    """What runs for a commit that qualified.

    A job that stood for this head and base before stands, however it ended, unless it was superseded: a head that came back needs
    its jobs again. `history` holds the attempts of this pull request and those of others with the same tested tree.
    """
    offers = tuple(inventories)
    jobs: list[Job] = []
    skipped: list[Skipped] = []
    reused: list[Reused] = []
    standing: list[Standing] = []
    for spec in policy.jobs:
        before = newest(history, change, spec.name)
        if before is not None and before.outcome is not Outcome.SUPERSEDED:
            standing.append(Standing(name=spec.name, key=before.job.key, outcome=before.outcome))
        elif not concerns(spec, change, matches):
            skipped.append(Skipped(name=spec.name, required=spec.required))
        elif (same := passed_before(spec, change, history)) is not None:
            reused.append(Reused(name=spec.name, required=spec.required, key=same.job.key))
        else:
            jobs.append(new_job(spec, change, matches, history))
    return Plan(
        jobs=tuple(jobs),
        skipped=tuple(skipped),
        reused=tuple(reused),
        standing=tuple(standing),
        lacking=lacking(jobs, offers),
    )


def concerns(spec: JobSpec, change: Change, matches: Matches) -> bool:
    """Whether something changed that the job is for."""
    return change.paths is None or any(matches(path, spec.paths) for path in change.paths)


def passed_before(spec: JobSpec, change: Change, history: Iterable[Attempt]) -> Attempt | None:
    """An attempt that says all that another would: it passed with the same declaration on the same files."""
    if not change.tested_tree:
        return None
    beside_base = bool(spec.goldens) or spec.perf is not None
    for attempt in history:
        job = attempt.job
        if (
            attempt.outcome is Outcome.PASSED
            and attempt.tested_tree == change.tested_tree
            and job.repo == change.repo
            and job.spec == spec
            and (job.base_sha == change.base_sha or not beside_base)
            # What a fork's job left in its caches may have helped it to pass.
            and (job.trusted or not change.trusted)
        ):
            return attempt
    return None


def newest(history: Iterable[Attempt], change: Change, name: str) -> Attempt | None:
    """The last attempt at this job for exactly this head and base."""
    attempts = (attempt for attempt in history if is_at(attempt.job, change, name))
    return max(attempts, key=lambda attempt: attempt.job.attempt, default=None)


def is_at(job: Job, change: Change, name: str) -> bool:
    """Whether it is this job of this commit, whatever the attempt."""
    commits = job.head_sha, job.base_sha
    return _is_of(job, change) and job.spec.name == name and commits == (change.head_sha, change.base_sha)


def new_job(spec: JobSpec, change: Change, matches: Matches, history: Iterable[Attempt]) -> Job:
    """The next attempt at a job, as the policy declares it now."""
    before = newest(history, change, spec.name)
    return Job(
        repo=change.repo,
        number=change.number,
        head_sha=change.head_sha,
        base_sha=change.base_sha,
        spec=spec,
        attempt=before.job.attempt + 1 if before is not None else 1,
        author=change.author,
        trusted=change.trusted,
        harness_changed=_changes_harness(spec, change, matches),
    )


def lacking(jobs: Iterable[Job], inventories: Sequence[Inventory]) -> tuple[Lacking, ...]:
    """The jobs that no runner known now could ever take, in words."""
    found = ((job.spec.name, _lack(job, inventories)) for job in jobs)
    return tuple(Lacking(name=name, reason=reason) for name, reason in found if reason)


def _lack(job: Job, inventories: Sequence[Inventory]) -> str:
    spec = job.spec
    what = f"{spec.gpus} x {spec.arch} on one host" if spec.gpus else "a slot for jobs without a GPU"
    room = [(_room(inventory, spec), inventory.sandbox) for inventory in inventories]
    needed = spec.gpus or 1
    if any(free >= needed and (sandbox or job.trusted) for free, sandbox in room):
        return ""
    if any(free >= needed for free, _ in room):
        return f"no runner offers {what} in a sandbox, which a fork's job needs"
    most = max((free for free, _ in room), default=0)
    return f"no runner offers {what}" + (f"; the most is {most}" if most else "")


def _room(inventory: Inventory, spec: JobSpec) -> int:
    """How many of the job's GPUs, or slots, the host has when nothing runs there."""
    if not spec.gpus:
        return inventory.slots
    return sum(gpu.healthy for gpu in inventory.gpus) if inventory.arch == spec.arch else 0


def _is_of(job: Job, change: Change) -> bool:
    return (job.repo, job.number) == (change.repo, change.number)


def _changes_harness(spec: JobSpec, change: Change, matches: Matches) -> bool:
    if spec.perf is None or not spec.perf.harness:
        return False
    return change.paths is None or any(matches(path, spec.perf.harness) for path in change.paths)
