"""The escapes of docs/sandbox.md, each tried for real by an untrusted job. A test here that cannot fail is worth nothing: each has
its counterpart that succeeds without the sandbox, or asserts that the attempt was made."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci_dispatch.model import Golden, Gpu
from ci_dispatch.runner import devices
from ci_dispatch.runner.sandbox import Confinement, View, arguments, write_etc
from tests.kit.runner_jobs import Bench, MemorySources, job, python, shell, wait_for

LISTEN = "import socket; s = socket.create_connection(('127.0.0.1', {port}), 3); print(s.recv(10))"


def running(command: list[str]) -> list[int]:
    wanted = "\0".join(command) + "\0"
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_text() == wanted:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_the_agents_environment_and_its_ancestors_cannot_be_read(
    confined: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_TOKEN", "wsm-secret")
    script = (
        "import glob, os\n"
        "print(*(p[6:] for p in glob.glob('/proc/[0-9]*')))\n"
        "for name in glob.glob('/proc/[0-9]*/environ') + ['/proc/%d/environ' % os.getppid()]:\n"
        "    try: print(name, open(name, 'rb').read())\n"
        "    except OSError as error: print(name, error)\n"
    )
    ran = confined.run(job(python(script)))
    assert ran.endings == ["exited"]
    assert "/proc/1/environ" in ran.log
    assert "wsm-secret" not in ran.log
    assert str(os.getpid()) not in ran.log.splitlines()[0].split()


def test_a_token_on_the_host_cannot_be_read(confined: Bench) -> None:
    token = confined.folder / "token"
    token.write_text("wsm-secret")
    places = [token, Path("/etc/shadow"), Path("/root"), Path("/home"), Path("/var/lib"), Path("/run")]
    script = "\n".join(f"cat {place}; ls -A {place}" for place in places)
    ran = confined.run(job(shell(script + "\necho end", name="smoke")))
    assert ran.log.splitlines()[-1] == "end"
    assert "wsm-secret" not in ran.log
    assert "root:$" not in ran.log
    listed = [line for line in ran.log.splitlines() if not line.startswith(("cat:", "ls:"))]
    assert listed == ["end"]


def test_files_of_the_host_cannot_be_written(confined: Bench) -> None:
    script = "for place in / /usr /etc /opt /dev /proc/sys/kernel /sys /home; do touch $place/x && echo WROTE $place; done; echo end"
    assert confined.run(job(shell(script))).log.splitlines()[-1] == "end"
    assert "WROTE" not in confined.run(job(shell(script))).log.replace("echo WROTE", "")


def test_the_job_has_no_rights_of_root(confined: Bench) -> None:
    script = "grep -E '^(Cap|NoNewPrivs)' /proc/self/status; printf 'user:\\t'; id -u; mount -t tmpfs x /job/tree 2>&1; su -c id 2>&1; echo end"
    ran = confined.run(job(shell(script)))
    lines = dict(line.split(":\t") for line in ran.log.splitlines() if ":\t" in line)
    assert {lines[name] for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {"0" * 16}
    assert lines["NoNewPrivs"] == "1"
    assert "uid=0" not in ran.log
    if os.geteuid() == 0:
        assert 70_000 <= int(lines["user"]) < 71_000


def test_another_jobs_folders_cannot_be_seen(confined: Bench) -> None:
    """Two jobs at a time: the second looks for the first one's tree, home and output."""
    watcher = confined.watcher()
    first = threading.Thread(
        target=confined.run,
        args=(job(shell("echo mine > $OUT/mine; echo mine > $HOME/mine; echo ready; exec sleep 1000")),),
        kwargs={"watcher": watcher},
    )
    first.start()
    try:
        assert wait_for(lambda: "\nready" in watcher.text)
        jobs = confined.workplace.folder / "jobs"
        assert list(jobs.glob("*/out/smoke/mine"))
        assert list(jobs.glob("*/head/home/mine"))
        script = f"ls {jobs} {confined.workplace.folder}; find / -xdev -name 'min[e]' 2>/dev/null; find /tmp /home /job; cat /proc/mounts; ps ax; echo end"
        ran = confined.run(job(shell(script)))
    finally:
        watcher.cancelled.set()
        first.join(20)
    assert ran.log.splitlines()[-1] == "end"
    assert "mine" not in ran.log
    assert "sleep 1000" not in ran.log


