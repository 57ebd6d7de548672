"""The real command against the service's real API, each in a process of its own, over SQLite."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ci_dispatch.model import JobReport, Outcome
from service.store import jobs, runners
from service.store.database import Database
from service.store.migrations import upgrade
from tests.ci_dispatch.runner.test_agent_process import ROOT, command
from tests.kit.ci import HEAD, Ci, job
from tests.kit.runner_service import tree


class RealClock:
    @property
    def now(self) -> datetime:
        return datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now


@dataclass
class Api:
    """What a runner's command is given, and a hand on the rows behind it."""

    url: str
    ci: Ci
    folder: Path

    def token(self) -> str:
        with self.ci.database.write() as connection:
            return runners.create_token(connection, self.ci.clock(), timedelta(hours=1))

    def state(self, job_id: int) -> str:
        return self.ci.job(job_id).state.value

    def report(self, job_id: int) -> JobReport:
        with self.ci.database.read() as connection:
            report = jobs.report_of(connection, job_id)
        assert report is not None
        return report

    def log(self, job_id: int) -> str:
        file = self.folder / f"ci/logs/{job_id}.log"
        return file.read_text() if file.exists() else ""


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    url = f"sqlite:///{tmp_path / 'ci.db'}"
    database = Database(url)
    upgrade(database)
    data = tmp_path / "data"
    process = subprocess.Popen(
        [sys.executable, "-m", "service.bench.ci_service", url, str(data)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "service.log").open("wb"),
        text=True,
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        wait_for(lambda: (data / "ci/sources").is_dir())
        (data / f"ci/sources/{HEAD}.tar.gz").write_bytes(tree({"README": b"the head\n"}))
        yield Api(f"http://127.0.0.1:{port}", Ci(database, RealClock()), data)
    finally:
        process.terminate()
        process.communicate(timeout=30)
        database.close()


def wait_for(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


def queue(api: Api, script: str, name: str = "smoke") -> int:
    wanted = job(name, disk_mb=16)
    step = wanted.spec.steps[0].model_copy(update={"argv": ("sh", "-c", script)})
    spec = wanted.spec.model_copy(update={"steps": (step,)})
    return api.ci.queue(wanted.model_copy(update={"spec": spec}))


def test_a_queued_job_runs_and_its_log_report_and_artifact_arrive(api: Api, tmp_path: Path) -> None:
    job_id = queue(api, "cat README; echo result > $OUT/result.txt")
    with command(api, tmp_path / "r", "--once", WHITESMOKE_RUNNER_TOKEN=api.token()) as runner:
        assert runner.end() == 0, runner.said()
    assert api.state(job_id) == "reported"
    report = api.report(job_id)
    assert [(one.ending, one.status) for one in report.runs] == [("exited", 0)]
    assert report.runner == "host-1"
    assert "the head" in api.log(job_id)
    (artifact,) = report.artifacts
    assert (api.folder / f"ci/artifacts/{job_id}" / artifact.path).read_text() == "result\n"


def test_a_drained_runner_comes_back_with_its_secret(api: Api, tmp_path: Path) -> None:
    token = api.token()
    with command(api, tmp_path / "r", WHITESMOKE_RUNNER_TOKEN=token) as runner:
        wait_for(lambda: "offers 0 GPUs" in runner.said())
        runner.signal(signal.SIGTERM)
        assert runner.end() == 0
    job_id = queue(api, "true")
    with command(api, tmp_path / "r", "--once", WHITESMOKE_RUNNER_TOKEN=token) as runner:
        assert runner.end() == 0, runner.said()
    assert api.state(job_id) == "reported"


def test_a_cancelled_job_ends(api: Api, tmp_path: Path) -> None:
    with command(api, tmp_path / "r", WHITESMOKE_RUNNER_TOKEN=api.token()) as runner:
        job_id = queue(api, "echo begun; sleep 300")
        wait_for(lambda: "begun" in api.log(job_id))
        with api.ci.database.write() as connection:
            jobs.cancel(connection, job_id, Outcome.CANCELLED, api.ci.clock())
        wait_for(lambda: api.state(job_id) in ("reported", "finished"))
        runner.signal(signal.SIGTERM)
        assert runner.end() == 0
    assert api.report(job_id).cancelled


def test_a_killed_agent_s_job_is_known_to_be_lost_when_it_is_back(api: Api, tmp_path: Path) -> None:
    token = api.token()
    with command(api, tmp_path / "r", WHITESMOKE_RUNNER_TOKEN=token) as runner:
        job_id = queue(api, "echo begun; sleep 300")
        wait_for(lambda: "begun" in api.log(job_id))
        runner.signal(signal.SIGKILL)
        runner.end()
    with command(api, tmp_path / "r", WHITESMOKE_RUNNER_TOKEN=token) as runner:
        wait_for(lambda: api.state(job_id) == "reported")
        runner.signal(signal.SIGTERM)
        assert runner.end() == 0
    assert [one.kind for one in api.report(job_id).notices] == ["lost"]
