"""What a host offers, from readings of a fake NVML."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

from ci_dispatch.model import Inventory
from ci_dispatch.runner import inventory as module
from ci_dispatch.runner.clocks import Clocks
from ci_dispatch.runner.errors import RunnerError
from ci_dispatch.runner.inventory import Devices, Known, Offer, build_inventory, open_devices
from ci_dispatch.runner.nvml import Nvml, read_gpus
from tests.kit.fake_nvml import GIB, FakeGpu, FakeNvml, four

SM90 = Offer("sm90", 0, True)


def offered(
    nvml: FakeNvml, folder: Path, offer: Offer = SM90, known: dict[str, Known] | None = None
) -> Inventory:
    states = Devices(offer.arch, nvml).read()
    if known is None:
        known = {state.uuid: Known(state.index, state.name) for state in states}
    return build_inventory(offer, states, known, {}, folder)


def test_gpus_are_offered_with_what_nvml_says(tmp_path: Path) -> None:
    inventory = offered(FakeNvml(*four()), tmp_path)
    assert [(gpu.uuid, gpu.index, gpu.healthy) for gpu in inventory.gpus] == [
        ("GPU-a", 0, True),
        ("GPU-b", 1, True),
        ("GPU-c", 2, True),
        ("GPU-d", 3, True),
    ]
    first = inventory.gpus[0]
    assert (first.name, first.arch, first.memory_mb, first.driver) == (
        "NVIDIA H200",
        "sm90",
        140 * 1024,
        "580.95.05",
    )
    assert inventory.cpus >= 1
    assert inventory.memory_mb > 0
    assert inventory.disk_free_mb > 0


@pytest.mark.parametrize(
    ("capability", "arch"),
    [
        ((8, 0), "sm80"),
        ((8, 9), "sm89"),
        ((9, 0), "sm90"),
        ((10, 0), "sm100"),
        ((12, 0), "sm120"),
        ((7, 5), None),
    ],
)
def test_architecture_comes_from_compute_capability(capability: tuple[int, int], arch: str | None) -> None:
    assert read_gpus(FakeNvml(FakeGpu("GPU-a", capability=capability)))[0].arch == arch


def test_gpus_of_another_architecture_are_not_offered(tmp_path: Path) -> None:
    nvml = FakeNvml(FakeGpu("GPU-a"), FakeGpu("GPU-l", capability=(8, 9)))
    assert [gpu.uuid for gpu in offered(nvml, tmp_path).gpus] == ["GPU-a"]


def test_three_gpus_where_four_were_known_offer_none_and_name_the_fourth(tmp_path: Path) -> None:
    gpus = four()
    nvml = FakeNvml(*gpus)
    known = {gpu.uuid: Known(index, gpu.name) for index, gpu in enumerate(gpus)}
    gpus[2].lost = True
    inventory = offered(nvml, tmp_path, known=known)
    assert [gpu.healthy for gpu in inventory.gpus] == [False] * 4
    assert "GPU-c missing: 3 of 4" in inventory.gpus[0].reason
    assert inventory.gpus[-1].uuid == "GPU-c"


def test_three_gpus_where_four_are_declared_offer_none(tmp_path: Path) -> None:
    nvml = FakeNvml(*four()[:3])
    inventory = offered(nvml, tmp_path, Offer("sm90", 0, True, expected=4))
    assert not any(gpu.healthy for gpu in inventory.gpus)
    assert "3 GPUs of sm90 are visible where 4 are expected" in inventory.gpus[0].reason
    assert all(gpu.healthy for gpu in offered(nvml, tmp_path, Offer("sm90", 0, True, expected=3)).gpus)


def test_a_quarantined_gpu_says_why_and_leaves_the_others_in_use(tmp_path: Path) -> None:
    states = Devices("sm90", FakeNvml(*four())).read()
    known = {state.uuid: Known(state.index, state.name) for state in states}
    inventory = build_inventory(SM90, states, known, {"GPU-b": "quarantined, xid: Xid 79"}, tmp_path)
    assert [gpu.healthy for gpu in inventory.gpus] == [True, False, True, True]
    assert inventory.gpus[1].reason == "quarantined, xid: Xid 79"


def test_a_guest_without_counters_and_clocks_is_read_all_the_same() -> None:
    state = read_gpus(FakeNvml(FakeGpu("GPU-a", bare=True)))[0]
    assert (state.ecc_volatile, state.sm_mhz, state.processes, state.repair_pending) == (
        None,
        None,
        (),
        False,
    )


def test_clocks_are_told_as_ranges_with_what_held_them_down() -> None:
    gpu = FakeGpu("GPU-a")
    nvml = FakeNvml(gpu)
    clocks = Clocks()
    for mhz, throttles in ((1980, 0x1), (1755, 0x4), (1800, 0x40)):
        gpu.sm_mhz, gpu.throttles = mhz, throttles
        clocks.add(read_gpus(nvml))
    facts = clocks.facts()
    assert facts["gpu0.sm_mhz"] == "1755-1980"
    assert facts["gpu0.memory_mhz"] == "3201"
    assert facts["gpu0.throttled"] == "power cap, thermal (hardware)"
    assert facts["driver"] == "580.95.05"


def test_a_cpu_host_offers_slots_and_asks_for_no_nvml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load() -> Nvml:
        raise AssertionError("NVML was asked for")

    monkeypatch.setattr(module, "load_nvml", load)
    devices = open_devices("cpu")
    inventory = build_inventory(Offer("cpu", 2, True), devices.read(), {}, {}, tmp_path)
    assert (inventory.arch, inventory.gpus, inventory.slots) == ("cpu", (), 2)


def test_a_wrong_architecture_is_an_error_that_names_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "load_nvml", lambda: FakeNvml(FakeGpu("GPU-a", name="NVIDIA L4", capability=(8, 9)))
    )
    with pytest.raises(
        RunnerError, match=r"no GPU of sm90 is visible here, NVML shows NVIDIA L4 \(sm89\).*--arch"
    ):
        open_devices("sm90")


def test_the_real_module_has_every_function_that_we_call() -> None:
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    functions = [name for name, _ in inspect.getmembers(Nvml, inspect.isfunction) if name.startswith("nvml")]
    assert len(functions) > 15
    constants = [name for name in Nvml.__annotations__ if name != "NVMLError"]
    missing = [
        name for name in (*functions, *constants) if name not in vars(importlib.import_module("pynvml"))
    ]
    assert missing == []
    assert pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT).args == (pynvml.NVML_ERROR_TIMEOUT,)


def test_only_reading_functions_are_called() -> None:
    functions = [name for name, _ in inspect.getmembers(Nvml, inspect.isfunction) if name.startswith("nvml")]
    assert not [name for name in functions if "Set" in name.removeprefix("nvmlEventSet") or "Reset" in name]


def test_memory_is_told_in_bytes() -> None:
    state = read_gpus(FakeNvml(FakeGpu("GPU-a", used=3 * GIB)))[0]
    assert (state.memory_total, state.memory_used) == (140 * GIB, 3 * GIB)