@pytest.mark.skipif(os.geteuid() != 0, reason="another user for each job needs root")
def test_two_jobs_run_as_two_users(confined: Bench) -> None:
    watcher = confined.watcher()
    first = threading.Thread(
        target=confined.run, args=(job(shell("id -u; exec sleep 1000")),), kwargs={"watcher": watcher}
    )
    first.start()
    try:
        assert wait_for(lambda: "\n70" in watcher.text)
        second = confined.run(job(shell("id -u"))).log
    finally:
        watcher.cancelled.set()
        first.join(20)
    assert second != watcher.text.splitlines()[1]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        yield server


def accepts(server: socket.socket) -> bool:
    try:
        connection, _ = server.accept()
    except TimeoutError:
        return False
    connection.sendall(b"hello")
    connection.close()
    return True


def test_the_network_cannot_be_reached(confined: Bench, listener: socket.socket) -> None:
    script = LISTEN.format(port=listener.getsockname()[1])
    ran = confined.run(job(python(script)))
    assert ran.report.runs[0].status == 1
    assert "refused" in ran.log
    assert not accepts(listener)


def test_without_a_sandbox_the_network_is_reached(plain: Bench, listener: socket.socket) -> None:
    accepted: list[bool] = []
    thread = threading.Thread(target=lambda: accepted.append(wait_for(lambda: accepts(listener))))
    thread.start()
    ran = plain.run(job(python(LISTEN.format(port=listener.getsockname()[1])), trusted=True))
    thread.join(20)
    assert accepted == [True]
    assert "hello" in ran.log


def test_a_socket_of_the_host_without_a_name_in_the_file_system_cannot_be_reached(confined: Bench) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0whitesmoke-test")
        server.listen()
        script = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0whitesmoke-test'); print('connected')"
        ran = confined.run(job(python(script)))
    assert ran.report.runs[0].status == 1
    assert "connected" not in ran.log.splitlines()


def test_the_jobs_own_loopback_works(confined: Bench) -> None:
    script = "import socket; s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); print('up')"
    assert confined.run(job(python(script))).log == "up"


