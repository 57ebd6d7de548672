"""Puts an agent together from what the command line says, and cleans up after the one before."""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from pydantic import TypeAdapter, ValidationError

from ci_dispatch.model import Arch, JobName
from ci_dispatch.protocol import Beat
from ci_dispatch.runner.agent import Agent
from ci_dispatch.runner.base import Workplace
from ci_dispatch.runner.client import Service, travels_in_clear
from ci_dispatch.runner.errors import Refused, RunnerError, Unreachable
from ci_dispatch.runner.execute import execute
from ci_dispatch.runner.files import private_folder
from ci_dispatch.runner.health import Health
from ci_dispatch.runner.host import Host
from ci_dispatch.runner.identity import Identity, forget_identity, load_identity, only_agent, register
from ci_dispatch.runner.inventory import Devices, Known, Offer, open_devices
from ci_dispatch.runner.kept import Kept
from ci_dispatch.runner.leftovers import sweep
from ci_dispatch.runner.quarantine import Quarantine
from ci_dispatch.runner.sandbox import confinement

logger = logging.getLogger(__name__)

_FIRST_BEAT_PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class Options:
    """What whoever starts a runner says. `token` is only needed where the service does not know it yet."""

    url: str
    arch: Arch
    folder: Path
    name: str
    token: str = field(default="", repr=False)
    slots: int = 1
    expected: int | None = None
    passed: dict[str, str] = field(default_factory=dict)
    readonly: tuple[Path, ...] = ()
    sandbox: bool = True
    once: bool = False


def run_agent(options: Options, signals: Sequence[signal.Signals]) -> None:
    """Works until it has drained. Raises RunnerError, OSError."""
    try:
        TypeAdapter(JobName).validate_python(options.name)
    except ValidationError:
        raise RunnerError(
            f"{options.name!r} is no name for a runner", "give one of letters, digits, - _ . with --name"
        ) from None
    folder = private_folder(options.folder.absolute())
    if travels_in_clear(options.url):
        logger.warning("%s is not https: tokens can be read on their way to it", options.url)
    with only_agent(folder), Service(options.url) as service:
        workplace = _workplace(options, folder)
        sweep(folder / "jobs")
        devices = open_devices(options.arch)
        devices.start()
        try:
            host = _host(options, devices, workplace)
            identity = _identify(service, host, options)
            agent = Agent(service, identity, host, execute, once=options.once)

            def told(number: int, frame: FrameType | None) -> None:
                agent.signalled()

            for number in signals:
                signal.signal(number, told)
            agent.run()
        finally:
            devices.stop()


def _workplace(options: Options, folder: Path) -> Workplace:
    confined = confinement(options.sandbox)
    if not confined.works:
        logger.warning("jobs of forks are not taken, others run unconfined: %s", confined.problem)
    return Workplace(
        folder=folder,
        caches=folder / "caches",
        passed=options.passed,
        readonly=options.readonly,
        sandboxed=confined.works,
    )


def _host(options: Options, devices: Devices, workplace: Workplace) -> Host:
    offer = Offer(options.arch, options.slots, workplace.sandboxed, options.expected)
    quarantine = Quarantine(workplace.folder / "quarantine.json")
    seen = {state.uuid: Known(state.index, state.name) for state in devices.read()}
    enough = options.expected is not None and len(seen) >= options.expected
    quarantine.meet(seen, forget_others=enough)
    for uuid, reason in quarantine.reasons().items():
        logger.warning("GPU %s is not offered: %s", uuid, reason)
    return Host(
        offer=offer,
        devices=devices,
        quarantine=quarantine,
        health=Health(devices, offer, workplace.folder, quarantine.known),
        workplace=workplace,
        kept=Kept(workplace.folder / "leases"),
    )


def _identify(service: Service, host: Host, options: Options) -> Identity:
    """Who this runner is: the one that it was, if the service still knows it, else a new one for a registration token."""
    folder = host.workplace.folder
    identity = load_identity(folder, options.url, options.name)
    if identity is not None:
        try:
            service.beat(identity.secret, Beat(inventory=host.inventory()), patience=_FIRST_BEAT_PATIENCE)
        except Unreachable as error:
            logger.warning("%s; going on as %s", error, identity.name)
        except Refused as refused:
            if refused.status != 401:
                raise
            forget_identity(folder)
            identity = None
    if identity is None:
        identity = register(service, folder, options.name, options.token, host.inventory())
        logger.info("registered as %s", identity.name)
    offered = [gpu for gpu in host.inventory().gpus if gpu.healthy]
    logger.info(
        "%s offers %d GPUs of %s and %d slots to %s",
        identity.name,
        len(offered),
        options.arch,
        options.slots,
        service.url,
    )
    return identity
