"""The host's real GPUs, where it has some: NVML's readings, the compute probe, preflight and postflight."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci_dispatch.model import Arch
from ci_dispatch.runner.errors import RunnerError
from ci_dispatch.runner.health import Health, probe_gpu
from ci_dispatch.runner.inventory import Devices, Known, Offer, build_inventory
from ci_dispatch.runner.nvml import GpuState, load_nvml, read_gpus


@pytest.fixture(scope="module")
def states() -> tuple[GpuState, ...]:
    try:
        states = read_gpus(load_nvml())
    except RunnerError as error:
        pytest.skip(str(error))
    if not states or states[0].arch is None:
        pytest.skip("no GPU of an architecture that we know")
    return states


@pytest.fixture
def arch(states: tuple[GpuState, ...]) -> Arch:
    assert states[0].arch is not None
    return states[0].arch


@pytest.fixture
def health(states: tuple[GpuState, ...], arch: Arch, tmp_path: Path) -> Iterator[Health]:
    devices = Devices(arch, load_nvml())
    devices.start()
    known = {state.uuid: Known(state.index, state.name) for state in devices.read()}
    yield Health(devices, Offer(arch, 0, True), tmp_path, lambda: known)
    devices.stop()


def test_readings_are_those_of_a_gpu(states: tuple[GpuState, ...]) -> None:
    for state in states:
        assert state.uuid.startswith("GPU-")
        assert state.memory_total > state.memory_used > 0
        assert state.driver.split(".")[0].isdigit()
        assert state.sm_mhz is None or 100 < state.sm_mhz < 5000


def test_each_gpu_computes_and_is_the_only_one_that_its_probe_sees(states: tuple[GpuState, ...]) -> None:
    assert {state.uuid: probe_gpu(state.uuid) for state in states} == {state.uuid: "" for state in states}


def test_a_gpu_that_is_not_there_does_not_compute(states: tuple[GpuState, ...]) -> None:
    assert probe_gpu("GPU-00000000-0000-0000-0000-000000000000") != ""


def test_idle_gpus_pass_before_and_after(health: Health, arch: Arch, tmp_path: Path) -> None:
    uuids = [state.uuid for state in health.devices.read()]
    since = time.monotonic()
    assert health.preflight(uuids, 1) == []
    assert health.postflight(uuids, since, since) == []
    inventory = build_inventory(Offer(arch, 0, True), health.devices.read(), health.known(), {}, tmp_path)
    assert all(gpu.healthy for gpu in inventory.gpus)


def test_a_process_that_holds_memory_is_seen(health: Health) -> None:
    torch = pytest.importorskip("torch", reason="torch holds the memory")
    uuid = health.devices.read()[0].uuid
    held = torch.empty(64 << 20, dtype=torch.uint8, device="cuda:0")
    health.settle_seconds = 0.0
    notices = [one for one in health.preflight([uuid], 1) if one.kind in ("orphan", "memory")]
    if not notices and not health.devices.read()[0].processes:
        pytest.skip("this guest's NVML lists no processes, and 64 MiB are too few to be missed")
    assert [(one.kind, one.gpu) for one in notices] == [("orphan", uuid)]
    assert held.numel() == 64 << 20
