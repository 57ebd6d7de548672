"""The sandbox's set-up and the limits that no sandbox holds: as root and as a user, with control groups and without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pydantic
import pytest

from ci_dispatch.runner import cgroup, limits, sandbox
from ci_dispatch.runner.cgroup import Hierarchy, Limits
from ci_dispatch.runner.sandbox import confinement
from tests.kit.runner_jobs import Bench, job, make_bench, python, shell


def test_a_host_without_bubblewrap_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    found = confinement()
    assert not found.works
    assert "not installed" in found.problem


def test_a_host_where_bubblewrap_cannot_make_namespaces_says_what_it_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = confinement()
    assert not found.works
    assert "No permissions to create new namespace" in found.problem


def test_a_sandbox_that_breaks_after_the_probe_is_the_hosts_fault(
    confined: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "bin/bwrap"
    fake.parent.mkdir()
    fake.write_text(
        '#!/bin/sh\ncase "$*" in *json-status*) echo "bwrap: no space" >&2; exit 1;; esac\nexit 0\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    ran = confined.run(job(shell("true")))
    assert ran.endings == ["not_started"]
    assert [notice.kind for notice in ran.report.notices] == ["agent"]
    assert "bwrap: no space" in ran.report.log_tail


def test_folders_that_the_operator_names_are_seen_and_cannot_be_written(confined: Bench) -> None:
    tools = confined.folder / "deep/tools"
    tools.mkdir(parents=True)
    (tools / "tool").write_text("#!/bin/sh\necho it works\n")
    (tools / "tool").chmod(0o755)
    (confined.folder / "deep/secret").write_text("x")
    path = f"{tools}:/usr/bin:/bin"
    workplace = make_bench(confined.folder, readonly=(tools,), passed={"PATH": path}).workplace
    ran = confined.run(job(shell(f"tool; touch {tools}/x; ls {tools.parent}")), workplace=workplace)
    assert ran.log.splitlines()[0] == "it works"
    assert "Read-only" in ran.log
    assert "secret" not in ran.log


def test_a_command_outside_what_jobs_see_is_named_with_the_remedy(confined: Bench) -> None:
    tool = confined.folder / "tools/tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    workplace = make_bench(confined.folder, passed={"PATH": str(tool.parent)}).workplace
    step = shell("true").model_copy(update={"argv": ("tool",)})
    ran = confined.run(job(step), workplace=workplace)
    assert ran.endings == ["not_started"]
    assert "read-only" in ran.report.runs[0].detail


def test_a_folder_named_too_widely_does_not_bring_the_hosts_etc_back(confined: Bench) -> None:
    workplace = make_bench(confined.folder, readonly=(Path("/etc"),)).workplace
    ran = confined.run(
        job(shell("cat /etc/shadow /etc/hostname; cat /etc/passwd | wc -l")), workplace=workplace
    )
    assert ran.log.splitlines()[-1] == "2"


def test_processes_are_limited_without_control_groups(
    confined: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "own_hierarchies", dict)
    monkeypatch.setattr("ci_dispatch.runner.execute.own_hierarchies", dict)
    script = (
        "import os, time\nmade = 0\n"
        "try:\n    while made < 200:\n        if os.fork() == 0: time.sleep(60); os._exit(0)\n        made += 1\n"
        "except OSError: print('refused after', made)\n"
    )
    ran = confined.run(job(python(script), processes=30))
    assert "refused after" in ran.log
    assert "resource limit" in ran.report.environment["limit.processes"]


def test_processes_and_memory_are_watched_where_nothing_else_limits_them(
    plain: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ci_dispatch.runner.execute.own_hierarchies", dict)
    bomb = "import os, time\nfor _ in range(60):\n    if os.fork() == 0: time.sleep(60); os._exit(0)\ntime.sleep(60)\n"
    ran = plain.run(job(python(bomb), trusted=True, processes=20))
    assert ran.endings == ["processes"]
    eater = "import time\nb = bytearray(b'x') * (200 << 20)\ntime.sleep(60)"
    ran = plain.run(job(python(eater), trusted=True, memory_mb=100))
    assert ran.endings == ["memory"]
    assert "watched" in ran.report.environment["limit.memory"]


def test_pages_that_forks_share_count_once(plain: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ci_dispatch.runner.execute.own_hierarchies", dict)
    script = (
        "import os, time\nb = bytearray(b'x') * (60 << 20)\n"
        "for _ in range(3):\n    if os.fork() == 0: time.sleep(1.5); os._exit(0)\n"
        "time.sleep(1.2)\n"
    )
    assert plain.run(job(python(script), trusted=True, memory_mb=150)).endings == ["exited"]


def test_processors_are_limited_by_a_set_without_control_groups(
    plain: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ci_dispatch.runner.execute.own_hierarchies", dict)
    ran = plain.run(job(python("import os; print(len(os.sched_getaffinity(0)))"), trusted=True, cpus=1))
    assert ran.log == "1"


def test_a_host_whose_disk_is_nearly_full_stops_the_job_that_writes(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    guard = limits.DiskGuard([tmp_path], limit=1 << 40, reserve=free)
    guard._reserve = free  # what is free now is all that must stay free
    assert guard.check(os.getpid()) is None
    (tmp_path / "f").write_bytes(os.urandom(8 << 20))
    os.sync()
    stop = guard.check(os.getpid())
    assert stop is not None
    assert "host" in stop.detail


V1 = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
38 31 0:35 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""


def test_groups_are_found_in_version_1_beside_an_empty_unified_one() -> None:
    own = "8:pids:/\n4:memory:/docker/abc/job\n1:cpu,cpuacct:/user\n0::/x\n"
    assert cgroup.hierarchies(own, V1) == {
        "cpu": Hierarchy(Path("/sys/fs/cgroup/cpu,cpuacct/user"), 1),
        "memory": Hierarchy(Path("/sys/fs/cgroup/memory/job"), 1),
        "pids": Hierarchy(Path("/sys/fs/cgroup/unified/x"), 2),
    }


def test_groups_are_found_in_version_2() -> None:
    mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
    found = cgroup.hierarchies("0::/system.slice/runner.service\n", mounts)
    assert set(found) == {"memory", "pids", "cpu"}
    assert found["cpu"] == Hierarchy(Path("/sys/fs/cgroup/system.slice/runner.service"), 2)


def test_a_host_without_control_groups_has_none() -> None:
    assert cgroup.hierarchies("", "") == {}


def test_settings_of_both_versions() -> None:
    limit = Limits(1 << 30, 100, 1.5)
    assert cgroup.settings("memory", 2, limit) == {"memory.max": str(1 << 30)}
    assert cgroup.settings("memory", 1, limit) == {"memory.limit_in_bytes": str(1 << 30)}
    assert cgroup.settings("pids", 1, limit) == cgroup.settings("pids", 2, limit) == {"pids.max": "100"}
    assert cgroup.settings("cpu", 2, limit) == {"cpu.max": "150000 100000"}
    assert cgroup.settings("cpu", 1, limit) == {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"}


def test_a_place_where_no_group_can_be_made_gives_none(tmp_path: Path) -> None:
    places = {"memory": Hierarchy(tmp_path / "absent", 1), "pids": Hierarchy(tmp_path, 2)}
    group = cgroup.make_group("x", Limits(1 << 30, 10), places)
    assert group.controllers == frozenset()
    assert group.join_files == ()
    assert list(tmp_path.iterdir()) == []
    group.close()


def test_an_agent_alone_in_its_delegated_group_moves_down_to_make_groups(tmp_path: Path) -> None:
    """Version 2 as a service manager delegates it, in plain files."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    (tmp_path / "cgroup.subtree_control").write_text("")
    (tmp_path / "cgroup.type").write_text("domain")
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    group = cgroup.make_group("x", Limits(1 << 30, 10), {"memory": Hierarchy(tmp_path, 2)})
    assert group.controllers == {"memory"}
    assert (tmp_path / "whitesmoke-agent/cgroup.procs").read_text() == "0"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory"
    assert (tmp_path / f"whitesmoke-{os.getpid()}-x/memory.max").read_text() == str(1 << 30)
    assert group.join_files == (str(tmp_path / f"whitesmoke-{os.getpid()}-x/cgroup.procs"),)


