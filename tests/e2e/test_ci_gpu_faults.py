"""GPUs that are not well, from a comment to its report: the agent in a thread on a fake driver, all else real."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ci_dispatch.model import Inventory
from service.store import gpus, runners
from tests.e2e.test_ci_faults import PHRASE, ci, ended, outcomes, report_of, shell, states
from tests.kit.ci_service import CiService
from tests.kit.fake_nvml import GIB, FakeGpu, FakeNvml
from tests.kit.runner_agents import Steered, build_host, running

OUTCOMES = {"ecc": "hardware", "orphan": "infra", "gpu_missing": "hardware", "compute": "hardware"}


def listens(service: CiService, name: str) -> bool:
    with service.database.read() as connection:
        return any(one.name == name and one.listens_until for one in runners.show(connection))


def offered(service: CiService, uuid: str) -> bool:
    """Whether a job could be given the GPU."""
    with service.database.read() as connection:
        shown = [Inventory.model_validate_json(one.inventory) for one in runners.show(connection)]
        healthy = {gpu.uuid for one in shown for gpu in one.gpus if gpu.healthy}
        return uuid in healthy - gpus.quarantined(connection)


@pytest.mark.parametrize("kind", list(OUTCOMES))
def test_a_sick_gpu_runs_nothing_is_used_no_more_and_the_job_runs_on_another_host(
    tmp_path: Path, kind: str
) -> None:
    """CI.md 12 (ecc), 13 (gpu_missing; compute: the driver answers and CUDA is broken), 14 (orphan)."""
    first, broken = [FakeGpu("GPU-a"), FakeGpu("GPU-b")], {}
    sick = build_host(tmp_path / "sick", arch="sm90", slots=0, nvml=FakeNvml(*first), broken=broken)
    second = FakeNvml(FakeGpu("GPU-c"), FakeGpu("GPU-d"))
    well = build_host(tmp_path / "well", arch="sm90", slots=0, nvml=second)
    on_sick, on_well = Steered.opened(), Steered.opened(b"ran\n")
    with ci(tmp_path, shell("tp2", "true", arch="sm90", gpus=2)) as service:
        api = SimpleNamespace(url=service.address, token=service.token)
        number = service.open("pull")
        with running(api, sick, on_sick, probe_seconds=60, claim_seconds=1, name="sick"):
            service.wait(lambda: listens(service, "sick"), "the host does not listen")
            if kind == "ecc":
                first[0].ecc_volatile = 1
            elif kind == "orphan":
                first[0].processes = [(4242, GIB)]
            elif kind == "gpu_missing":
                first[0].lost = True
            else:
                broken["GPU-a"] = "cuInit answered 999"
            service.say(number, "owner", PHRASE)
            service.wait(lambda: states(service, number) == ["finished", "queued"], "no second attempt")
            service.wait(lambda: not offered(service, "GPU-a"), "the GPU is still offered")
            service.wait(lambda: "no runner offers 2 x sm90" in service.report(number), "nobody is told")
            with running(api, well, on_well, probe_seconds=60, claim_seconds=1, name="well"):
                service.wait(ended(service, number, 2), "it did not run elsewhere")
        assert outcomes(service, number) == [("tp2", 1, OUTCOMES[kind]), ("tp2", 2, "passed")]
        sickly, passed = (report_of(service, job.id) for job in service.jobs(number))
        assert {(one.kind, one.where) for one in sickly.notices} == {(kind, "before")}
        assert (sickly.runner, sickly.runs, on_sick.entered) == ("sick", (), [])
        assert (passed.runner, sorted(passed.gpus)) == ("well", ["GPU-c", "GPU-d"])
        assert not offered(service, "GPU-a")
        assert offered(service, "GPU-c")
        service.wait(lambda: service.conclusion(number, "tp2") == "success", "the check is not green")