def _nodes(folder: Path, names: list[str]) -> None:
    for name in names:
        try:
            os.mknod(folder / name, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            (folder / name).touch()


def test_another_gpu_cannot_be_opened(found: Confinement, tmp_path: Path) -> None:
    dev, driver = tmp_path / "dev", tmp_path / "driver"
    dev.mkdir()
    _nodes(dev, ["nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"])
    information = driver / "gpus/0000:01:00.0/information"
    information.parent.mkdir(parents=True)
    information.write_text("Model: \t\t GPU\nGPU UUID: \t GPU-b\nDevice Minor: \t 2\n")
    # NVML counts it as 1; its file is number 2.
    given = devices.device_files([Gpu(uuid="GPU-b", index=1, arch="sm90")], dev, driver)
    for name in ("tree", "out", "home", "cache"):
        (tmp_path / name).mkdir()
    write_etc(tmp_path / "etc", 70_000)
    view = View(
        tree=tmp_path / "tree",
        out=tmp_path / "out",
        home=tmp_path / "home",
        cache=tmp_path / "cache",
        etc=tmp_path / "etc",
        uid=70_000,
        devices=tuple(given),
    )
    ran = subprocess.run(
        arguments(
            found,
            view,
            [
                "/bin/sh",
                "-c",
                "cd /dev; ls -d nvidia*; for f in nvidia0 nvidia1 nvidia2; do (: < $f) && echo opened $f; done; mknod x c 1 3",
            ],
        ),
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert ran.stdout.splitlines() == ["nvidia-uvm", "nvidia2", "nvidiactl", "opened nvidia2"]


def test_a_job_without_gpus_is_given_no_device(tmp_path: Path) -> None:
    _nodes(tmp_path, ["nvidia0", "nvidiactl"])
    assert devices.device_files([], tmp_path) == []


def test_the_cache_of_another_trust_domain_cannot_be_seen(confined: Bench) -> None:
    write = job(
        shell("mkdir -p $TRITON_CACHE_DIR; echo theirs > $TRITON_CACHE_DIR/key"),
        trusted=True,
        repo="other/name",
    )
    assert confined.run(write).endings == ["exited"]
    ran = confined.run(job(shell(f"find /job/cache; ls {confined.workplace.caches}; echo end")))
    assert ran.log.splitlines()[-1] == "end"
    assert "key" not in ran.log


def test_a_forks_job_reads_its_repositorys_cache_and_cannot_change_it(confined: Bench) -> None:
    confined.run(job(shell("mkdir -p $TRITON_CACHE_DIR; echo good > $TRITON_CACHE_DIR/key"), trusted=True))
    poison = job(
        shell("cat $TRITON_CACHE_DIR/key; echo bad > $TRITON_CACHE_DIR/key; echo bad > $TRITON_CACHE_DIR/new")
    )
    ran = confined.run(poison)
    assert ran.endings == ["exited"]
    assert ran.log == "good"
    after = confined.run(job(shell("cat $TRITON_CACHE_DIR/*"), trusted=True))
    assert after.log == "good"


DAEMON = (
    "import os, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        null = os.open('/dev/null', os.O_RDWR)\n"
    "        [os.dup2(null, n) for n in range(3)]\n"
    "        os.execv('/bin/sleep', ['sleep', '{seconds}'])\n"
    "    os._exit(0)\n"
    "os.wait(); time.sleep(0.3)\n"
)


@pytest.mark.parametrize("seconds", ["7001.5"])
def test_a_daemon_does_not_outlive_its_step_and_the_next_job_sees_nothing_of_it(
    bench: Bench, seconds: str
) -> None:
    ran = bench.run(
        job(python(DAEMON.format(seconds=seconds) + "os.system('ps ax')", name="build"), trusted=True)
    )
    assert ran.endings == ["exited"]
    assert f"sleep {seconds}" in ran.log, "the daemon never ran"
    assert running(["sleep", seconds]) == []
    assert f"sleep {seconds}" not in bench.run(job(shell("ps ax"), trusted=True)).log


@pytest.mark.parametrize("pause", ["0", "0.001"])
def test_many_daemons_that_fork_on_are_all_killed(bench: Bench, pause: str) -> None:
    script = (
        "import os, time\n"
        "end = time.monotonic() + 60\n"
        "for _ in range(5):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        while time.monotonic() < end:\n"
        "            if os.fork(): os._exit(0)\n"  # another process id each time
        "            time.sleep({pause})\n"
        "        os._exit(0)\n"
        "print(os.getpid()); time.sleep(0.5)\n"
    )
    before = set(os.listdir("/proc"))
    ran = bench.run(job(python(script.format(pause=pause)), trusted=True))
    assert ran.endings == ["exited"]
    left = []
    for name in set(os.listdir("/proc")) - before:
        try:
            if name.isdigit() and "setsid" in Path(f"/proc/{name}/cmdline").read_text():
                left.append(name)
        except OSError:
            continue
    assert left == []


def test_a_fork_bomb_is_contained(confined: Bench) -> None:
    script = (
        "import os, time\n"
        "made = 0\n"
        "try:\n"
        "    while made < 500:\n"
        "        if os.fork() == 0: time.sleep(60); os._exit(0)\n"
        "        made += 1\n"
        "except OSError as error: print('refused after', made, error)\n"
    )
    ran = confined.run(job(python(script), processes=40))
    assert ran.endings == ["exited"]
    assert "refused after" in ran.log
    assert int(ran.log.split()[2]) < 40


def test_memory_beyond_the_limit_ends_the_step(bench: Bench) -> None:
    script = "import time\nb = bytearray()\nfor _ in range(60): b += b'x' * (8 << 20); time.sleep(0.02)\nprint('had it all')"
    ran = bench.run(job(python(script), trusted=True, memory_mb=96))
    assert ran.endings == ["memory"]
    assert "96 MiB" in ran.report.runs[0].detail
    assert "had it all" not in ran.log.splitlines()


def test_a_full_disk_ends_the_step(bench: Bench) -> None:
    script = "for i in 1 2 3 4 5 6 7 8 9; do dd if=/dev/zero of=f$i bs=1M count=8 2>/dev/null; sleep 0.1; done; sleep 1000"
    ran = bench.run(job(shell(script, timeout=60), trusted=True, disk_mb=24))
    assert ran.endings == ["disk"]
    assert "24 MiB" in ran.report.runs[0].detail


def test_files_that_were_deleted_count_as_long_as_they_are_open(bench: Bench) -> None:
    script = (
        "import os, time\n"
        "held = []\n"
        "for i in range(9):\n"
        "    f = open('f', 'wb'); f.write(b'x' * (8 << 20)); f.flush(); os.fsync(f.fileno()); os.unlink('f'); held.append(f); time.sleep(0.1)\n"
        "time.sleep(1000)\n"
    )
    ran = bench.run(job(python(script), trusted=True, disk_mb=24))
    assert ran.endings == ["disk"]


def test_one_file_cannot_be_larger_than_the_disk_limit(bench: Bench) -> None:
    ran = bench.run(job(shell("exec truncate -s 1G f"), trusted=True, disk_mb=16))
    assert ran.endings in (["disk"], ["exited"])
    assert ran.report.runs[0].status != 0


def test_scratch_space_in_memory_is_bounded(confined: Bench) -> None:
    ran = confined.run(
        job(shell("dd if=/dev/zero of=/dev/shm/f bs=1M count=200"), memory_mb=64, disk_mb=4096)
    )
    assert ran.report.runs[0].status != 0


def test_a_step_of_the_head_cannot_touch_the_base(confined: Bench) -> None:
    kept = '{"provenance": {"suite": "s", "arch": "cpu", "dtype": "d"}, "cases": {"a": [{"text": "old"}]}}'
    forged = kept.replace("old", "new")
    script = f"find / -xdev -name kept.json 2>/dev/null; ls /; echo '{forged}' > $OUT/raw.json; echo end"
    ran = confined.run(
        job(shell(script), goldens=(Golden(output="raw.json", kept="kept.json"),)),
        MemorySources(base={"kept.json": kept}),
    )
    assert "/kept.json" not in ran.log
    assert [compared.different for compared in ran.report.comparisons] == [1]


def test_raw_outputs_that_are_a_link_are_not_followed(bench: Bench) -> None:
    kept = '{"provenance": {"suite": "s", "arch": "cpu", "dtype": "d"}, "cases": {"a": [{"text": "old"}]}}'
    there = bench.folder / "kept.json"
    there.write_text(kept)
    ran = bench.run(
        job(
            shell(f"ln -s {there} $OUT/raw.json"),
            trusted=True,
            goldens=(Golden(output="raw.json", kept="kept.json"),),
        ),
        MemorySources(base={"kept.json": kept}),
    )
    assert ran.report.comparisons[0].refused


def test_every_escape_of_the_written_list_is_a_test() -> None:
    root = Path(__file__).parents[3]
    named = set(re.findall(r"`(test_\w+)`", (root / "docs/sandbox.md").read_text()))
    tests = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    assert len(named) > 25
    assert [name for name in named if f"def {name}(" not in tests] == []
