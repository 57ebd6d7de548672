"""A runner's agent in a thread of the test, on a fake host, with an executor that the test steers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ci_dispatch.model import Gpu, Job, JobReport, StepRun
from ci_dispatch.runner.agent import Agent
from ci_dispatch.runner.base import Sources, Watcher, Workplace
from ci_dispatch.runner.client import Service
from ci_dispatch.runner.files import private_folder
from ci_dispatch.runner.health import Health
from ci_dispatch.runner.host import Execute, Host
from ci_dispatch.runner.identity import load_identity, register
from ci_dispatch.runner.inventory import Devices, Known, Offer
from ci_dispatch.runner.kept import Kept
from ci_dispatch.runner.quarantine import Quarantine
from tests.kit.fake_nvml import FakeNvml
from tests.kit.runner_service import RunnerService

PASSED = StepRun(name="build", ending="exited", status=0, seconds=0.1)


@dataclass
class Steered:
    """An executor: each job waits at `before` and `after` its step begins until the test opens that gate."""

    before: threading.Event = field(default_factory=threading.Event)
    after: threading.Event = field(default_factory=threading.Event)
    chunks: tuple[bytes, ...] = ()
    entered: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @classmethod
    def opened(cls, *chunks: bytes) -> Steered:
        steered = cls(chunks=chunks)
        steered.before.set()
        steered.after.set()
        return steered

    def __call__(
        self, job: Job, gpus: Sequence[Gpu], sources: Sources, watcher: Watcher, workplace: Workplace
    ) -> JobReport:
        self.entered.append((job.spec.name, tuple(gpu.uuid for gpu in gpus)))
        try:
            if not _wait(self.before, watcher):
                return JobReport(cancelled=True)
            watcher.begin("build")
            for chunk in self.chunks:
                watcher.log(chunk)
            if not _wait(self.after, watcher):
                return JobReport(
                    runs=(StepRun(name="build", ending="cancelled", seconds=0.1),), cancelled=True
                )
            return JobReport(runs=(PASSED,))
        finally:
            self.left.append(job.spec.name)


def _wait(gate: threading.Event, watcher: Watcher) -> bool:
    while not gate.wait(0.01):
        if watcher.cancelled.is_set():
            return False
    return True


@dataclass
class Running:
    agent: Agent
    host: Host
    thread: threading.Thread
    problems: list[BaseException]

    def end(self, seconds: float = 30.0) -> None:
        """Waits until the agent has ended by itself."""
        self.thread.join(seconds)
        assert not self.thread.is_alive(), "the agent did not end"
        if self.problems:
            raise self.problems[0]


def build_host(
    folder: Path, *, arch: str = "cpu", slots: int = 1, nvml: FakeNvml | None = None, broken: dict[str, str] | None = None,
    sandboxed: bool = True, settle: float = 0.2,
) -> Host:  # fmt: skip
    private_folder(folder)
    offer = Offer(arch, slots, sandboxed)
    devices = Devices(arch, nvml)
    quarantine = Quarantine(folder / "quarantine.json", good_probes=2)
    quarantine.meet({state.uuid: Known(state.index, state.name) for state in devices.read()})
    faults = {} if broken is None else broken
    health = Health(
        devices,
        offer,
        folder,
        quarantine.known,
        probe=lambda uuid: faults.get(uuid, ""),
        settle_seconds=settle,
    )
    return Host(
        offer=offer,
        devices=devices,
        quarantine=quarantine,
        health=health,
        workplace=Workplace(folder=folder, caches=folder / "caches", sandboxed=sandboxed),
        kept=Kept(folder / "leases"),
    )


@contextmanager
def running(
    service: RunnerService, host: Host, execute: Execute, *, once: bool = False, probe_seconds: float = 0.2,
    claim_seconds: float = 5.0, name: str = "host-1",
) -> Iterator[Running]:  # fmt: skip
    """Registers where that is needed, and works until told to stop."""
    folder = host.workplace.folder
    client = Service(service.url)
    identity = load_identity(folder, service.url, name)
    if identity is None:
        identity = register(client, folder, name, service.token(), host.inventory())
    agent = Agent(
        client, identity, host, execute, once=once, claim_seconds=claim_seconds, probe_seconds=probe_seconds
    )
    problems: list[BaseException] = []

    def run() -> None:
        try:
            agent.run()
        except BaseException as error:  # noqa: BLE001
            problems.append(error)

    thread = threading.Thread(target=run)
    host.devices.start()
    thread.start()
    current = Running(agent, host, thread, problems)
    try:
        yield current
    finally:
        agent.signalled()
        thread.join(0.5)
        agent.signalled()
        thread.join(30)
        host.devices.stop()
        client.__exit__(None, None, None)
        assert not thread.is_alive()
