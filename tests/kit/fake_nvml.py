"""NVML without a GPU: the functions of `pynvml` that a runner uses, over GPUs that a test changes as it goes."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30


@dataclass
class FakeGpu:
    uuid: str
    name: str = "NVIDIA H200"
    capability: tuple[int, int] = (9, 0)
    total: int = 140 * GIB
    used: int = 1 * GIB
    sm_mhz: int = 1980
    throttles: int = 0x1
    ecc_volatile: int = 0
    ecc_aggregate: int = 0
    rows: tuple[int, int, int, int] = (0, 0, 0, 0)
    pages_pending: int = 0
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    lost: bool = False
    bare: bool = False
    """A guest's GPU, which has no ECC counters, clocks or process list."""


class FakeNvml:
    """Handles are the GPUs themselves."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC = 0, 1
    NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_TIMEOUT, NVML_ERROR_GPU_IS_LOST = 3, 10, 15
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, *gpus: FakeGpu, events: bool = True) -> None:
        self.gpus = list(gpus)
        self.events = events
        self.pending: list[tuple[FakeGpu, int]] = []
        self.condition = threading.Condition()

    def report_xid(self, gpu: FakeGpu, number: int) -> None:
        with self.condition:
            self.pending.append((gpu, number))
            self.condition.notify_all()

    def nvmlInit(self) -> None:
        pass

    def nvmlShutdown(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95.05"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        if self.gpus[index].lost:
            raise self.NVMLError(self.NVML_ERROR_GPU_IS_LOST)
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, handle: FakeGpu) -> str:
        return handle.uuid

    def nvmlDeviceGetName(self, handle: FakeGpu) -> str:
        return handle.name

    def nvmlDeviceGetCudaComputeCapability(self, handle: FakeGpu) -> tuple[int, int]:
        return handle.capability

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu) -> Any:
        return SimpleNamespace(total=handle.total, used=handle.used, free=handle.total - handle.used)

    def nvmlDeviceGetClockInfo(self, handle: FakeGpu, kind: int) -> int:
        self._has(handle)
        return handle.sm_mhz if kind == self.NVML_CLOCK_SM else 3201

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: FakeGpu) -> int:
        self._has(handle)
        return handle.throttles

    def nvmlDeviceGetTotalEccErrors(self, handle: FakeGpu, error: int, counter: int) -> int:
        self._has(handle)
        assert error == self.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        return handle.ecc_volatile if counter == self.NVML_VOLATILE_ECC else handle.ecc_aggregate

    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: FakeGpu) -> int:
        self._has(handle)
        return handle.pages_pending

    def nvmlDeviceGetRemappedRows(self, handle: FakeGpu) -> tuple[int, int, int, int]:
        self._has(handle)
        return handle.rows

    def nvmlDeviceGetComputeRunningProcesses(self, handle: FakeGpu) -> list[Any]:
        self._has(handle)
        return [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in handle.processes]

    def nvmlEventSetCreate(self) -> Any:
        return object()

    def nvmlDeviceRegisterEvents(self, handle: FakeGpu, events: int, event_set: Any) -> None:
        if not self.events:
            raise self.NVMLError(self.NVML_ERROR_NOT_SUPPORTED)

    def nvmlEventSetWait(self, event_set: Any, milliseconds: int) -> Any:
        deadline = time.monotonic() + milliseconds / 1000
        with self.condition:
            while not self.pending:
                if not self.condition.wait(deadline - time.monotonic()):
                    raise self.NVMLError(self.NVML_ERROR_TIMEOUT)
            gpu, number = self.pending.pop(0)
        return SimpleNamespace(device=gpu, eventData=number)

    def nvmlEventSetFree(self, event_set: Any) -> None:
        pass

    def _has(self, handle: FakeGpu) -> None:
        if handle.bare:
            raise self.NVMLError(self.NVML_ERROR_NOT_SUPPORTED)


def four() -> list[FakeGpu]:
    return [FakeGpu(f"GPU-{letter}") for letter in "abcd"]
