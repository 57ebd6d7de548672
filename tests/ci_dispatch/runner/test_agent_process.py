"""The real command in a process of its own, with the real executor: signals, SIGKILL, what is left behind, its memory."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ci_dispatch.runner.leftovers import find_leftovers, sweep
from tests.kit.runner_service import RunnerService, job, served

ROOT = Path(__file__).parents[3]


@pytest.fixture
def service() -> Iterator[RunnerService]:
    with served() as state:
        state.token()
        yield state


class Command:
    """`whitesmoke-runner`, and what it says."""

    def __init__(self, service: RunnerService, folder: Path, *arguments: str, **environment: str) -> None:
        self.log = folder.with_suffix(".log")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "ci_dispatch.runner.cli", "--url", service.url, "--arch", "cpu"),
                *("--folder", str(folder), "--name", "host-1", *arguments),
            ],
            cwd=ROOT,
            env={
                **os.environ,
                "WHITESMOKE_RUNNER_TOKEN": "registration-token",
                "PYTHONPATH": str(ROOT),
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.log.open("ab"),
            start_new_session=True,
        )

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, seconds: float = 60.0) -> int:
        return self.process.wait(seconds)

    def said(self) -> str:
        return self.log.read_text()


@contextmanager
def command(service: RunnerService, folder: Path, *arguments: str, **environment: str) -> Iterator[Command]:
    current = Command(service, folder, *arguments, **environment)
    try:
        yield current
    finally:
        if current.process.poll() is None:
            current.process.kill()
            current.process.wait()
        sweep(folder / "jobs")


def shell(script: str, name: str = "build", **spec: object):
    return job(name, argv=("sh", "-c", script), **spec)


def log(service: RunnerService, number: int = 1) -> str:
    return bytes(service.lease(number).log).decode() if number in service.leases else ""


def test_a_job_runs_from_claim_to_report(service: RunnerService, tmp_path: Path) -> None:
    with command(service, tmp_path / "r", "--once") as runner:
        service.offer(shell("cat README; echo done > $OUT/result.txt"))
        assert runner.end() == 0
    report = service.lease(1).reports[0]
    assert [(one.ending, one.status) for one in report.runs] == [("exited", 0)]
    assert "head" in log(service)
    assert service.lease(1).artifacts
    assert service.calls[-1] == "deregister"
    assert list((tmp_path / "r/jobs").iterdir()) == []


def test_it_ends_at_once_when_idle_and_comes_back_without_a_token(
    service: RunnerService, tmp_path: Path
) -> None:
    with command(service, tmp_path / "r") as runner:
        service.wait_for(lambda: "claim" in service.calls)
        runner.signal(signal.SIGTERM)
        assert runner.end() == 0
    assert service.calls[-1] == "deregister"
    with command(service, tmp_path / "r", WHITESMOKE_RUNNER_TOKEN="") as runner:
        before = len(service.calls)
        service.wait_for(lambda: "claim" in service.calls[before:])
        runner.signal(signal.SIGTERM)
        assert runner.end() == 0
    assert service.calls.count("register") == 1


def test_sigterm_lets_the_running_step_end(service: RunnerService, tmp_path: Path) -> None:
    with command(service, tmp_path / "r") as runner:
        service.offer(shell("echo begun; sleep 2; echo ended"))
        service.wait_for(lambda: "begun" in log(service))
        runner.signal(signal.SIGTERM)
        assert runner.end() == 0
    assert "ended" in log(service)
    assert service.lease(1).reports[0].runs[0].status == 0


def test_a_second_sigterm_ends_the_step(service: RunnerService, tmp_path: Path) -> None:
    with command(service, tmp_path / "r") as runner:
        service.offer(shell("echo begun; sleep 300"))
        service.wait_for(lambda: "begun" in log(service))
        runner.signal(signal.SIGTERM)
        time.sleep(0.5)
        runner.signal(signal.SIGTERM)
        assert runner.end() == 0
    report = service.lease(1).reports[0]
    assert [one.kind for one in report.notices] == ["drained"]
    assert find_leftovers(tmp_path / "r/jobs") == []


@pytest.mark.parametrize("sandbox", [True, False])
def test_a_killed_agent_s_job_is_dead_before_the_next_one_offers_anything(
    service: RunnerService, tmp_path: Path, sandbox: bool
) -> None:
    """SIGKILL of the agent, with a daemon of the job that left its session and its parent."""
    flags = () if sandbox else ("--no-sandbox",)
    daemon = "(setsid sh -c 'while :; do sleep 0.1; done' &) ; echo begun; sleep 300"
    with command(service, tmp_path / "r", *flags) as runner:
        service.offer(shell(daemon))
        service.wait_for(lambda: "begun" in log(service))
        runner.signal(signal.SIGKILL)
        runner.end()
    assert not service.lease(1).reports
    with command(service, tmp_path / "r", *flags) as runner:
        service.wait_for(lambda: service.lease(1).reports)
        service.offer(shell("echo second", "second"))
        service.wait_for(lambda: len(service.leases) == 2 and service.lease(2).reports)
        assert find_leftovers(tmp_path / "r/jobs") == []
        assert list((tmp_path / "r/jobs").iterdir()) == []
    assert [one.kind for one in service.lease(1).reports[0].notices] == ["lost"]


def test_the_sweep_finds_daemons_that_hide(tmp_path: Path) -> None:
    """Each holds on to the folder in one way alone, and has left its parent and session."""
    folder = tmp_path / "jobs"
    (folder / "job").mkdir(parents=True)
    hold = folder / "job" / "file"
    hold.write_text("")
    started = [
        subprocess.Popen(["sleep", "300"], cwd=folder / "job", start_new_session=True),
        subprocess.Popen(["sleep", "300"], env={"HOME": f"{folder}/job"}, start_new_session=True),
        subprocess.Popen(["sleep", "300"], stdin=hold.open(), start_new_session=True),
    ]
    stranger = subprocess.Popen(["sleep", "300"], cwd=tmp_path, env={"OTHER": f"{folder}/job"})
    try:
        assert {one.pid for one in find_leftovers(folder)} == {one.pid for one in started}
        sweep(folder)
        assert [one.wait(10) for one in started] == [-signal.SIGKILL] * 3
        assert list(folder.iterdir()) == []
        assert stranger.poll() is None
    finally:
        for one in (*started, stranger):
            one.kill()
            one.wait()


def test_neither_arguments_nor_processes_nor_jobs_show_a_token(
    service: RunnerService, tmp_path: Path
) -> None:
    with command(service, tmp_path / "r") as runner:
        service.offer(shell("env; cat /proc/self/cmdline; cat /proc/$PPID/environ; echo begun; sleep 1"))
        service.wait_for(lambda: "begun" in log(service))
        seen = Path(f"/proc/{runner.process.pid}/cmdline").read_bytes().decode()
        service.wait_for(lambda: service.lease(1).reports)
        runner.signal(signal.SIGTERM)
        runner.end()
    secrets = ("registration-token", "secret-1", "lease-token")
    report = service.lease(1).reports[0].model_dump_json()
    for text in (seen, log(service), runner.said(), report):
        assert not any(secret in text for secret in secrets)


def test_declared_variables_reach_the_job_and_no_others(service: RunnerService, tmp_path: Path) -> None:
    arguments = (
        "--once",
        "--pass",
        "NCCL_NVLS_ENABLE",
        "--pass",
        "NVSHMEM_DISABLE_NVLS=1",
        "--pass",
        "UNSET_HERE",
    )
    with command(service, tmp_path / "r", *arguments, NCCL_NVLS_ENABLE="0", PRIVATE="x") as runner:
        service.offer(shell("env"))
        assert runner.end() == 0
    lines = log(service).splitlines()
    assert {"NCCL_NVLS_ENABLE=0", "NVSHMEM_DISABLE_NVLS=1"} <= set(lines)
    assert not [line for line in lines if line.startswith(("UNSET_HERE", "PRIVATE", "WHITESMOKE_RUNNER"))]
    assert "--pass UNSET_HERE: it is not set here" in runner.said()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--pass", "WHITESMOKE_RUNNER_TOKEN"), "is not passed to jobs"),
        (("--name", "a b"), "is no name for a runner"),
        (("--url", "nowhere"), "is no address of a service"),
    ],
)
def test_a_wrong_argument_is_one_line_that_says_what_to_do(
    service: RunnerService, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    with command(service, tmp_path / "r", *arguments) as runner:
        assert runner.end() == 2
    assert words in runner.said()
    assert "Traceback" not in runner.said()


def test_a_spent_token_is_one_line_that_says_what_to_do(service: RunnerService, tmp_path: Path) -> None:
    service.tokens["registration-token"] = "somebody else's nonce"
    with command(service, tmp_path / "r") as runner:
        assert runner.end() == 2
    assert "whitesmoke runner-token create" in runner.said()
    assert "Traceback" not in runner.said()


def test_two_runners_in_one_folder_are_refused(service: RunnerService, tmp_path: Path) -> None:
    with command(service, tmp_path / "r"):
        service.wait_for(lambda: service.beats)
        second = Command(service, tmp_path / "r")
        assert second.end() == 2
    assert "another runner works in" in second.said()


def test_an_idle_runner_needs_less_than_80_mb(service: RunnerService, tmp_path: Path) -> None:
    with command(service, tmp_path / "r") as runner:
        service.offer(shell("true"))
        service.wait_for(lambda: service.leases and service.lease(1).reports and len(service.beats) > 2)
        status = Path(f"/proc/{runner.process.pid}/status").read_text()
    resident = int(re.search(r"VmRSS:\s*(\d+) kB", status)[1]) // 1024
    assert resident < 80
