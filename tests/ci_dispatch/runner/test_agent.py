"""The agent against a real HTTP service: claims, GPUs, logs, cancelling, draining."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci_dispatch.model import JobReport
from ci_dispatch.runner import lease
from ci_dispatch.runner.errors import Refused
from tests.kit.fake_nvml import FakeNvml, four
from tests.kit.runner_agents import Steered, build_host, running
from tests.kit.runner_service import RunnerService, job, served


@pytest.fixture
def service() -> Iterator[RunnerService]:
    with served() as state:
        yield state


def gpu_job(name: str, gpus: int):
    return job(name, arch="sm90", gpus=gpus)


def test_a_job_runs_and_its_report_names_runner_and_gpus(service: RunnerService, tmp_path: Path) -> None:
    execute = Steered.opened(b"hello\n")
    host = build_host(tmp_path, arch="sm90", slots=0, nvml=FakeNvml(*four()))
    with running(service, host, execute):
        service.offer(gpu_job("tp2", 2), "GPU-b", "GPU-c")
        service.wait_for(lambda: service.leases and service.lease(1).reports)
    report = service.lease(1).reports[0]
    assert (report.runner, report.gpus, report.notices) == ("host-1", ("GPU-b", "GPU-c"), ())
    assert execute.entered == [("tp2", ("GPU-b", "GPU-c"))]
    assert bytes(service.lease(1).log) == b"hello\n"
    assert report.environment["driver"] == "580.95.05"
    assert report.environment["gpu1.sm_mhz"] == "1980"
    assert not (tmp_path / "leases/1").exists()


def test_jobs_on_disjoint_gpus_run_side_by_side(service: RunnerService, tmp_path: Path) -> None:
    execute = Steered()
    host = build_host(tmp_path, arch="sm90", slots=0, nvml=FakeNvml(*four()))
    with running(service, host, execute):
        service.offer(gpu_job("one", 2), "GPU-a", "GPU-b")
        service.offer(gpu_job("two", 1), "GPU-c")
        service.wait_for(lambda: len(execute.entered) == 2)
        service.wait_for(lambda: service.beats[-1].leases == (1, 2))
        execute.before.set()
        execute.after.set()
        service.wait_for(lambda: all(service.lease(one).reports for one in (1, 2)))


def test_gpus_of_a_lost_lease_are_free_for_the_next_only_when_its_job_is_dead(
    service: RunnerService, tmp_path: Path
) -> None:
    release = threading.Event()
    order: list[str] = []

    def stubborn(job, gpus, sources, watcher, workplace) -> JobReport:
        order.append(f"begin {job.spec.name}")
        watcher.begin("build")
        if job.spec.name == "first":
            assert watcher.cancelled.wait(20)
            assert release.wait(20)
        order.append(f"end {job.spec.name}")
        return JobReport()

    host = build_host(tmp_path, arch="sm90", slots=0, nvml=FakeNvml(*four()))
    service.beat_seconds = 0.1
    with running(service, host, stubborn):
        service.offer(gpu_job("first", 1), "GPU-a")
        service.wait_for(lambda: service.leases and "build" in service.lease(1).beats)
        service.lease(1).lost = True
        service.offer(gpu_job("second", 1), "GPU-a")
        service.wait_for(lambda: len(service.leases) == 2 and service.lease(2).beats)
        time.sleep(0.3)
        assert order == ["begin first"]
        release.set()
        service.wait_for(lambda: service.lease(2).reports)
    assert order == ["begin first", "end first", "begin second", "end second"]
    assert service.lease(1).reports == []


def test_no_claim_is_made_while_nothing_is_free(service: RunnerService, tmp_path: Path) -> None:
    execute = Steered()
    service.offer(job("first"))
    with running(service, build_host(tmp_path, slots=1), execute, claim_seconds=0.2):
        service.wait_for(lambda: execute.entered)
        service.offer(job("second"))
        time.sleep(1.0)
        assert service.calls.count("claim") == 1, "its place is taken when it is granted, not when it begins"
        execute.before.set()
        execute.after.set()
        service.wait_for(lambda: len(service.leases) == 2 and service.lease(2).reports)


def test_log_lines_arrive_while_the_step_runs(service: RunnerService, tmp_path: Path) -> None:
    execute = Steered(chunks=(b"a" * 1000, b"\x1b[31mred\x1b[0m\n", b"\xff\xfe"))
    execute.before.set()
    with running(service, build_host(tmp_path), execute):
        service.offer(job())
        service.wait_for(lambda: service.leases and bytes(service.lease(1).log).endswith(b"\xff\xfe"))
        assert not service.lease(1).reports
        execute.after.set()
        service.wait_for(lambda: service.lease(1).reports)
    assert bytes(service.lease(1).log) == b"a" * 1000 + b"\x1b[31mred\x1b[0m\n\xff\xfe"


def test_a_full_log_ends_the_log_and_not_the_job(service: RunnerService, tmp_path: Path) -> None:
    service.log_bytes = 10
    with running(service, build_host(tmp_path), Steered.opened(b"x" * 100, b"y" * 100)):
        service.offer(job())
        service.wait_for(lambda: service.leases and service.lease(1).reports)


def test_a_step_that_begins_is_told_at_once(
    service: RunnerService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before the next beat of the lease is due."""
    monkeypatch.setattr(lease, "_MOST_BEAT_SECONDS", 300.0)
    service.lease_seconds = 3600.0
    execute = Steered()
    with running(service, build_host(tmp_path), execute):
        service.offer(job())
        service.wait_for(lambda: service.leases and service.lease(1).beats == [""])
        execute.before.set()
        service.wait_for(lambda: "build" in service.lease(1).beats)
        execute.after.set()
        service.wait_for(lambda: service.lease(1).reports)


