"""However a rank ends, all end within seconds, with the reason; nothing of an orderly end waits for anything."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from runtime.engine import Engine
from runtime.parallel import processes
from runtime.parallel.connect import DevicesError
from runtime.parallel.engine import Ranks
from runtime.parallel.processes import RankError
from runtime.request import SamplingParameters
from tests.runtime.parallel_kit import source

SAMPLING = SamplingParameters(max_tokens=100, temperature=1.0, seed=4)
SECONDS = 5.0
ROOT = Path(__file__).parents[2]


def alive(pid: int) -> bool:
    """Whether a process still computes; one that only waits to be asked how it ended does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int) -> None:
    end = time.monotonic() + SECONDS
    while alive(pid):
        assert time.monotonic() < end, "the other rank is still there"
        time.sleep(0.02)


@contextmanager
def running(how: str, device: str = "cpu") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The script, when it has captured its steps, and the process id of its other rank."""
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("parallel_script.py")), device, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if process.stdout.readline() != "here\n":
            process.kill()
            pytest.fail(process.communicate()[1])
        yield process, int(line)
        process.kill()


@pytest.mark.parametrize(("how", "status"), [("close", 0), ("raise", 3), ("forget", 0)])
def test_12_capture_then_exit_ends_in_seconds(how: str, status: int) -> None:
    """Closed, left by an exception, or not closed at all."""
    with running(how) as (process, other):
        started = time.monotonic()
        process.wait(30)
        assert not alive(other), "it was not waited for"
        assert time.monotonic() - started < SECONDS
        _, errors = process.communicate()
        assert process.returncode == status, errors
        assert "Traceback" not in errors


@pytest.mark.parametrize("how", ["stay", "compute"])
def test_rank_0_killed_the_others_end(how: str) -> None:
    with running(how) as (process, other):
        time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
        wait_until_gone(other)


def test_a_rank_that_cannot_listen_ends_with_rank_0_too() -> None:
    """Its orders do not end, as if it waited in a library; the line that carries nothing has."""
    control, control_end = socket.socketpair()
    line, line_end = socket.socketpair()
    ends = (control_end.fileno(), line_end.fileno())
    command = [sys.executable, "-P", "-m", "runtime.parallel.worker", *map(str, (1, *ends))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with control, control_end, subprocess.Popen(command, pass_fds=ends, env=environment) as process:
        line_end.close()
        assert control.recv(4), "it has started"
        assert process.poll() is None
        line.close()
        try:
            assert process.wait(SECONDS) == 1
        finally:
            process.kill()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    with Ranks(2, "cpu") as made:
        yield made


def step_on(serving: Engine) -> None:
    while True:
        serving.step()


def pid_of(ranks: Ranks) -> int:
    return ranks._processes._processes[1].pid


@pytest.mark.parametrize("buckets", [None, (1, 2)])
def test_a_killed_rank_ends_rank_0_with_its_reason(ranks: Ranks, buckets: tuple[int, ...] | None) -> None:
    serving = ranks.build(source(buckets=buckets))
    serving.submit([1, 2, 3], SAMPLING)
    for _ in range(5):
        serving.step()
    os.kill(pid_of(ranks), signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(RankError, match=r"^rank 1: killed by SIGKILL$") as caught:
        step_on(serving)
    assert time.monotonic() - started < SECONDS
    assert (caught.value.rank, caught.value.reason) == (1, "killed by SIGKILL")
    with pytest.raises(RankError, match=r"^rank 1: killed by SIGKILL$"):
        serving.step()


def test_a_rank_killed_while_rank_0_waits_for_it(ranks: Ranks) -> None:
    """Rank 0 is inside a collective, where it cannot be asked."""
    serving = ranks.build(source())
    serving.submit([1, 2, 3], SAMPLING)
    for _ in range(5):
        serving.step()
    os.kill(pid_of(ranks), signal.SIGSTOP)
    killer = threading.Timer(0.5, os.kill, (pid_of(ranks), signal.SIGKILL))
    killer.start()
    started = time.monotonic()
    with pytest.raises(RankError, match=r"^rank 1: killed by SIGKILL$"):
        step_on(serving)
    assert 0.4 < time.monotonic() - started < SECONDS


def test_a_rank_that_dies_while_nothing_is_computed_is_known(ranks: Ranks) -> None:
    serving = ranks.build(source())
    os.kill(pid_of(ranks), signal.SIGTERM)
    end = time.monotonic() + SECONDS
    while serving.failure is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert str(serving.failure) == "rank 1: killed by SIGTERM"
    assert str(ranks.failure) == str(serving.failure)


def test_one_of_three_dies_and_the_third_ends_too() -> None:
    with Ranks(3, "cpu") as ranks:
        first, second = (ranks._processes._processes[rank].pid for rank in (1, 2))
        os.kill(second, signal.SIGKILL)
        wait_until_gone(first)
        with pytest.raises(RankError, match=r"^rank 2: killed by SIGKILL$"):
            ranks.build(source())


def test_a_rank_that_ends_by_itself_or_cannot_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No package to be found where it looks for ours: the interpreter ends with status 1."""
    monkeypatch.setattr(processes, "_ROOT", tmp_path)
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime/__init__.py").touch()
    started = time.monotonic()
    with pytest.raises(RankError, match=r"^rank 1: ended with status 1$"):
        Ranks(2, "cpu")
    assert time.monotonic() - started < SECONDS


def test_a_rank_that_does_not_answer_is_given_up(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    os.kill(pid_of(ranks), signal.SIGSTOP)
    with pytest.raises(RankError, match=r"^rank 1: no answer in 0\.2 s, where closed was expected$"):
        ranks._processes.answers("closed", 0.2)
    wait_until_gone(pid_of(ranks))


def test_a_rank_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "END_SECONDS", 0.3)
    ranks = Ranks(2, "cpu")
    pid = pid_of(ranks)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(RankError, match=r"^rank 1: did not end in 0\.3 s and was killed$"):
        ranks.close()
    assert not alive(pid)
    ranks.close()


def test_work_that_waits_for_a_rank_is_left_when_that_dies(ranks: Ranks) -> None:
    """As meeting over NCCL, which nothing can interrupt."""
    forever = threading.Event()
    threading.Timer(0.2, os.kill, (pid_of(ranks), signal.SIGKILL)).start()
    with pytest.raises(RankError, match=r"^rank 1: killed by SIGKILL$"):
        ranks._processes.beside(forever.wait)
    forever.set()


def test_one_gpu_where_two_are_asked_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(subprocess, "Popen", lambda *_: pytest.fail("a process was started"))
    with pytest.raises(DevicesError, match="2 ranks: expected 2 GPUs, there are 1"):
        Ranks(2, "cuda")
