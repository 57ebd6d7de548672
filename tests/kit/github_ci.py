"""CI on the GitHub stand-in: people's words, the service's part step by step, and a runner that does as it is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from ci_dispatch.model import Inventory, JobReport, Notice, StepRun
from ci_dispatch.protocol import Beat, Grant, Registration
from service.runner_api.desk import Desk
from service.runner_api.files import CiFiles
from service.runner_api.limits import Limits
from service.store import jobs, pulls, runners
from service.store.fleet import assign_due
from service.store.jobs import StoredJob
from service.store.runners import Runner
from service.worker.keeper import tend
from service.worker.lanes import work_off
from service.worker.reconciler import reconcile
from service.worker.station import CI_LANE, QUICK_LANE, REVIEW_LANE
from tests.kit.github_service import GitHubService
from tests.kit.rounds import HEAD, PATH
from tests.standin.github import Pull
from tests.standin.github.state import CheckRun, IssueComment, Review

PHRASE = "lgtm ready to ci"
CI_MARK = "<!-- whitesmoke:ci "
JOBS = """
  jobs:
    - name: smoke
      paths: ["cache/**"]
      steps: [{name: smoke, argv: ["true"], timeout: 60}]
    - name: docs
      paths: ["docs/**"]
      steps: [{name: build, argv: ["true"], timeout: 10}]