def test_cancelling_stops_the_job_and_is_reported(service: RunnerService, tmp_path: Path) -> None:
    execute = Steered()
    execute.before.set()
    service.lease_seconds = 1.0
    with running(service, build_host(tmp_path), execute):
        service.offer(job())
        service.wait_for(lambda: service.leases and "build" in service.lease(1).beats)
        service.lease(1).cancel = True
        service.wait_for(lambda: service.lease(1).reports)
    assert service.lease(1).reports[0].cancelled


def test_a_lost_lease_stops_its_job_and_reports_nothing(service: RunnerService, tmp_path: Path) -> None:
    execute = Steered()
    execute.before.set()
    service.beat_seconds = 0.1
    with running(service, build_host(tmp_path), execute):
        service.offer(job("first"))
        service.wait_for(lambda: service.leases and "build" in service.lease(1).beats)
        service.lease(1).lost = True
        service.wait_for(lambda: execute.left == ["first"])
        execute.after.set()
        service.offer(job("second"))
        service.wait_for(lambda: len(service.leases) == 2 and service.lease(2).reports)
    assert "report" not in service.calls[: service.calls.index("report")]
    assert service.lease(1).reports == []


def test_a_lease_that_is_granted_again_runs_once(service: RunnerService, tmp_path: Path) -> None:
    """The service took the first grant for lost: its token is void, so the job that it began is stopped."""
    execute = Steered()
    execute.before.set()
    with running(service, build_host(tmp_path, slots=2), execute, claim_seconds=0.3):
        service.offer(job())
        service.wait_for(lambda: service.leases and "build" in service.lease(1).beats)
        service.again.append(1)
        service.wait_for(lambda: service.lease(1).returned)
        service.wait_for(lambda: execute.left == ["build"])
    assert service.lease(1).returned == "the runner works on it already"
    assert (len(execute.entered), service.lease(1).reports) == (1, [])


def test_draining_ends_what_runs_and_hands_back_what_has_not_begun(
    service: RunnerService, tmp_path: Path
) -> None:
    begun, waiting = Steered(), Steered()
    begun.before.set()

    def execute(job, gpus, sources, watcher, workplace) -> JobReport:
        return (begun if job.spec.name == "begun" else waiting)(job, gpus, sources, watcher, workplace)

    with running(service, build_host(tmp_path, slots=2), execute) as current:
        service.offer(job("begun"))
        service.wait_for(lambda: service.leases and "build" in service.lease(1).beats)
        service.offer(job("waiting"))
        service.wait_for(lambda: waiting.entered)
        current.agent.signalled()
        service.wait_for(lambda: service.lease(2).returned)
        assert not service.lease(1).is_over
        begun.after.set()
        current.end()
    assert service.lease(1).reports[0].runs[0].ending == "exited"
    assert service.lease(2).reports == []
    assert service.calls[-1] == "deregister"
    assert service.beats[-1].draining


