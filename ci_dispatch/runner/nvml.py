"""What NVIDIA's management library says of a host's GPUs. It only reads: settings, MIG and resets are never touched.

The library is reached through the module `pynvml` (distribution nvidia-ml-py), imported when it is first needed. A field that a GPU
or a guest does not have reads as None, never as a good value.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

from ci_dispatch.model import Arch
from ci_dispatch.runner.errors import RunnerError

T = TypeVar("T")

_ARCHES: dict[tuple[int, ...], Arch] = {
    (8, 0): "sm80",
    (8, 9): "sm89",
    (9, 0): "sm90",
    (10, 0): "sm100",
    (12, 0): "sm120",
}

_THROTTLES = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}


class Nvml(Protocol):
    """The part of `pynvml` that a runner uses. Handles are opaque."""

    NVMLError: type[Exception]
    NVML_CLOCK_SM: int
    NVML_CLOCK_MEM: int
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED: int
    NVML_VOLATILE_ECC: int
    NVML_AGGREGATE_ECC: int
    NVML_ERROR_TIMEOUT: int
    nvmlEventTypeXidCriticalError: int

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> str: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetUUID(self, handle: Any) -> str: ...
    def nvmlDeviceGetName(self, handle: Any) -> str: ...
    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, int]: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any: ...
    def nvmlDeviceGetClockInfo(self, handle: Any, kind: int) -> int: ...
    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any) -> int: ...
    def nvmlDeviceGetTotalEccErrors(self, handle: Any, error: int, counter: int) -> int: ...
    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: Any) -> int: ...
    def nvmlDeviceGetRemappedRows(self, handle: Any) -> tuple[int, int, int, int]: ...
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]: ...
    def nvmlEventSetCreate(self) -> Any: ...
    def nvmlDeviceRegisterEvents(self, handle: Any, events: int, event_set: Any) -> None: ...
    def nvmlEventSetWait(self, event_set: Any, milliseconds: int) -> Any: ...
    def nvmlEventSetFree(self, event_set: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process with a context on a GPU; `bytes` is None where the library does not say."""

    pid: int
    bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuState:
    """One reading of one GPU. Memory in bytes, clocks in MHz.

    Attributes:
        ecc_volatile: uncorrectable errors since the driver was loaded.
        ecc_aggregate: uncorrectable errors in the GPU's life.
        repair_pending: retired pages or remapped rows wait for a reset, or could not be remapped.
        throttles: why clocks are held down, idling left out.
    """

    uuid: str
    index: int
    name: str
    arch: Arch | None
    memory_total: int
    memory_used: int
    driver: str
    sm_mhz: int | None
    memory_mhz: int | None
    throttles: tuple[str, ...]
    ecc_volatile: int | None
    ecc_aggregate: int | None
    repair_pending: bool
    processes: tuple[GpuProcess, ...]


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver reported; `at` is monotonic."""

    uuid: str
    number: int
    at: float


def load_nvml() -> Nvml:
    """The library, initialised. Raises RunnerError where it is missing or does not start."""
    try:
        nvml = cast(Nvml, importlib.import_module("pynvml"))
    except ImportError:
        raise RunnerError("the Python package nvidia-ml-py is missing", "install it on this host") from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise RunnerError(
            f"NVML does not start: {error}", "check that nvidia-smi works here, or use --arch cpu"
        ) from None
    return nvml


def _reading(nvml: Nvml, read: Callable[[], T]) -> T | None:
    with suppress(nvml.NVMLError):
        return read()
    return None


def read_gpus(nvml: Nvml) -> tuple[GpuState, ...]:
    """All GPUs that answer, by index. One that has fallen off the bus keeps its index and is left out."""
    driver = _reading(nvml, nvml.nvmlSystemGetDriverVersion) or ""
    states = []
    for index in range(_reading(nvml, nvml.nvmlDeviceGetCount) or 0):
        with suppress(nvml.NVMLError):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            states.append(_read_gpu(nvml, index, handle, driver))
    return tuple(states)


def _read_gpu(nvml: Nvml, index: int, handle: Any, driver: str) -> GpuState:
    """Identity and memory must be readable; what a GPU may lack is None."""
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    bits = _reading(nvml, lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0
    rows = _reading(nvml, lambda: nvml.nvmlDeviceGetRemappedRows(handle))
    pages = _reading(nvml, lambda: nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
    processes = _reading(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []

    def ecc(counter: int) -> int | None:
        kind = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        return _reading(nvml, lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter))

    def clock(kind: int) -> int | None:
        return _reading(nvml, lambda: nvml.nvmlDeviceGetClockInfo(handle, kind))

    return GpuState(
        uuid=nvml.nvmlDeviceGetUUID(handle),
        index=index,
        name=nvml.nvmlDeviceGetName(handle),
        arch=_ARCHES.get(tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))),
        memory_total=memory.total,
        memory_used=memory.used,
        driver=driver,
        sm_mhz=clock(nvml.NVML_CLOCK_SM),
        memory_mhz=clock(nvml.NVML_CLOCK_MEM),
        throttles=tuple(words for bit, words in _THROTTLES.items() if bits & bit),
        ecc_volatile=ecc(nvml.NVML_VOLATILE_ECC),
        ecc_aggregate=ecc(nvml.NVML_AGGREGATE_ECC),
        repair_pending=bool(pages) or (rows is not None and bool(rows[2] or rows[3])),
        processes=tuple(GpuProcess(one.pid, one.usedGpuMemory) for one in processes),
    )


@dataclass(slots=True)
class XidWatch:
    """Collects Xids in a thread of its own. Where a guest has no such events, it stays empty and `works` is False."""

    nvml: Nvml
    works: bool = False
    _seen: list[Xid] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        nvml = self.nvml
        with suppress(nvml.NVMLError):
            events = nvml.nvmlEventSetCreate()
            for index in range(nvml.nvmlDeviceGetCount()):
                with suppress(nvml.NVMLError):
                    handle = nvml.nvmlDeviceGetHandleByIndex(index)
                    nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
                    self.works = True
            if self.works:
                self._thread = threading.Thread(target=self._collect, args=(events,), name="xid", daemon=True)
                self._thread.start()
            else:
                nvml.nvmlEventSetFree(events)

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def since(self, at: float, uuids: tuple[str, ...]) -> tuple[Xid, ...]:
        """Those of these GPUs at or after a moment of the monotonic clock. One without a UUID counts for all."""
        with self._lock:
            return tuple(xid for xid in self._seen if xid.at >= at and (xid.uuid in uuids or not xid.uuid))

    def forget(self, before: float) -> None:
        """Drops what no lease asks for any more."""
        with self._lock:
            self._seen = [xid for xid in self._seen if xid.at >= before]

    def _note(self, event: Any) -> None:
        uuid = _reading(self.nvml, lambda: self.nvml.nvmlDeviceGetUUID(event.device)) or ""
        with self._lock:
            self._seen.append(Xid(uuid, int(event.eventData), time.monotonic()))

    def _collect(self, events: Any) -> None:
        nvml = self.nvml
        while not self._stop.is_set():
            try:
                event = nvml.nvmlEventSetWait(events, 500)
            except nvml.NVMLError as error:
                # A time-out is the ordinary case; anything else must not become a busy loop.
                if error.args[:1] != (nvml.NVML_ERROR_TIMEOUT,):
                    self._stop.wait(1.0)
                continue
            self._note(event)
        with suppress(nvml.NVMLError):
            nvml.nvmlEventSetFree(events)
