"""Runs the processes of a service: starts them, starts again what dies, and ends them all on SIGTERM."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from reviewer.errors import ReviewError

log = logging.getLogger(__name__)

_CHECK_SECONDS = 0.2
_GRACE_SECONDS = 40.0
_MOST_STARTS, _WITHIN_SECONDS = 5, 60.0


_PR_SET_PDEATHSIG = 1
_SUPERVISOR = "WHITESMOKE_SUPERVISOR"


class ProcessFailed(ReviewError):
    """A process of the service cannot be kept alive."""


@dataclass(slots=True)
class _Child:
    name: str
    arguments: tuple[str, ...]
    process: subprocess.Popen[bytes]
    starts: list[float] = field(default_factory=list)


class Supervisor:
    """Children are `whitesmoke` commands in their own sessions, so that a Ctrl-C reaches them through us alone."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **environment, _SUPERVISOR: str(os.getpid())}
        self._children: list[_Child] = []

    def start(self, name: str, *arguments: str) -> None:
        child = _Child(name, arguments, self._spawn(arguments))
        child.starts.append(time.monotonic())
        self._children.append(child)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, stopped: threading.Event) -> None:
        """Watches until `stopped`. Raises `ProcessFailed` where a child dies again and again."""
        while not stopped.wait(_CHECK_SECONDS):
            for child in self._children:
                if (status := child.process.poll()) is not None:
                    self._restart(child, status)

    def _restart(self, child: _Child, status: int) -> None:
        now = time.monotonic()
        child.starts = [at for at in child.starts if now - at < _WITHIN_SECONDS]
        if len(child.starts) >= _MOST_STARTS:
            raise ProcessFailed(
                f"{child.name} ended {len(child.starts)} times within {_WITHIN_SECONDS:g} s (last status {status})",
                "see its messages above",
            )
        log.warning("%s ended with status %s and is started again", child.name, status)
        child.process = self._spawn(child.arguments)
        child.starts.append(now)

    def _spawn(self, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "service.cli.main", *arguments],
            env=self._environment,
            start_new_session=True,
        )

    def _end(self) -> None:
        """In the reverse order: what others stand on ends last."""
        deadline = time.monotonic() + _GRACE_SECONDS
        for child in reversed(self._children):
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(child.process.pid, signal.SIGKILL)
                child.process.wait()


def end_with_supervisor() -> None:
    """In a supervised process: ends it, with SIGTERM, when its supervisor dies. One that is killed must not leave
    processes that hold ports and files."""
    supervisor = os.environ.get(_SUPERVISOR)
    if supervisor is None:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if str(os.getppid()) != supervisor:
        sys.exit(0)


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM or SIGINT sets."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    return stopped
