"""How soon a maintainer's words do something: a whole service, a real runner, a job that says what time it is.

The clock is the machine's own: service, runner and job share it.
"""

from __future__ import annotations

import getpass
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from service.demo.ci import running_runner, say
from service.demo.play import REPO, Stage, running_service
from service.runner_api.files import CiFiles
from service.store import jobs, pulls
from service.store.jobs import StoredJob

_POLICY = """\
ci:
  mode: runner
  jobs:
    - name: clock
      steps:
        - name: build
          argv: [sh, -c, 'for i in 1 2 3 4 5; do date +TICK%s.%N; sleep 0.3; done']
          timeout: 60
"""
_TICK = re.compile(rb"TICK(\d+\.\d+)")
_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Words:
    """Milliseconds. `started` is from a comment's webhook to the first output of its job's first step; `visible` from a
    line's printing to its being in the service's log."""

    comments: int
    started: tuple[float, ...]
    visible: tuple[float, ...]

    def render(self) -> str:
        """A Markdown table."""
        rows = [
            (f"comment to first step, idle runner, {self.comments} comments", self.started),
            (f"log line printed to visible, {len(self.visible)} lines", self.visible),
        ]
        lines = ["| ms | p50 | p95 | max |", "|---|--:|--:|--:|"]
        for name, values in rows:
            cells = np.quantile(values, (0.5, 0.95, 1.0))
            lines.append(f"| {name} | {' | '.join(f'{cell:.0f}' for cell in cells)} |")
        return "\n".join(lines)


def run(comments: int = 20) -> Words:
    """Says `/ci run` again and again to a service with an idle runner; one comment more comes first, unmeasured."""
    with tempfile.TemporaryDirectory(prefix="whitesmoke-ci-") as name:
        folder = Path(name)
        repository = folder / "repository"
        _make(repository)
        with running_service(folder, repository) as stage, running_runner(stage, folder):
            number = stage.forge.as_user("ada").open_pull(REPO, "pull", "main", title="A change").number
            stage.happen("opened", number)
            measured = [_ask(stage, folder, number, turn) for turn in range(comments + 1)][1:]
    started = tuple(1e3 * first for first, _ in measured)
    return Words(comments, started, tuple(1e3 * delay for _, delays in measured for delay in delays))


def _ask(stage: Stage, folder: Path, number: int, turn: int) -> tuple[float, list[float]]:
    """Seconds to the first output, and from each line's printing to its being kept."""
    files = CiFiles(folder / "data")
    asked = time.time()
    say(stage, number, getpass.getuser(), "/ci run clock")
    deadline = time.monotonic() + _WAIT_SECONDS
    seen: dict[float, float] = {}
    while True:
        job = _job(stage, number, turn)
        if job is not None:
            for tick in _TICK.findall(files.read_log(job.id)):
                seen.setdefault(float(tick), time.time())
            if job.outcome:
                break
        if time.monotonic() > deadline:
            raise TimeoutError(f"job {turn + 1} did not end; see {folder}")
        time.sleep(0.01)
    return min(seen) - asked, [at - printed for printed, at in seen.items()]


def _job(stage: Stage, number: int, turn: int) -> StoredJob | None:
    head = stage.forge.pull(REPO, number).head_sha
    with stage.database.read() as connection:
        pull = pulls.find(connection, "local", REPO, number)
        found: Sequence[StoredJob] = jobs.of_pull(connection, pull.id, head) if pull is not None else ()
    return found[turn] if len(found) > turn else None


def _make(repository: Path) -> None:
    repository.mkdir()
    (repository / ".whitesmoke.yml").write_text(_POLICY, "utf-8")
    for command in (
        ("init", "--quiet", "--initial-branch=main"),
        ("add", "--all"),
        ("commit", "--quiet", "--message=base"),
        ("switch", "--quiet", "--create=pull"),
        ("commit", "--quiet", "--allow-empty", "--message=change"),
        ("switch", "--quiet", "main"),
    ):
        identity = ("-c", "user.name=Ada", "-c", "user.email=ada@localhost")
        subprocess.run(["git", *identity, *command], cwd=repository, check=True)
