"""What an agent stands on: its offer, its GPUs, where jobs run, and what is kept between lives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ci_dispatch.model import Gpu, Inventory, Job, JobReport
from ci_dispatch.runner.base import Sources, Watcher, Workplace
from ci_dispatch.runner.capacity import Capacity
from ci_dispatch.runner.health import Health
from ci_dispatch.runner.inventory import Devices, Offer, build_inventory
from ci_dispatch.runner.kept import Kept
from ci_dispatch.runner.quarantine import Quarantine

Execute = Callable[[Job, Sequence[Gpu], Sources, Watcher, Workplace], JobReport]
"""Runs a job's steps; `runner.execute.execute` is the real one."""


@dataclass(slots=True)
class Host:
    """The parts, and what they show together."""

    offer: Offer
    devices: Devices
    quarantine: Quarantine
    health: Health
    workplace: Workplace
    kept: Kept
    capacity: Capacity = field(init=False)

    def __post_init__(self) -> None:
        self.capacity = Capacity(self.offer.slots)

    def inventory(self) -> Inventory:
        """The offer as of now. Raises OSError where the runner's folder is gone."""
        quarantine = self.quarantine
        return build_inventory(
            self.offer,
            self.devices.read(),
            quarantine.known(),
            quarantine.reasons(),
            self.workplace.folder,
        )