def test_a_group_without_the_controller_is_no_group(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu")
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    assert cgroup.make_group("x", Limits(1, 1), {"memory": Hierarchy(tmp_path, 2)}).controllers == frozenset()
    assert not (tmp_path / "whitesmoke-agent").exists()


def test_groups_are_gone_after_the_job(bench: Bench) -> None:
    before = _groups()
    bench.run(job(shell("sleep 1000 & true"), trusted=True))
    assert _groups() - before == set()


def test_groups_of_an_agent_that_was_killed_are_removed_and_those_in_use_are_not(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead, alive = tmp_path / f"whitesmoke-{ended.pid}-x", tmp_path / f"whitesmoke-{os.getppid()}-x"
    for folder in (dead, alive, tmp_path / "whitesmoke-agent"):
        folder.mkdir()
    cgroup.make_group("y", Limits(1 << 30, 10), {"memory": Hierarchy(tmp_path, 1)})
    assert not dead.exists()
    assert alive.exists()
    assert (tmp_path / "whitesmoke-agent").exists()


def _groups() -> set[Path]:
    return {
        folder
        for place in cgroup.own_hierarchies().values()
        for folder in place.folder.glob("whitesmoke-*-a-job-*")
    }


AS_USER = """
import sys
sys.path[:0] = sys.argv[1].split(":")
from pathlib import Path
from ci_dispatch.runner.sandbox import confinement
from tests.kit.runner_jobs import make_bench, job, shell, python
found = confinement()
if not found.works:
    print("SKIP", found.problem); sys.exit()
bench = make_bench(Path(sys.argv[2]))
ran = bench.run(job(shell("id -u; for f in /x /dev/x /etc/x /usr/x /sys/x; do touch $f && echo WROTE $f; done 2>/dev/null; echo a > $OUT/a; mkdir d; touch d/f; chmod 0 d; exit 7")))
print(ran.log)
print([(run.ending, run.status) for run in ran.report.runs], [a.path for a in ran.report.artifacts])
print(list((bench.workplace.folder / "jobs").iterdir()), ran.report.environment["sandbox"])
bomb = "import os, time\\nmade = 0\\ntry:\\n    while made < 200:\\n        if os.fork() == 0: time.sleep(60); os._exit(0)\\n        made += 1\\nexcept OSError: print('refused')\\n"
print(bench.run(job(python(bomb), processes=30)).log)
print(bench.run(job(python("b = b'x' * (300 << 20); import time; time.sleep(60)"), memory_mb=100)).endings)
print(bench.run(job(shell("sleep 1000", timeout=0.5))).endings)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="this process is a user already: the other tests show it")
def test_it_works_for_an_agent_that_is_not_root(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    modules = f"{root}:{Path(pydantic.__file__).parents[1]}"
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
    # This interpreter may lie where only root looks; any of the same version does.
    program = f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    check = [
        *user,
        program,
        "-c",
        f"import sys; sys.path[:0] = {modules!r}.split(':'); import ci_dispatch.model",
    ]
    if not Path(program).exists() or subprocess.run(check, capture_output=True, check=False).returncode:
        pytest.skip("another user has no interpreter here that can import the runner")
    folder = Path("/tmp") / f"whitesmoke-user-{os.getpid()}"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    try:
        ran = subprocess.run(
            [*user, program, "-c", AS_USER, modules, str(folder)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            cwd="/",
        )
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=False)
    assert ran.returncode == 0, ran.stderr
    if ran.stdout.startswith("SKIP"):
        pytest.skip(ran.stdout)
    lines = ran.stdout.splitlines()
    assert lines[0] == "65534"
    assert lines[1:] == [
        "[('exited', 7)] ['smoke/a']",
        "[] bubblewrap, user namespace",
        "refused",
        "['memory']",
        "['timed_out']",
    ]


def test_the_probe_uses_the_jobs_own_options() -> None:
    found = sandbox.Confinement("bwrap", as_root=True)
    place = Path("/x")
    view = sandbox.View(place, place, place, place, place, uid=70_000)
    line = sandbox.arguments(found, view, ["true"], 5)
    for option in ("--unshare-net", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--new-session"):
        assert option in line
    assert line[line.index("--") + 1] == "setpriv"
    assert "--unshare-user" in sandbox.arguments(sandbox.Confinement("bwrap"), view, ["true"])
