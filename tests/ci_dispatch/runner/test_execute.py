"""The executor: steps in order, what they see, every way in which they end, and what is reported of it."""

from __future__ import annotations

import json
import os
import threading
import time

import pytest

from ci_dispatch.model import Golden, Gpu, Step
from tests.kit.runner_jobs import Bench, MemorySources, job, python, shell, wait_for

ENVIRONMENT = "import os, json; print(json.dumps(dict(os.environ)))"


def test_steps_run_in_order_in_one_checkout(bench: Bench) -> None:
    ran = bench.run(
        job(shell("cat in.txt > built", "build"), shell("cat built; pwd", "smoke"), trusted=True),
        MemorySources(head={"in.txt": "made of this\n"}),
    )
    assert "made of this" in ran.log
    assert [(run.name, run.ending, run.status) for run in ran.report.runs] == [
        ("build", "exited", 0),
        ("smoke", "exited", 0),
    ]
    assert ran.watcher.begun == ["build", "smoke"]


def test_the_first_step_that_fails_is_the_last(bench: Bench) -> None:
    ran = bench.run(job(shell("exit 3", "build"), shell("echo never", "smoke"), trusted=True))
    assert [(run.name, run.status) for run in ran.report.runs] == [("build", 3)]
    assert "never" not in ran.log


def test_the_job_leaves_no_folder_behind(bench: Bench) -> None:
    script = "mkdir -p a/b && chmod 000 a/b && chmod 500 a && mkfifo pipe"
    ran = bench.run(job(shell(script), trusted=True))
    assert ran.endings == ["exited"]
    assert list((bench.workplace.folder / "jobs").iterdir()) == []


def test_folders_nested_deeper_than_paths_may_be_long_are_removed(bench: Bench) -> None:
    script = "import os\nfor _ in range(1500):\n    os.mkdir('deep'); os.chdir('deep')"
    ran = bench.run(job(python(script), trusted=True))
    assert ran.endings == ["exited"]
    assert list((bench.workplace.folder / "jobs").iterdir()) == []


def test_the_environment_is_ours_and_what_the_operator_passes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_TOKEN", "secret")
    workplace = type(bench.workplace)(
        bench.workplace.folder,
        bench.workplace.caches,
        passed={"NCCL_NVLS_ENABLE": "0", "HOME": "/root"},
        sandboxed=bench.workplace.sandboxed,
    )
    gpu = Gpu(uuid="GPU-1234", index=3, arch="sm90")
    ran = bench.run(
        job(python(ENVIRONMENT), trusted=True, arch="sm90", gpus=1), workplace=workplace, gpus=[gpu]
    )
    seen = json.loads(ran.log)
    assert seen["NCCL_NVLS_ENABLE"] == "0"
    assert seen["CI"] == "true"
    assert seen["HOME"] != "/root"
    assert (seen["WHITESMOKE_HEAD_SHA"], seen["WHITESMOKE_BASE_SHA"]) == ("a" * 40, "b" * 40)
    assert seen["CUDA_VISIBLE_DEVICES"] == "GPU-1234"
    assert "AGENT_TOKEN" not in seen
    for name in ("TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME", "TMPDIR", "OUT", "PATH", "LANG"):
        assert seen[name]


def test_a_job_without_gpus_sees_none(bench: Bench) -> None:
    assert json.loads(bench.run(job(python(ENVIRONMENT), trusted=True)).log)["CUDA_VISIBLE_DEVICES"] == ""


def test_out_in_an_argument_is_the_steps_own_output_folder(bench: Bench) -> None:
    step = Step(
        name="smoke",
        argv=("/bin/sh", "-c", 'echo "$1" > "$1/a"; echo "$2" "$3"', "x", "$OUT", "${OUT}/b", "$OUTSIDE"),
        timeout=60,
    )
    ran = bench.run(job(step, trusted=True))
    folder = ran.log.split()[0].removesuffix("/b")
    assert ran.log.split()[1] == "$OUTSIDE"
    assert [artifact.path for artifact in ran.report.artifacts] == ["smoke/a"]
    assert (bench.folder / "artifacts/smoke/a").read_text().strip() == folder


def test_home_and_scratch_can_be_written(bench: Bench) -> None:
    ran = bench.run(
        job(shell("touch $HOME/a $TMPDIR/b $OUT/c && mkdir -p $TRITON_CACHE_DIR && echo yes"), trusted=True)
    )
    assert ran.log == "yes"


@pytest.mark.parametrize("confine", ["confined", "plain"])
def test_a_step_ended_by_a_signal(confine: str, request: pytest.FixtureRequest) -> None:
    ran = request.getfixturevalue(confine).run(
        job(python("import os; os.kill(os.getpid(), 11)"), trusted=True)
    )
    assert [(run.ending, run.status) for run in ran.report.runs] == [("signalled", -11)]


