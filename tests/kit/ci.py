"""CI in a database for tests: a pull request, its runs and jobs, and runners that hold still."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

import sqlalchemy as sa

from ci_dispatch.model import Arch, Gpu, Inventory, Job, JobSpec, Notice, Step
from ci_dispatch.protocol import Beat, BeatAnswer, Registered, Registration
from service.forge.base import PullState, User
from service.store import job_leases, jobs, pulls, runners
from service.store.ci_tables import lease_gpus
from service.store.database import Database
from service.store.fleet import Decision, assign_due
from service.store.job_leases import Granted, Lease
from service.store.jobs import NewRun

HEAD, BASE = "1" * 40, "0" * 40
REPO = "acme/app"


class MovableClock(Protocol):
    now: datetime

    def __call__(self) -> datetime: ...


def spec(name: str = "smoke", *, gpus: int = 0, arch: Arch | None = None, **values: Any) -> JobSpec:
    step = Step(name="smoke", argv=("true",), timeout=60)
    return JobSpec(name=name, arch=arch or ("sm90" if gpus else "cpu"), gpus=gpus, steps=(step,), **values)


def job(name: str = "smoke", *, gpus: int = 0, number: int = 7, head: str = HEAD, **values: Any) -> Job:
    own = {key: values.pop(key) for key in ("attempt", "author", "trusted") if key in values}
    return Job(
        repo=REPO,
        number=number,
        head_sha=head,
        base_sha=BASE,
        spec=spec(name, gpus=gpus, **values),
        **{"trusted": True, "author": "ada", **own},
    )


def inventory(gpus: int = 0, *, host: str = "h1", slots: int = 1, **values: Any) -> Inventory:
    arch: Arch = "sm90" if gpus else "cpu"
    cards = tuple(Gpu(uuid=f"GPU-{host}-{index}", index=index, arch=arch) for index in range(gpus))
    shown = values.pop("gpus_shown", cards)
    return Inventory(**{"arch": arch, "gpus": shown, "slots": slots, "sandbox": True, **values})


@dataclass
class Ci:
    """The store's functions, each in a transaction of its own, at the clock's moment."""

    database: Database
    clock: MovableClock
    secrets: dict[str, str] = field(default_factory=dict)

    def pull(self, number: int = 7, head: str = HEAD) -> int:
        """A pull request as its push was seen."""
        state = PullState(
            repo=REPO,
            number=number,
            title="",
            body="",
            author=User("ada"),
            head_sha=head,
            head_ref="topic",
            head_repo=REPO,
            base_ref="main",
            base_sha=BASE,
            draft=False,
            state="open",
            merged=False,
            labels=(),
        )
        with self.database.write() as connection:
            return pulls.remember(connection, "local", state, self.clock()).id

    def run(self, *wanted: Job, key: str = "") -> list[int]:
        """Queues jobs of one pull request; their ids."""
        first = wanted[0]
        pull_id = self.pull(first.number, first.head_sha)
        new = NewRun(
            key=key or f"{first.number}/{first.head_sha}",
            pull_id=pull_id,
            head_sha=first.head_sha,
            base_sha=BASE,
            source_sha=first.head_sha,
            qualified_by="approval of grace",
        )
        with self.database.write() as connection:
            run_id = jobs.create_run(connection, new, wanted, self.clock())
            return [row.id for row in jobs.of_run(connection, run_id)]

    def queue(self, *wanted: Job) -> int:
        """Queues jobs and returns the id of the newest."""
        return self.run(*wanted)[-1]

    def runner(self, name: str = "h1", gpus: int = 0, *, listens: bool = True, **values: Any) -> int:
        """A registered runner that listens."""
        shown = inventory(gpus, host=name, **values)
        with self.database.write() as connection:
            token = runners.create_token(connection, self.clock(), timedelta(hours=1))
            asked = Registration(name=name, inventory=shown)
            made: Registered = runners.register(connection, token, asked, self.clock())
        self.secrets[name] = made.secret
        if listens:
            self.listen(made.runner_id)
        return made.runner_id

    def listen(self, runner_id: int, seconds: float = 30) -> None:
        with self.database.write() as connection:
            runners.listen(connection, runner_id, self.clock() + timedelta(seconds=seconds))

    def beat(self, name: str = "h1", gpus: int = 0, **values: Any) -> BeatAnswer:
        """The runner's next beat; `notices`, `leases`, `draining` and the inventory's fields may be given."""
        said = {key: values.pop(key) for key in ("leases", "draining", "notices") if key in values}
        beat = Beat(inventory=inventory(gpus, host=name, **values), **said)
        with self.database.write() as connection:
            runner = runners.authenticate(connection, self.secrets[name])
            return runners.beat(connection, runner, beat, self.clock())

    def assign(self) -> Decision:
        return assign_due(self.database, self.clock)

    def fetch(self, runner_id: int) -> Granted | None:
        with self.database.write() as connection:
            return job_leases.fetch(connection, runner_id, self.clock())

    def granted(self, runner_id: int) -> Granted:
        """Assigns and fetches; there must be something."""
        self.assign()
        granted = self.fetch(runner_id)
        assert granted is not None
        return granted

    def lease(self, granted: Granted) -> Lease:
        with self.database.read() as connection:
            return job_leases.find(connection, granted.lease_id, granted.token)

    def keep(self, granted: Granted, step: str = "smoke") -> bool:
        """A beat of the lease; whether the job should stop."""
        with self.database.write() as connection:
            lease = job_leases.find(connection, granted.lease_id, granted.token)
            return job_leases.beat(connection, lease, step, self.clock())

    def job(self, job_id: int) -> jobs.StoredJob:
        with self.database.read() as connection:
            return jobs.get(connection, job_id)

    def states(self, job_ids: Sequence[int]) -> list[str]:
        return [self.job(job_id).state.value for job_id in job_ids]

    def notices(self, job_id: int) -> list[Notice]:
        with self.database.read() as connection:
            report = jobs.report_of(connection, job_id)
        return [] if report is None else list(report.notices)

    def held_gpus(self) -> list[str]:
        """UUIDs under open leases."""
        with self.database.read() as connection:
            held = sa.select(lease_gpus.c.uuid).where(lease_gpus.c.state == "open")
            return sorted(connection.execute(held).scalars())
