"""What a host offers: its GPUs as they are now, or a declared number of places for jobs that need none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ci_dispatch.model import Arch, Gpu, Inventory
from ci_dispatch.runner.errors import RunnerError
from ci_dispatch.runner.nvml import GpuState, Nvml, Xid, XidWatch, load_nvml, read_gpus


@dataclass(frozen=True, slots=True)
class Offer:
    """What whoever starts a runner declares. `expected` GPUs must be visible; None expects all that were ever seen."""

    arch: Arch
    slots: int
    sandboxed: bool
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """A GPU that this host has had."""

    index: int
    name: str


class Devices:
    """The GPUs of one architecture on this host, and what the driver reported of them."""

    def __init__(self, arch: Arch, nvml: Nvml | None) -> None:
        self._arch = arch
        self._nvml = nvml
        self._watch = XidWatch(nvml) if nvml is not None else None

    def start(self) -> None:
        """Begins to collect Xids."""
        if self._watch is not None:
            self._watch.start()

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        if self._nvml is not None:
            self._nvml.nvmlShutdown()

    def read(self) -> tuple[GpuState, ...]:
        """Those of the architecture that answer, by index."""
        if self._nvml is None:
            return ()
        return tuple(state for state in read_gpus(self._nvml) if state.arch == self._arch)

    def xids(self, since: float, uuids: tuple[str, ...]) -> tuple[Xid, ...]:
        """Reported for these GPUs since a moment of the monotonic clock."""
        return self._watch.since(since, uuids) if self._watch is not None else ()

    def forget_xids(self, before: float) -> None:
        if self._watch is not None:
            self._watch.forget(before)

    @property
    def sees_xids(self) -> bool:
        return self._watch is not None and self._watch.works


def open_devices(arch: Arch) -> Devices:
    """The host's GPUs of an architecture; none where it is cpu. Raises RunnerError where there should be some."""
    if arch == "cpu":
        return Devices(arch, None)
    nvml = load_nvml()
    devices = Devices(arch, nvml)
    if not devices.read():
        seen = ", ".join(f"{state.name} ({state.arch or 'unknown'})" for state in read_gpus(nvml)) or "no GPU"
        raise RunnerError(
            f"no GPU of {arch} is visible here, NVML shows {seen}", "give its architecture with --arch"
        )
    return devices


def build_inventory(
    offer: Offer,
    states: tuple[GpuState, ...],
    known: Mapping[str, Known],
    reasons: Mapping[str, str],
    folder: Path,
) -> Inventory:
    """The offer as of now.

    `known` holds the GPUs that must be there: where one is not, none is offered, since a host that lost one is not to be
    trusted with work on the others. `reasons` says, by UUID, why a GPU is not offered.
    """
    visible = {state.uuid for state in states}
    missing = {uuid: one for uuid, one in known.items() if uuid not in visible}
    short = missing_words(len(states), offer, tuple(missing))
    gpus = [
        Gpu(
            uuid=state.uuid,
            index=state.index,
            name=state.name,
            arch=offer.arch,
            memory_mb=state.memory_total >> 20,
            driver=state.driver,
            healthy=not (short or reasons.get(state.uuid)),
            reason=reasons.get(state.uuid) or short,
        )
        for state in states
    ]
    gpus += [
        Gpu(
            uuid=uuid,
            index=one.index,
            name=one.name,
            arch=offer.arch,
            healthy=False,
            reason="it is not visible",
        )
        for uuid, one in missing.items()
    ]
    return Inventory(
        arch=offer.arch,
        gpus=tuple(gpus),
        slots=offer.slots,
        sandbox=offer.sandboxed,
        cpus=len(os.sched_getaffinity(0)),
        memory_mb=_host_memory_mb(),
        disk_free_mb=free_disk_mb(folder),
    )


def missing_words(visible: int, offer: Offer, missing: tuple[str, ...]) -> str:
    """What is missing, in a sentence's part; empty where all is there."""
    if missing:
        return f"{', '.join(missing)} missing: {visible} of {visible + len(missing)} GPUs are visible"
    if offer.expected is not None and visible < offer.expected:
        return f"{visible} GPUs of {offer.arch} are visible where {offer.expected} are expected"
    return ""


def free_disk_mb(folder: Path) -> int:
    """Free below a folder, in MiB. Raises OSError."""
    return shutil.disk_usage(folder).free >> 20


def _host_memory_mb() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
