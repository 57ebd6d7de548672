"""The device files that a job's GPUs need: its own GPUs', and those that every GPU job shares."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ci_dispatch.model import Gpu

DRIVER = Path("/proc/driver/nvidia")
_SHARED = (
    "nvidiactl",
    "nvidia-uvm",
    "nvidia-uvm-tools",
    "nvidia-caps",
    "nvidia-caps-imex-channels",
    "nvidia-nvswitchctl",
)


@dataclass(frozen=True, slots=True)
class Device:
    """A device file, or folder of such, and where a job sees it."""

    host: Path
    inside: str


def device_files(gpus: Sequence[Gpu], dev: Path = Path("/dev"), driver: Path = DRIVER) -> list[Device]:
    """Files of exactly these GPUs and the shared ones, as far as the host has them; none for a job without a GPU."""
    if not gpus:
        return []
    minors = _minors(driver)
    names = [f"nvidia{minors.get(gpu.uuid, gpu.index)}" for gpu in gpus]
    return [Device(dev / name, f"/dev/{name}") for name in (*names, *_SHARED) if (dev / name).exists()]


def visible(gpus: Sequence[Gpu]) -> str:
    """CUDA_VISIBLE_DEVICES: by UUID, which means the same GPU whichever others the driver counts."""
    return ",".join(gpu.uuid for gpu in gpus)


def _minors(driver: Path) -> dict[str, int]:
    """Number of the device file by UUID: the driver's own count, which need not be NVML's."""
    found = {}
    for file in driver.glob("gpus/*/information"):
        text = file.read_text(errors="replace")
        uuid = re.search(r"^GPU UUID:\s*(\S+)", text, re.MULTILINE)
        minor = re.search(r"^Device Minor:\s*(\d+)", text, re.MULTILINE)
        if uuid and minor:
            found[uuid[1]] = int(minor[1])
    return found
