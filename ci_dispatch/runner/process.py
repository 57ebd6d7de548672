"""Runs one step's command under a supervisor, passes its output on, and ends it when a limit is reached."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ci_dispatch.model import Ending
from ci_dispatch.runner import supervise
from ci_dispatch.runner.logs import Log

_TICK = 0.05
_CHUNK = 1 << 16
_DRAIN_SECONDS = 30.0
_SHELL_SIGNALS = 128
"""A sandbox answers this and the signal's number where the step was ended by one, as shells do."""


@dataclass(frozen=True, slots=True)
class Command:
    """What is run. `limits` are resource limits by their names in the module `resource`; `uid` is whom it will run as, where not as
    this process."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    cwd: Path
    confined: bool = False
    cgroups: Sequence[str] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    cpus: Sequence[int] = ()
    uid: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a step is ended. `at_once` leaves it no time to end by itself."""

    ending: Ending
    detail: str
    at_once: bool = False


class Guard(Protocol):
    """Looks at a running step every tick."""

    def check(self, supervisor: int) -> Stop | None:
        """Why the step must end, or None. `supervisor` is the process that all of its processes are below."""
        ...


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended. `status` is the exit status, or the signal, negative; None where there is none.

    `unconfined` says that the sandbox could not be set up, so that the step never began.
    """

    ending: Ending
    seconds: float
    status: int | None = None
    detail: str = ""
    unconfined: bool = False


def run(
    command: Callable[[int], Command],
    log: Log,
    guards: Sequence[Guard],
    cancelled: threading.Event,
    grace: float,
) -> Ended:
    """Run a command to its end, with everything it started.

    Args:
        command: makes it, given a descriptor to which a sandbox writes how the command ended.
        log: takes its output, from a thread of this call's.
        guards: stop it.
        cancelled: set to stop it.
        grace: seconds between SIGTERM and SIGKILL.

    Raises:
        OSError: the host did not take the log; the command has run to its end.
    """
    started = time.monotonic()
    told, tells = os.pipe()
    os.set_blocking(told, False)  # whoever got away with the other end is not waited for
    try:
        order = command(tells)
        supervisor = _Supervisor(order, tells)
    except OSError as error:
        os.close(told)
        return Ended("not_started", time.monotonic() - started, detail=f"the runner cannot start it: {error}")
    finally:
        os.close(tells)
    with supervisor:
        reader = _Reader(supervisor.output, log)
        stop = _watch(supervisor, _with_log(guards, log), cancelled, grace)
        answer = supervisor.answer()
        reader.finish()
    said = _rest(told)
    return _judge(order, stop, answer, said, time.monotonic() - started)


class _Supervisor:
    """The process of `supervise.py`, and the descriptors that lead to it."""

    def __init__(self, order: Command, tells: int) -> None:
        control, self._control = os.pipe()
        self._status, status = os.pipe()
        self.output, output = os.pipe()
        try:
            if order.uid is not None:
                os.fchown(output, order.uid, order.uid)  # or the step could not open /dev/stdout
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", supervise.__file__, str(control), str(status)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={},
                cwd="/",
                pass_fds=(control, status, tells) if order.confined else (control, status),
                start_new_session=True,
            )
        except OSError:
            for handle in (self._control, self._status, self.output):
                os.close(handle)
            raise
        finally:
            for handle in (control, status, output):
                os.close(handle)
        self.pid = self._process.pid
        message = {
            "argv": list(order.argv),
            "environment": dict(order.environment),
            "cwd": str(order.cwd),
            "confined": order.confined,
            "cgroups": list(order.cgroups),
            "limits": dict(order.limits),
            "cpus": list(order.cpus),
        }
        self._write(json.dumps(message).encode() + b"\n")

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, or is about to, within some seconds."""
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def terminate(self) -> None:
        self._write(b"t")

    def kill(self) -> None:
        self._write(b"k")

    def answer(self) -> dict[str, object] | None:
        """What it says at its end; None where it was killed itself."""
        text = _rest(self._status, close=False)
        self._process.wait()
        return json.loads(text) if text else None

    def _write(self, data: bytes) -> None:
        # Where it is gone, the status pipe's end says so.
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._control, data) :]

    def __enter__(self) -> _Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        # Whatever went wrong here, the closed pipe makes it end the step.
        os.close(self._control)
        self._process.wait()
        os.close(self._status)


