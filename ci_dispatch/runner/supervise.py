"""Runs one command and ends with all that it started. A program of its own, on the standard library alone.

The agent starts one per step: `python -I -S supervise.py CONTROL STATUS`, with its output where the step's goes. CONTROL is a
descriptor from which it reads one JSON line that says what to run, then one letter at a time: `t` sends SIGTERM to the step, `k`
kills it. At CONTROL's end, so when the agent is gone, it kills too. To STATUS it writes one JSON line, the last thing it does.

It is a subreaper: a daemon of the step, however often it forked, becomes its child and cannot leave it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_NOT_STARTED = 127
_SANDBOX_LAYERS = 2
"""Bubblewrap's own two processes, which the step's lie below: SIGTERM would end the sandbox instead of the step."""


def main(control: int, status: int) -> None:
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for handle in (control, status):
        os.set_inheritable(handle, False)
    order = json.loads(_line(control))
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    failed, failing = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        _become(order, prctl, failing)
    os.close(failing)
    problem = _all(failed)
    ended = _watch(child, control, woken, order["confined"])
    seconds = time.monotonic() - started
    _end_all()
    answer = {"problem": problem, "status": ended, "seconds": seconds}
    os.write(status, json.dumps(answer).encode() + b"\n")


def _become(order: dict[str, Any], prctl: Any, failing: int) -> None:
    """The child: joins what limits it, then is the command. Never returns."""
    doing = "start"
    try:
        os.setsid()
        # A supervisor that is killed takes its direct child along; the rest of a sandbox dies with that one.
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for file in order["cgroups"]:
            doing = f"join {file}"
            handle = os.open(file, os.O_WRONLY)
            os.write(handle, b"0")
            os.close(handle)
        doing = "set limits"
        for name, most in order["limits"].items():
            resource.setrlimit(getattr(resource, name), (most, most))
        if order["cpus"]:
            os.sched_setaffinity(0, order["cpus"])
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        doing = f"run {order['argv'][0]}"
        os.chdir(order["cwd"])
        os.umask(0o022)
        os.execvpe(order["argv"][0], order["argv"], order["environment"])
    except (OSError, ValueError) as error:
        os.write(failing, f"cannot {doing}: {error}".encode())
    os._exit(_NOT_STARTED)


def _watch(child: int, control: int, woken: int, confined: bool) -> int:
    """Waits for the command, obeying the agent. Answers its exit status, or the signal, negative."""
    poll = select.poll()
    for handle in (control, woken):
        poll.register(handle, select.POLLIN)
    while True:
        ready = {handle for handle, _ in poll.poll(1000)}
        if woken in ready:
            os.read(woken, 4096)
        if control in ready:
            letters = os.read(control, 64)
            if not letters or b"k" in letters:
                poll.unregister(control)
                os.kill(child, signal.SIGKILL)
            else:
                _terminate(confined)
        # Orphans that ended are collected on the way; the command's own end ends the watch.
        while True:
            try:
                gone, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                gone = 0
            if gone == 0:
                break
            if gone == child:
                return os.waitstatus_to_exitcode(status)


def _terminate(confined: bool) -> None:
    spared = _SANDBOX_LAYERS if confined else 0
    for pid, depth in descendants(os.getpid()):
        if depth > spared:
            _signal(pid, signal.SIGTERM)


def _end_all() -> None:
    """Kills every process that is left and collects it.

    Only children are killed: what hangs below them becomes a child in turn, at once. Asking for children alone is fast enough to catch
    those that fork on and on, always a step ahead of whoever walks all processes.
    """
    while True:
        for pid in _children():
            _signal(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.0001)


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:  # a kernel that does not offer it
        return [pid for pid, depth in descendants(os.getpid()) if depth == 1]


def descendants(root: int) -> list[tuple[int, int]]:
    """Living processes below `root`, with their depth: 1 for a child."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rsplit(b")", 1)[1].split()[:2]
        except (OSError, IndexError):
            continue
        # A zombie counts as long as others may hang below it.
        children.setdefault(int(parent), []).append(int(name) if state != b"Z" else -int(name))
    found: list[tuple[int, int]] = []
    level = [(root, 0)]
    while level:
        pid, depth = level.pop()
        for child in children.get(pid, ()):
            level.append((abs(child), depth + 1))
            if child > 0:
                found.append((child, depth + 1))
    return found


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _line(handle: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(handle, 1)
        if not byte:
            sys.exit(1)
        line += byte
    return line


def _all(handle: int) -> str:
    text = b""
    while part := os.read(handle, 4096):
        text += part
    os.close(handle)
    return text.decode(errors="replace")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