def test_a_job_that_is_assigned_at_the_instant_of_draining_is_handed_back(
    service: RunnerService, tmp_path: Path
) -> None:
    """The answer to a claim is on its way when the runner is told to stop."""
    service.faults["claim"] = ["slow"]
    execute = Steered.opened()
    with running(service, build_host(tmp_path), execute) as current:
        service.wait_for(lambda: "claim slow" in service.calls)
        current.agent.signalled()
        time.sleep(0.2)
        service.waiting.append((job(), ()))
        current.end()
    assert execute.entered == []
    assert all(state.returned for state in service.leases.values())
    assert len(service.leases) + len(service.waiting) == 1


def test_a_claim_that_the_service_holds_does_not_keep_an_idle_runner_from_ending(
    service: RunnerService, tmp_path: Path
) -> None:
    service.holds_claims = True
    with running(service, build_host(tmp_path), Steered.opened(), claim_seconds=120) as current:
        service.wait_for(lambda: "claim" in service.calls and service.beats)
        current.agent.signalled()
        current.end()
    assert service.calls[-1] == "deregister"


def test_a_second_signal_ends_jobs_and_says_so(service: RunnerService, tmp_path: Path) -> None:
    execute = Steered()
    execute.before.set()
    with running(service, build_host(tmp_path), execute) as current:
        service.offer(job())
        service.wait_for(lambda: service.leases and "build" in service.lease(1).beats)
        current.agent.signalled()
        time.sleep(0.3)
        assert execute.left == []
        current.agent.signalled()
        current.end()
    report = service.lease(1).reports[0]
    assert [one.kind for one in report.notices] == ["drained"]


def test_the_service_drains_a_runner(service: RunnerService, tmp_path: Path) -> None:
    service.beat_seconds = 0.1
    with running(service, build_host(tmp_path), Steered.opened()) as current:
        service.wait_for(lambda: service.beats)
        service.drain = True
        current.end()
    assert service.calls[-1] == "deregister"


def test_once_ends_after_one_job(service: RunnerService, tmp_path: Path) -> None:
    service.offer(job("first"))
    service.offer(job("second"))
    with running(service, build_host(tmp_path, slots=4), Steered.opened(), once=True) as current:
        current.end()
    assert len(service.leases) == 1
    assert service.lease(1).reports


def test_a_runner_that_the_service_does_not_know_ends_with_an_error(
    service: RunnerService, tmp_path: Path
) -> None:
    service.beat_seconds = 0.1
    with running(service, build_host(tmp_path), Steered.opened(), claim_seconds=0.2) as current:
        service.wait_for(lambda: service.beats)
        service.secrets.clear()
        with pytest.raises(Refused, match="unknown runner"):
            current.end()


def test_a_fork_s_job_is_handed_back_where_there_is_no_sandbox(
    service: RunnerService, tmp_path: Path
) -> None:
    execute = Steered.opened()
    with running(service, build_host(tmp_path, sandboxed=False), execute):
        service.offer(job().model_copy(update={"trusted": False}))
        service.wait_for(lambda: service.leases and service.lease(1).returned)
    assert "no sandbox" in service.lease(1).returned
    assert execute.entered == []


def test_an_executor_that_fails_costs_its_job_and_not_the_runner(
    service: RunnerService, tmp_path: Path
) -> None:
    def fails(job, gpus, sources, watcher, workplace) -> JobReport:
        if job.spec.name == "first":
            raise RuntimeError("out of ideas")
        return JobReport()

    with running(service, build_host(tmp_path), fails):
        service.offer(job("first"))
        service.offer(job("second"))
        service.wait_for(lambda: len(service.leases) == 2 and service.lease(2).reports)
    assert [(one.kind, one.detail) for one in service.lease(1).reports[0].notices] == [
        ("agent", "RuntimeError: out of ideas")
    ]


def test_a_clock_that_is_set_changes_nothing(
    service: RunnerService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.lease_seconds = 1.0
    execute = Steered()
    execute.before.set()
    with running(service, build_host(tmp_path), execute):
        service.offer(job())
        service.wait_for(lambda: service.leases and "build" in service.lease(1).beats)
        for jump in (-1e9, 1e9):
            monkeypatch.setattr(time, "time", lambda jump=jump: 1.8e9 + jump)
            count = len(service.lease(1).beats)
            service.wait_for(lambda count=count: len(service.lease(1).beats) > count + 1)
        assert not service.lease(1).is_over
        execute.after.set()
        service.wait_for(lambda: service.lease(1).reports)
    assert not service.lease(1).reports[0].cancelled
