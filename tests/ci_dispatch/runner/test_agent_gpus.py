"""GPUs that are not well, as the agent meets them: before a job, in it, after it and between jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci_dispatch.model import JobReport, Notice
from tests.kit.fake_nvml import GIB, FakeNvml, four
from tests.kit.runner_agents import Steered, build_host, running
from tests.kit.runner_service import RunnerService, job, served


@pytest.fixture
def service() -> Iterator[RunnerService]:
    with served() as state:
        yield state


def gpu_job(name: str, gpus: int):
    return job(name, arch="sm90", gpus=gpus)


@pytest.mark.parametrize("kind", ["compute", "orphan", "ecc", "gpu_missing"])
def test_a_sick_gpu_stops_the_job_before_it_begins_and_is_offered_no_more(
    service: RunnerService, tmp_path: Path, kind: str
) -> None:
    gpus, broken = four(), {}
    host = build_host(tmp_path, arch="sm90", slots=0, nvml=FakeNvml(*gpus), broken=broken)
    execute = Steered.opened()
    service.beat_seconds = 30.0
    with running(service, host, execute, probe_seconds=60):
        service.wait_for(lambda: service.beats)
        if kind == "compute":
            broken["GPU-a"] = "cuInit answered 999"
        elif kind == "orphan":
            gpus[0].processes = [(4242, GIB)]
        elif kind == "ecc":
            gpus[0].ecc_volatile = 1
        else:
            gpus[0].lost = True
        service.offer(gpu_job("tp2", 2), "GPU-a", "GPU-b")
        service.wait_for(lambda: service.leases and service.lease(1).reports)
        service.wait_for(lambda: service.notices)
        service.wait_for(lambda: not _health(service)["GPU-a"])
    report = service.lease(1).reports[0]
    assert execute.entered == []
    assert report.runs == ()
    assert {(one.kind, one.where) for one in report.notices} == {(kind, "before")}
    assert [(one.kind, one.gpu) for one in service.notices] == [(kind, "GPU-a")]
    assert _health(service)["GPU-b"] is (kind != "gpu_missing")


def test_memory_errors_between_jobs_drain_the_gpu_by_itself(service: RunnerService, tmp_path: Path) -> None:
    gpus = four()
    host = build_host(tmp_path, arch="sm90", slots=0, nvml=FakeNvml(*gpus))
    service.beat_seconds = 0.1
    with running(service, host, Steered.opened()):
        service.wait_for(lambda: service.beats)
        gpus[2].ecc_volatile = 1
        service.wait_for(lambda: not _health(service)["GPU-c"])
        assert [one for one, well in _health(service).items() if well] == ["GPU-a", "GPU-b", "GPU-d"]
        gpus[2].ecc_volatile = 0
        time.sleep(1.0)
        assert not _health(service)["GPU-c"], "good probes do not forgive memory errors"
        service.quarantined.clear()
        service.wait_for(lambda: _health(service)["GPU-c"])


def test_an_orphan_s_gpu_comes_back_by_itself_when_the_orphan_has_gone(
    service: RunnerService, tmp_path: Path
) -> None:
    gpus = four()
    gpus[0].processes = [(4242, GIB)]
    host = build_host(tmp_path, arch="sm90", slots=0, nvml=FakeNvml(*gpus))
    host.quarantine.add([Notice(kind="orphan", gpu="GPU-a")])
    service.beat_seconds = 0.1
    with running(service, host, Steered.opened()):
        service.wait_for(lambda: service.beats)
        time.sleep(0.6)
        assert not _health(service)["GPU-a"]
        gpus[0].processes = []
        service.wait_for(lambda: _health(service)["GPU-a"])


def test_a_xid_in_the_job_is_evidence_and_ends_the_gpu_s_use(service: RunnerService, tmp_path: Path) -> None:
    gpus = four()
    nvml = FakeNvml(*gpus)
    host = build_host(tmp_path, arch="sm90", slots=0, nvml=nvml)
    execute = Steered()
    execute.before.set()
    with running(service, host, execute, probe_seconds=60):
        service.offer(gpu_job("one", 1), "GPU-a")
        service.wait_for(lambda: service.leases and "build" in service.lease(1).beats)
        nvml.report_xid(gpus[0], 79)
        nvml.report_xid(gpus[1], 79)
        service.wait_for(lambda: len(host.devices.xids(0, ("GPU-a", "GPU-b"))) == 2)
        execute.after.set()
        service.wait_for(lambda: service.lease(1).reports)
        service.wait_for(lambda: not _health(service)["GPU-a"])
    notices = service.lease(1).reports[0].notices
    assert [(one.kind, one.gpu, one.code) for one in notices] == [("xid", "GPU-a", 79)]
    assert notices[0].after_seconds >= 0


def test_what_a_job_left_on_a_gpu_is_no_evidence_against_the_job(
    service: RunnerService, tmp_path: Path
) -> None:
    gpus = four()
    host = build_host(tmp_path, arch="sm90", slots=0, nvml=FakeNvml(*gpus))

    def leaves(job, gpu_s, sources, watcher, workplace) -> JobReport:
        watcher.begin("build")
        gpus[0].processes = [(4242, GIB)]
        return JobReport()

    with running(service, host, leaves, probe_seconds=60):
        service.offer(gpu_job("one", 1), "GPU-a")
        service.wait_for(lambda: service.leases and service.lease(1).reports)
        service.wait_for(lambda: service.notices)
    assert service.lease(1).reports[0].notices == ()
    assert [(one.kind, one.where) for one in service.notices] == [("orphan", "after")]


def _health(service: RunnerService) -> dict[str, bool]:
    return {gpu.uuid: gpu.healthy for gpu in service.beats[-1].inventory.gpus}
