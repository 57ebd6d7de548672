"""Preflight, postflight and the compute probe: a real process that loads a real library, which plays CUDA's driver."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from ci_dispatch.runner.health import Health, probe_gpu
from ci_dispatch.runner.inventory import Devices, Known, Offer
from tests.kit.fake_nvml import GIB, FakeNvml, four

OFFER = Offer("sm90", 0, True)

CUDA = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifndef INIT
#define INIT 0
#endif
static unsigned char *memory;
int cuInit(unsigned flags) { if (INIT < 0) for (;;) pause(); return INIT; }
int cuGetErrorName(int error, const char **name) { *name = "CUDA_ERROR_UNKNOWN"; return 0; }
int cuDeviceGetCount(int *count) { *count = getenv("CUDA_VISIBLE_DEVICES") ? 1 : 8; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &memory; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuMemAlloc_v2(uint64_t *address, size_t bytes) { memory = malloc(bytes); *address = (uint64_t)memory; return 0; }
int cuMemFree_v2(uint64_t address) { free((void *)address); return 0; }
int cuMemsetD32_v2(uint64_t address, unsigned word, size_t count) {
  for (size_t i = 0; i < count; i++) ((unsigned *)address)[i] = word;
  return 0;
}
int cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t bytes) { memcpy((void *)to, (void *)from, bytes); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
  memcpy(to, (void *)from, bytes);
#ifdef FLIP
  ((unsigned char *)to)[bytes - 3] ^= 1;
#endif
  return 0;
}
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the library that plays CUDA's driver")
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "cuda.c").write_text(CUDA)

    def make(*defines: str) -> str:
        library = folder / f"libcuda{'_'.join(defines)}.so"
        subprocess.run(
            [
                compiler,
                "-shared",
                "-fPIC",
                "-w",
                *(f"-D{one}" for one in defines),
                "-o",
                library,
                folder / "cuda.c",
            ],
            check=True,
        )
        return str(library)

    return make


def test_a_gpu_that_computes_passes(build) -> None:
    assert probe_gpu("GPU-a", library=build()) == ""


def test_a_driver_that_answers_with_an_error_is_named(build) -> None:
    assert probe_gpu("GPU-a", library=build("INIT=999")) == "cuInit answered 999 (CUDA_ERROR_UNKNOWN)"


def test_one_flipped_bit_is_seen(build) -> None:
    assert probe_gpu("GPU-a", library=build("FLIP")) == "what was read back is not what was written"


def test_a_driver_that_hangs_costs_its_time_limit_and_leaves_no_process(build) -> None:
    begun = time.monotonic()
    assert probe_gpu("GPU-hangs", library=build("INIT=-1"), seconds=0.5) == "no answer within 0.5 s"
    assert time.monotonic() - begun < 20
    probes = [
        entry
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and b"GPU-hangs" in _read(entry / "cmdline")
    ]
    assert probes == []


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def test_a_driver_that_crashes_is_a_failure_with_its_status(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the library that plays CUDA's driver")
    (tmp_path / "crash.c").write_text("int cuInit(unsigned f) { __builtin_trap(); }")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "c.so", tmp_path / "crash.c"], check=True)
    assert "ended with status -" in probe_gpu("GPU-a", library=str(tmp_path / "c.so"))


def test_a_missing_driver_is_named() -> None:
    assert "libcuda-not-here.so cannot be loaded" in probe_gpu("GPU-a", library="libcuda-not-here.so")


def health(nvml: FakeNvml, folder: Path, broken: dict[str, str] | None = None, settle: float = 0.3) -> Health:
    gpus = {gpu.uuid: Known(index, gpu.name) for index, gpu in enumerate(nvml.gpus)}
    return Health(
        devices=Devices("sm90", nvml),
        offer=OFFER,
        folder=folder,
        known=lambda: gpus,
        probe=lambda uuid: (broken or {}).get(uuid, ""),
        settle_seconds=settle,
    )


def test_gpus_that_are_well_pass_preflight(tmp_path: Path) -> None:
    assert health(FakeNvml(*four()), tmp_path).preflight(["GPU-a", "GPU-b"], 1) == []


def test_nvml_fine_and_cuda_broken_is_seen(tmp_path: Path) -> None:
    notices = health(FakeNvml(*four()), tmp_path, {"GPU-b": "cuInit answered 999"}).preflight(
        ["GPU-a", "GPU-b"], 1
    )
    assert [(one.kind, one.gpu, one.where, one.detail) for one in notices] == [
        ("compute", "GPU-b", "before", "cuInit answered 999")
    ]


def test_a_gpu_that_left_the_bus_stops_jobs_on_the_others_too(tmp_path: Path) -> None:
    gpus = four()
    gpus[3].lost = True
    notices = health(FakeNvml(*gpus), tmp_path).preflight(["GPU-a"], 1)
    assert [(one.kind, one.gpu) for one in notices] == [("gpu_missing", "GPU-d")]
    assert "3 of 4 GPUs are visible" in notices[0].detail


def test_an_orphan_on_the_gpu_is_named_with_its_bytes(tmp_path: Path) -> None:
    gpus = four()
    gpus[0].processes = [(4242, 7 * GIB), (4243, None)]
    notices = health(FakeNvml(*gpus), tmp_path).preflight(["GPU-a"], 1)
    assert [one.kind for one in notices] == ["orphan"]
    assert notices[0].detail == (
        f"process 4242 holds {7 * GIB} bytes; process 4243 holds an unknown number of bytes"
    )
    assert health(FakeNvml(*gpus), tmp_path).preflight(["GPU-b"], 1) == []


def test_memory_that_no_process_accounts_for_stops_a_job(tmp_path: Path) -> None:
    gpus = four()
    gpus[0].used = 20 * GIB
    notices = health(FakeNvml(*gpus), tmp_path).preflight(["GPU-a"], 1)
    assert [(one.kind, one.gpu) for one in notices] == [("memory", "GPU-a")]


def test_a_process_that_is_just_ending_is_waited_for(tmp_path: Path) -> None:
    gpus = four()
    gpus[0].processes = [(4242, GIB)]
    examined = health(FakeNvml(*gpus), tmp_path, settle=20)
    read = examined.devices.read
    reads = []

    def read_and_end() -> object:
        reads.append(1)
        if len(reads) == 3:
            gpus[0].processes = []
        return read()

    examined.devices.read = read_and_end  # type: ignore[method-assign]
    assert examined.preflight(["GPU-a"], 1) == []


@pytest.mark.parametrize(
    "field", [{"ecc_volatile": 2}, {"rows": (0, 1, 1, 0)}, {"rows": (0, 0, 0, 1)}, {"pages_pending": 1}]
)
def test_memory_errors_that_were_not_corrected_stop_a_job(tmp_path: Path, field: dict[str, object]) -> None:
    gpus = four()
    for name, value in field.items():
        setattr(gpus[1], name, value)
    assert [
        (one.kind, one.gpu) for one in health(FakeNvml(*gpus), tmp_path).preflight(["GPU-a", "GPU-b"], 1)
    ] == [("ecc", "GPU-b")]
    assert health(FakeNvml(*gpus), tmp_path).preflight(["GPU-a"], 1) == []


def test_errors_of_an_earlier_life_and_corrected_ones_are_no_reason(tmp_path: Path) -> None:
    gpus = four()
    gpus[0].ecc_aggregate = 5
    gpus[0].rows = (3, 1, 0, 0)
    assert health(FakeNvml(*gpus), tmp_path).preflight(["GPU-a"], 1) == []


def test_too_little_disk_stops_a_job_with_and_without_gpus(tmp_path: Path) -> None:
    examined = health(FakeNvml(*four()), tmp_path)
    for uuids in ([], ["GPU-a"]):
        notices = examined.preflight(uuids, 1 << 40)
        assert [one.kind for one in notices] == ["disk"]
        assert f"the job may write {1 << 40}" in notices[0].detail


def test_a_xid_during_the_job_is_told_with_its_number_and_time(tmp_path: Path) -> None:
    gpus = four()
    nvml = FakeNvml(*gpus)
    examined = health(nvml, tmp_path)
    examined.devices.start()
    try:
        nvml.report_xid(gpus[0], 43)
        _wait_for(lambda: examined.devices.xids(0, ("GPU-a",)))
        since = time.monotonic()
        nvml.report_xid(gpus[1], 79)
        nvml.report_xid(gpus[2], 13)
        _wait_for(lambda: len(examined.devices.xids(since, ("GPU-b", "GPU-c"))) == 2)
        notices = examined.postflight(["GPU-a", "GPU-b"], since, since - 10)
    finally:
        examined.devices.stop()
    assert [(one.kind, one.gpu, one.code, one.where) for one in notices] == [("xid", "GPU-b", 79, "during")]
    assert 10 <= notices[0].after_seconds < 20
    assert examined.facts(["GPU-a"]) == {"xid_events": "watched"}


def test_a_guest_without_xid_events_says_so(tmp_path: Path) -> None:
    examined = health(FakeNvml(*four(), events=False), tmp_path)
    examined.devices.start()
    assert examined.facts(["GPU-a"]) == {"xid_events": "not available on this host"}
    assert examined.postflight(["GPU-a"], 0.0, None) == []
    examined.devices.stop()


def test_a_gpu_that_died_in_the_job_is_not_asked_to_compute(tmp_path: Path) -> None:
    gpus = four()
    gpus[0].lost = True
    notices = health(FakeNvml(*gpus), tmp_path, {"GPU-a": "asked"}).postflight(["GPU-a"], 0.0, None)
    assert [(one.kind, one.where) for one in notices] == [("gpu_missing", "after")]


def test_survey_names_errors_between_jobs_and_leaves_leased_gpus_alone(tmp_path: Path) -> None:
    gpus = four()
    gpus[0].ecc_volatile = gpus[1].ecc_volatile = 1
    assert [one.gpu for one in health(FakeNvml(*gpus), tmp_path).survey(["GPU-b", "GPU-c"])] == ["GPU-b"]


def _wait_for(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