class _Reader:
    """A thread that empties the output, so that neither a slow nor a loud step holds the watch up. It closes the descriptor."""

    def __init__(self, handle: int, log: Log) -> None:
        self._handle = handle
        self._log = log
        self._done = threading.Event()
        self._problem: OSError | None = None
        self._thread = threading.Thread(target=self._read, name="step-output", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Waits for the rest of what was written. A process that left the supervisor may hold the pipe open: it is not waited for.
        Raises OSError where the host did not take the log."""
        self._done.set()
        self._thread.join(_DRAIN_SECONDS)
        if self._problem is not None:
            raise self._problem

    def _read(self) -> None:
        try:
            self._pass_on()
        finally:
            os.close(self._handle)

    def _pass_on(self) -> None:
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        while True:
            is_done = self._done.is_set()
            if poll.poll(0 if is_done else 100):
                chunk = os.read(self._handle, _CHUNK)
                if not chunk:
                    return
                self._write(chunk)
            elif is_done:
                return

    def _write(self, chunk: bytes) -> None:
        # The pipe is emptied whatever becomes of the log, or the step would wait for ever.
        if self._problem is None:
            try:
                self._log.write(chunk)
            except OSError as error:
                self._problem = error


class _FullLog:
    def __init__(self, log: Log) -> None:
        self._log = log

    def check(self, supervisor: int) -> Stop | None:
        return Stop("log", "it printed more than is kept of a job's log") if self._log.is_full else None


def _with_log(guards: Sequence[Guard], log: Log) -> Sequence[Guard]:
    return (*guards, _FullLog(log))


def _watch(
    supervisor: _Supervisor, guards: Sequence[Guard], cancelled: threading.Event, grace: float
) -> Stop | None:
    stop: Stop | None = None
    kill_at: float | None = None
    while not supervisor.wait(_TICK):
        if stop is None:
            stop = _first_stop(supervisor.pid, guards, cancelled)
            if stop is not None:
                kill_at = time.monotonic() + (0.0 if stop.at_once else grace)
                if not stop.at_once:
                    supervisor.terminate()
        if kill_at is not None and time.monotonic() >= kill_at:
            supervisor.kill()
            kill_at = None
    return stop


def _first_stop(supervisor: int, guards: Sequence[Guard], cancelled: threading.Event) -> Stop | None:
    if cancelled.is_set():
        return Stop("cancelled", "")
    return next((stop for guard in guards if (stop := guard.check(supervisor)) is not None), None)


def _judge(
    order: Command, stop: Stop | None, answer: dict[str, object] | None, said: bytes, seconds: float
) -> Ended:
    if answer is None:
        return Ended("lost", seconds, detail="the process that supervised the step was killed")
    seconds = float(str(answer["seconds"]))
    status = int(str(answer["status"]))
    if problem := str(answer["problem"]):
        return Ended("not_started", seconds, detail=problem[:2_000])
    if order.confined and status > _SHELL_SIGNALS:
        status = _SHELL_SIGNALS - status
    if stop is not None:
        return Ended(stop.ending, seconds, status, stop.detail)
    if order.confined and status == 1 and b'"exit-code"' not in said:
        detail = "the sandbox could not be set up; the log's last lines say why"
        return Ended("not_started", seconds, detail=detail, unconfined=True)
    return Ended("signalled" if status < 0 else "exited", seconds, status)


def _rest(handle: int, close: bool = True) -> bytes:
    text = b""
    with contextlib.suppress(BlockingIOError):
        while part := os.read(handle, _CHUNK):
            text += part
    if close:
        os.close(handle)
    return text
