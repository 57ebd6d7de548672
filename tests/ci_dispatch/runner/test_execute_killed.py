"""The agent or a supervisor dies by SIGKILL: what they ran is gone too."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.kit.runner_jobs import Bench, job, shell, wait_for


@pytest.mark.parametrize("groups", [True, False])
def test_a_supervisor_that_is_killed_takes_its_step_along(
    bench: Bench, groups: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not groups:
        monkeypatch.setattr("ci_dispatch.runner.execute.own_hierarchies", dict)
    watcher = bench.watcher()
    reports: list[object] = []
    thread = threading.Thread(
        target=lambda: reports.append(
            bench.run(job(shell("exec sleep 1234.5"), trusted=True), watcher=watcher)
        )
    )
    thread.start()
    assert wait_for(lambda: _running("sleep\x001234.5\x00"))
    (supervisor,) = [pid for pid in _children(os.getpid()) if "supervise.py" in _command(pid)]
    os.kill(supervisor, 9)
    thread.join(20)
    assert not thread.is_alive()
    assert reports[0].endings == ["lost"]  # type: ignore[attr-defined]
    assert wait_for(lambda: not _running("sleep\x001234.5\x00"))


AGENT = """
import sys
sys.path[:0] = sys.argv[1].split(":")
from pathlib import Path
from tests.kit.runner_jobs import make_bench, job, python
script = (
    "import os, time\\n"
    "if os.fork() == 0:\\n"
    "    os.setsid()\\n"
    "    if os.fork() == 0: os.execv('/bin/sleep', ['sleep', sys_seconds + '1'])\\n"
    "    os._exit(0)\\n"
    "os.execv('/bin/sleep', ['sleep', sys_seconds])\\n"
).replace("sys_seconds", repr(sys.argv[3]))
make_bench(Path(sys.argv[2]), sandboxed=sys.argv[4] == "True").run(job(python(script), trusted=True))
"""


def test_an_agent_that_is_killed_takes_steps_and_daemons_along(bench: Bench) -> None:
    seconds = "4321.5"
    root = Path(__file__).parents[3]
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(root), str(bench.folder), seconds, str(bench.workplace.sandboxed)]
    )
    try:
        assert wait_for(lambda: _running(f"sleep\0{seconds}\0") and _running(f"sleep\0{seconds}1\0"))
    finally:
        agent.kill()
        agent.wait()
    assert wait_for(lambda: not _running(f"sleep\0{seconds}\0") and not _running(f"sleep\0{seconds}1\0"))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _running(command: str) -> bool:
    return any(
        _command(int(entry.name)) == command for entry in Path("/proc").iterdir() if entry.name.isdigit()
    )


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return found