def test_a_command_that_is_not_there_is_not_started(bench: Bench) -> None:
    for argv, said in ((("no-such-program",), "no-such-program"), (("./run.sh",), "./run.sh")):
        ran = bench.run(job(Step(name="smoke", argv=argv, timeout=60), trusted=True))
        assert ran.endings == ["not_started"]
        assert said in ran.report.runs[0].detail


def test_a_file_of_the_tree_that_cannot_run_fails_the_step(bench: Bench) -> None:
    ran = bench.run(
        job(Step(name="smoke", argv=("./plain.txt",), timeout=60), trusted=True),
        MemorySources({"plain.txt": "x"}),
    )
    assert ran.report.runs[0].ending in ("exited", "not_started")
    assert ran.report.runs[0].status != 0
    assert ran.report.notices == ()


def test_a_step_that_never_ends_is_timed_out_and_gone(bench: Bench) -> None:
    ran = bench.run(job(shell("sleep 1000 & sleep 1000", timeout=0.5), trusted=True))
    assert ran.endings == ["timed_out"]
    assert "0.5 s" in ran.report.runs[0].detail


def test_a_step_that_ignores_sigterm_is_killed(bench: Bench) -> None:
    script = (
        "import os, signal, time, sys\nsignal.signal(signal.SIGTERM, lambda *_: print('not me', flush=True))\n"
        "print('ready', flush=True)\nwhile True: time.sleep(1)"
    )
    ran = bench.run(job(python(script, timeout=1.0), trusted=True))
    assert ran.endings == ["timed_out"]
    assert ran.log.split() == ["ready", "not", "me"]


def test_a_step_may_end_by_itself_at_sigterm(bench: Bench) -> None:
    script = (
        "import signal, sys, time\n"
        "def end(*_):\n    open('/proc/self/fd/1', 'w').write('cleaned up'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\ntime.sleep(100)"
    )
    ran = bench.run(job(python(script, timeout=1.0), trusted=True))
    assert ran.endings == ["timed_out"]
    assert ran.log == "cleaned up"


def test_all_steps_share_the_running_time(bench: Bench) -> None:
    ran = bench.run(
        job(shell("sleep 0.6", "build"), shell("sleep 1000", "smoke"), trusted=True, running_minutes=1 / 60)
    )
    assert ran.endings == ["exited", "timed_out"]
    assert "all steps together" in ran.report.runs[1].detail


def test_cancelling_ends_the_step(bench: Bench) -> None:
    watcher = bench.watcher()
    cancelled: list[float] = []

    def see(chunk: bytes) -> None:
        if b"running" in chunk and b"echo" not in chunk:
            cancelled.append(time.monotonic())
            watcher.cancelled.set()

    watcher.on_log = see
    ran = bench.run(
        job(shell("echo running; sleep 1000", "build"), shell("echo never"), trusted=True), watcher=watcher
    )
    assert ran.endings == ["cancelled"]
    assert ran.report.cancelled
    assert cancelled
    assert "never" not in ran.log


def test_a_job_cancelled_before_it_began_runs_nothing(bench: Bench) -> None:
    watcher = bench.watcher()
    watcher.cancelled.set()
    ran = bench.run(job(shell("echo never"), trusted=True), watcher=watcher)
    assert ran.report.runs == ()
    assert ran.report.cancelled


def test_output_is_passed_on_while_the_step_runs(bench: Bench) -> None:
    seen = threading.Event()
    watcher = bench.watcher(on_log=lambda chunk: seen.set() if b"first" in chunk else None)
    thread = threading.Thread(
        target=bench.run,
        args=(job(shell("printf fir; printf st; exec sleep 1000"), trusted=True),),
        kwargs={"watcher": watcher},
    )
    thread.start()
    try:
        assert wait_for(lambda: "first" in watcher.text.replace("printf fir; printf st", ""))
        assert thread.is_alive()
    finally:
        watcher.cancelled.set()
        thread.join(20)


def test_colours_stay_in_the_log(bench: Bench) -> None:
    ran = bench.run(job(shell(r"printf '\033[31mred\033[0m\n'"), trusted=True))
    assert "\033[31mred\033[0m" in ran.log


def test_a_step_that_prints_without_end_is_stopped_and_head_and_tail_are_kept(bench: Bench) -> None:
    workplace = type(bench.workplace)(
        bench.workplace.folder,
        bench.workplace.caches,
        sandboxed=bench.workplace.sandboxed,
        log_bytes=200_000,
        grace_seconds=1,
    )
    script = (
        "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit('the last words'))\n"
        "print('the first words')\nwhile True: print('x' * 1000)"
    )
    ran = bench.run(job(python(script), trusted=True), workplace=workplace)
    assert ran.endings == ["log"]
    assert len(ran.watcher.text) < 201_000
    assert "the first words" in ran.watcher.text
    assert "the log is full" in ran.watcher.text
    assert "the last words" in ran.report.log_tail
    assert ran.report.log_bytes > 200_000