"""
RUNNER = "ci:\n  mode: runner" + JOBS
NATIVE = "ci: {mode: native}\n"
PASSED = JobReport(runs=(StepRun(name="smoke", ending="exited", status=0, seconds=1.0),))
FAILED = JobReport(runs=(StepRun(name="smoke", ending="exited", status=1, seconds=1.0),))
LOST = JobReport(notices=(Notice(kind="agent", detail="the agent was killed"),))


@dataclass
class ScriptedRunner:
    """A host with one slot, that claims and reports as a runner does, but runs nothing."""

    desk: Desk
    me: Runner
    inventory: Inventory
    taken: list[Grant] = field(default_factory=list)

    def take(self) -> Grant | None:
        """Listens; the job that it is given, where there is one."""
        self.desk.beat(self.me, Beat(inventory=self.inventory))
        self.desk.listen(self.me, 30)
        assign_due(self.desk.database, self.desk.clock)
        grant = self.desk.fetch(self.me.id)
        if grant is not None:
            self.taken.append(grant)
        return grant

    def begin(self) -> Grant:
        """Takes a job, which must be there, and is in its first step."""
        grant = self.take()
        assert grant is not None, "no job is given out"
        self.desk.beat_lease(grant.lease_id, grant.token, grant.job.spec.steps[0].name)
        self.desk.append_log(self.desk.find(grant.lease_id, grant.token), grant.token, 0, b"serving\n")
        return grant

    def is_stopped(self, grant: Grant) -> bool:
        """Whether its beat is told to stop the job."""
        return self.desk.beat_lease(grant.lease_id, grant.token, "smoke").cancel

    def report(self, grant: Grant, report: JobReport = PASSED) -> None:
        self.desk.report(grant.lease_id, grant.token, report.model_dump_json().encode())


class GitHubCi:
    """acme/cache with CI. `ada` opens pull requests, `acme` owns the repository, `bob` may write, `eve` may not."""

    def __init__(self, service: GitHubService, policy: str) -> None:
        self.service = service
        self.hub, self.repo, self.clock = service.hub, service.repo, service.clock
        self.database = service.database
        self.repo.push("main", {".whitesmoke.yml": policy})
        self.repo.grant("bob", "write")
        self.desk = Desk(self.database, CiFiles(service.station.data), lambda: None, Limits(), self.clock)

    # People. GitHub's times are whole seconds: what comes later must be later by one.

    def open(self, **options: Any) -> Pull:
        self.hub.pass_time(2)
        options = {"files": {PATH: HEAD[PATH]}, "title": "Batch the writes", **options}
        pull = self.repo.open_pull(**options)
        self.settle()
        return pull

    def say(self, pull: Pull, login: str, body: str = PHRASE) -> IssueComment:
        self.hub.pass_time(2)
        comment = pull.comment(login, body)
        self.settle()
        return comment

    def review(self, pull: Pull, login: str, state: str = "APPROVED", **values: Any) -> Review:
        self.hub.pass_time(2)
        review = pull.review(login, state, **values)
        self.settle()
        return review

    def push(self, pull: Pull, text: str = "# more\n", path: str = PATH) -> str:
        self.hub.pass_time(2)
        sha = pull.push({path: HEAD.get(path, "") + text})
        self.settle()
        return sha

    def press(self, pull: Pull, job: str, button: str, login: str) -> None:
        self.repo.press(self.check(pull, job), button, login)
        self.settle()

    # The service

    def settle(self, wait: float = 5, *, reviews: bool = False) -> None:
        """Works off everything, with what GitHub tells of it in turn, over so many seconds."""
        for _ in range(5):
            self.hub.hooks.settle()
            self.clock.forward(wait / 5)
            tend(self.service.station)
            for lane in (QUICK_LANE, *((REVIEW_LANE,) if reviews else ()), CI_LANE):
                work_off(self.service.station, lane)
        self.hub.hooks.settle()
        work_off(self.service.station, QUICK_LANE)

    def read_through(self) -> None:
        """As the keeper does on start; everything that happened counts as missed."""
        reconcile(self.service.station, [self.repo.name], self.clock() - timedelta(days=30))
        self.settle()

    def restart(self) -> None:
        """The worker is dead and another takes its place, after all leases ran out."""
        self.service.station = replace(self.service.station, owner="another", forge=self.service.forge)
        self.settle(600)

    @contextmanager
    def runner(self, name: str = "one") -> Iterator[ScriptedRunner]:
        inventory = Inventory(arch="cpu", sandbox=True)
        self.desk.scribe.start()
        try:
            with self.database.write() as connection:
                token = runners.create_token(connection, self.clock(), ttl=timedelta(hours=1))
            made = self.desk.register(token, Registration(name=name, inventory=inventory))
            yield ScriptedRunner(self.desk, self.desk.who(made.secret), inventory)
        finally:
            self.desk.scribe.close()

    # What is seen

    def jobs(self, pull: Pull, head_sha: str = "") -> list[StoredJob]:
        """All attempts for a head, the current one unless told otherwise."""
        with self.database.read() as connection:
            known = pulls.find(connection, "github", self.repo.name, pull.number)
            return [] if known is None else jobs.of_pull(connection, known.id, head_sha or pull.head_sha)

    def ended(self, pull: Pull, head_sha: str = "") -> list[tuple[str, str]]:
        """(job, outcome) of all attempts, "" for one that is open."""
        return [(one.name, one.outcome or "") for one in self.jobs(pull, head_sha)]

    def check(self, pull: Pull, job: str, head_sha: str = "") -> CheckRun:
        """The one check of a job."""
        (found,) = [one for one in self.checks(pull, head_sha) if one.name == f"whitesmoke/ci/{job}"]
        return found

    def checks(self, pull: Pull, head_sha: str = "") -> list[CheckRun]:
        """Of CI, oldest first."""
        found = self.repo.checks(head_sha or pull.head_sha)
        return [one for one in found if one.name.startswith("whitesmoke/ci/")]

    def report(self, pull: Pull) -> str:
        """CI's comment; "" before there is one. There is never a second."""
        found = [one.body for one in self.service.comments(pull) if one.body.startswith(CI_MARK)]
        assert len(found) < 2, f"{len(found)} comments on CI"
        return found[0] if found else ""

    def answers(self, pull: Pull) -> list[str]:
        """What else the bot said, oldest first."""
        return [one.body for one in self.service.comments(pull) if not one.body.startswith(CI_MARK)]

    def look(self) -> None:
        """Counts all that was left anywhere as seen: tests look at what they are about."""
        for number in self.repo.state.pulls:
            pull = self.repo.pull(number)
            _ = pull.comments, pull.reviews, pull.inline_comments
        for suite in self.repo.state.suites:
            self.repo.checks(suite.head_sha)
        for status in list(self.repo.state.statuses):
            self.repo.statuses(status.sha)