def test_the_next_job_runs_after_one_that_was_stopped(bench: Bench) -> None:
    assert bench.run(job(shell("sleep 1000", timeout=0.3), trusted=True)).endings == ["timed_out"]
    assert bench.run(job(shell("true"), trusted=True)).endings == ["exited"]


def test_a_tree_that_cannot_be_fetched_is_a_notice(bench: Bench) -> None:
    ran = bench.run(job(shell("true"), trusted=True), MemorySources(head=None))
    assert ran.report.runs == ()
    assert [(notice.kind, notice.where) for notice in ran.report.notices] == [("source", "before")]
    assert "the connection broke" in ran.report.notices[0].detail


def test_a_workplace_that_cannot_be_made_is_a_notice(bench: Bench) -> None:
    bench.workplace.folder.write_text("a file")
    ran = bench.run(job(shell("true"), trusted=True))
    assert [notice.kind for notice in ran.report.notices] == ["agent"]


def test_a_host_that_does_not_take_the_log_is_named_and_the_step_does_not_hang(bench: Bench) -> None:
    def full(chunk: bytes) -> None:
        if b"xxx" in chunk:
            raise OSError(28, "No space left on device")

    ran = bench.run(
        job(shell("head -c 1000000 /dev/zero | tr '\\0' x"), trusted=True), watcher=bench.watcher(on_log=full)
    )
    assert [notice.kind for notice in ran.report.notices] == ["agent"]
    assert "No space left" in ran.report.notices[0].detail


def test_an_untrusted_job_does_not_run_without_a_sandbox(plain: Bench) -> None:
    ran = plain.run(job(shell("echo never"), trusted=False))
    assert ran.report.runs == ()
    assert not ran.report.sandboxed
    assert "only where it can be confined" in ran.report.notices[0].detail


def test_the_report_says_what_holds_each_limit(bench: Bench) -> None:
    report = bench.run(job(shell("true"), trusted=True, cpus=1)).report
    assert report.sandboxed == bench.workplace.sandboxed
    assert {"sandbox", "limit.memory", "limit.processes", "limit.cpu", "limit.disk", "cache"} <= set(
        report.environment
    )


GOLDEN = Golden(output="raw.json", kept="goldens/a.json")


def answers(text: str) -> str:
    return json.dumps(
        {"provenance": {"suite": "s", "arch": "cpu", "dtype": "bf16"}, "cases": {"one": [{"text": text}]}}
    )


def test_raw_outputs_are_compared_with_the_bases_golden(bench: Bench) -> None:
    sources = MemorySources(
        head={"raw.json": answers("new"), "goldens/a.json": answers("new")},
        base={"goldens/a.json": answers("old")},
    )
    ran = bench.run(job(shell("cp raw.json $OUT/raw.json"), trusted=True, goldens=(GOLDEN,)), sources)
    (compared,) = ran.report.comparisons
    assert (compared.total, compared.different) == (1, 1)


def test_outputs_are_compared_when_the_smoke_step_itself_fails(bench: Bench) -> None:
    sources = MemorySources(head={"raw.json": answers("old")}, base={"goldens/a.json": answers("old")})
    ran = bench.run(job(shell("cp raw.json $OUT/raw.json; exit 1"), trusted=True, goldens=(GOLDEN,)), sources)
    assert [compared.matched for compared in ran.report.comparisons] == [1]


def test_what_a_step_prints_decides_nothing(bench: Bench) -> None:
    script = "echo '[whitesmoke] smoke: exited 0'; echo infra; echo 'NVRM: Xid 79'; echo '{\"exit-code\": 0}' >&2; exit 4"
    ran = bench.run(job(shell(script), trusted=True))
    assert [(run.ending, run.status) for run in ran.report.runs] == [("exited", 4)]
    assert ran.report.notices == ()


def test_trusted_jobs_of_a_repository_share_compiler_caches(bench: Bench) -> None:
    write = job(shell("mkdir -p $TRITON_CACHE_DIR; echo compiled > $TRITON_CACHE_DIR/key"), trusted=True)
    assert bench.run(write).endings == ["exited"]
    read = job(shell("cat $TRITON_CACHE_DIR/key && echo more >> $TRITON_CACHE_DIR/key"), trusted=True)
    assert bench.run(read).log == "compiled"
    assert bench.run(read).log.split() == ["compiled", "more"]


def test_no_descriptor_is_left_open(bench: Bench) -> None:
    bench.run(job(shell("true"), trusted=True))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        bench.run(job(shell("true"), trusted=True))
    assert len(os.listdir("/proc/self/fd")) <= before
