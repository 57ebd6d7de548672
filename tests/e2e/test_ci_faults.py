"""CI while things break: agents, steps, the API, clocks and disks, with real runner processes over real HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ci_dispatch.model import Gpu, Inventory, JobReport
from ci_dispatch.protocol import Registration
from service.runner_api.files import CiFiles
from service.runner_api.limits import Limits
from service.store import jobs, runners
from service.store.ci_reaper import Hearing
from service.store.ci_tables import kpis, leases
from tests.kit.checkouts import Repo
from tests.kit.ci_relay import relaying, until
from tests.kit.ci_service import CiService

PHRASE = "lgtm ready to ci"
LEASE_SECONDS = 6.0


def shell(name: str, script: str, *, step: str = "build", timeout: float = 60, **more: Any) -> dict[str, Any]:
    """A job of one step."""
    steps = [{"name": step, "argv": ["sh", "-c", script], "timeout": timeout}]
    return {"name": name, "disk_mb": 16, "steps": steps, **more}


@contextmanager
def ci(folder: Path, *declared: dict[str, Any], limits: Limits | None = None) -> Iterator[CiService]:
    """A service whose policy declares these jobs, with a pull request that changes something."""
    repo = Repo(folder / "repo")
    repo.commit({".whitesmoke.yml": json.dumps({"ci": {"mode": "runner", "jobs": declared}})}, "base")
    repo.git("checkout", "--quiet", "-b", "pull")
    repo.commit({"model.py": "pass\n"}, "change")
    repo.git("checkout", "--quiet", "main")
    service = CiService(folder, repo)
    service.limits = limits or service.limits
    with service.up():
        yield service


@pytest.fixture
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent runner's job is lost in seconds, and what is shown of running jobs is never old."""
    monkeypatch.setattr("service.worker.ci.progress.REFRESH", timedelta(seconds=1))
    for module in ("store.job_leases", "store.ci_reaper", "runner_api.desk"):
        monkeypatch.setattr(f"service.{module}.LEASE_SECONDS", LEASE_SECONDS)
    monkeypatch.setattr("service.store.job_leases.FETCH_SECONDS", 3.0)
    monkeypatch.setattr("service.runner_api.dispatcher.Hearing", lambda: Hearing(quiet=6.0))


def ended(service: CiService, number: int, count: int = 1) -> Callable[[], bool]:
    """Whether so many attempts, which are all, have ended."""

    def check() -> bool:
        found = service.jobs(number)
        return len(found) == count and all(job.outcome for job in found)

    return check


def outcomes(service: CiService, number: int) -> list[tuple[str, int, str]]:
    return [(job.name, job.attempt, job.outcome) for job in service.jobs(number)]


def states(service: CiService, number: int) -> list[str]:
    return [job.state for job in service.jobs(number)]


def leases_closed(service: CiService, how: str) -> int:
    with service.database.read() as connection:
        return len(connection.execute(leases.select().where(leases.c.state == how)).all())


def report_of(service: CiService, job_id: int) -> JobReport:
    with service.database.read() as connection:
        report = jobs.report_of(connection, job_id)
    assert report is not None
    return report


def log_of(service: CiService, job_id: int) -> str:
    return CiFiles(service.folder).read_log(job_id, 0).decode(errors="replace")


def processes(*arguments: str) -> list[int]:
    """Of all processes of this machine, sandboxed or not, those with exactly these arguments."""
    wanted = b"".join(part.encode() + b"\0" for part in arguments)
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes() == wanted:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def comments(service: CiService, number: int) -> list[str]:
    return [body for body in service.said(number) if body.startswith("<!-- whitesmoke:ci ")]


DIES = """
[ "$HOST" = one ] || exit 0
setsid sh -c 'sleep 7101.5 & exec sleep 7102.5' &
sleep 7103.5
"""


@pytest.mark.usefixtures("short_leases")
def test_a_killed_agents_processes_die_its_job_runs_elsewhere_and_its_late_word_changes_nothing(
    tmp_path: Path,
) -> None:
    """CI.md 10."""
    mine = [("sleep", f"710{number}.5") for number in (1, 2, 3)]
    with ci(tmp_path, shell("smoke", DIES)) as service, relaying(service.address) as relay:
        service.address = relay.url
        number = service.open("pull")
        with service.runner("one", "--pass", "HOST=one") as first:
            service.say(number, "owner", PHRASE)
            service.wait(lambda: all(processes(*one) for one in mine), "the step did not begin")
            first.send_signal(signal.SIGKILL)
            service.wait(lambda: not any(processes(*one) for one in mine), "its processes live on")
            with service.runner("two", "--pass", "HOST=two"):
                service.wait(ended(service, number, 2), "it did not run elsewhere")
        assert outcomes(service, number) == [("smoke", 1, "infra"), ("smoke", 2, "passed")]
        assert [report_of(service, job.id).runner for job in service.jobs(number)] == ["one", "two"]
        with service.runner("one", "--pass", "HOST=one"):
            until(lambda: 409 in relay.seen["report"], "the killed runner did not speak again")
        assert outcomes(service, number) == [("smoke", 1, "infra"), ("smoke", 2, "passed")]
        service.wait(lambda: service.conclusion(number, "smoke") == "success", "no check")
        service.wait(lambda: "**passed**" in service.report(number), "no report")
        assert len(comments(service, number)) == 1


# The daemon and the orphan are beyond their step's reach; so is what they write.
LEAVES = """
(setsid sh -c 'trap "" TERM HUP; echo here > /tmp/left; sleep 7201.5' &) &
sh -c 'sleep 7202.5 & sleep 7203.5; echo survived' &
sleep 7204.5
"""
LOOKS = """
test ! -e /tmp/left || exit 3
if grep -lzE '^720[0-9]\\.5$' /proc/[0-9]*/cmdline; then exit 4; fi
echo nothing seen
"""


def test_a_killed_step_takes_daemons_and_orphans_along_and_the_next_job_sees_nothing(tmp_path: Path) -> None:
    """CI.md 20. The grandchild's parent dies first, then the step itself."""
    leaves, looks = shell("leaves", LEAVES, priority=9), shell("looks", LOOKS)
    with ci(tmp_path, leaves, looks) as service, service.runner():
        number = service.open("pull")
        service.say(number, "owner", PHRASE)
        mine = [("sleep", f"720{number}.5") for number in (1, 2, 3, 4)]
        service.wait(lambda: all(processes(*one) for one in mine), "the step did not begin")
        (child,) = processes("sleep", "7203.5")
        (step,) = processes("sleep", "7204.5")
        os.kill(parent(child), signal.SIGKILL)
        os.kill(child, signal.SIGKILL)
        assert processes("sleep", "7202.5"), "the orphan ended by itself"
        os.kill(parent(step), signal.SIGKILL)
        service.wait(ended(service, number, 2), "the jobs did not end")
        assert outcomes(service, number) == [("leaves", 1, "code"), ("looks", 1, "passed")]
        assert not any(processes(*one) for one in mine)
        killed, looked = service.jobs(number)
        assert [(run.ending, run.status) for run in report_of(service, killed.id).runs] == [("signalled", -9)]
        assert "nothing seen" in log_of(service, looked.id)
        service.wait(lambda: service.conclusion(number, "leaves") == "failure", "no check")


MEASURES = """
echo '{"kpis": [{"name": "copy us", "value": 10.0, "unit": "us"}]}' > "$OUT/kpis.json"
sleep 0.3
"""


def test_a_service_that_is_slow_away_or_deaf_costs_no_job_and_counts_nothing_twice(tmp_path: Path) -> None:
    """CI.md 9. Trees that are missing at first, calls without answer, an outage, a report that is heard three times."""
    perf = {"rounds": 2, "rules": [{"names": "*", "threshold": None}]}
    bench = shell("bench", MEASURES, step="bench", perf=perf)
    with ci(tmp_path, bench) as service, relaying(service.address) as relay:
        service.address = relay.url
        number = service.open("pull")
        service.say(number, "owner", PHRASE)
        service.wait(lambda: service.jobs(number), "no job")
        sources, hidden = tmp_path / "ci/sources", tmp_path / "ci/hidden"
        sources.rename(hidden)
        sources.mkdir(mode=0o700)
        relay.orders |= {
            "register": ["drop_after"],
            "claim": ["slow"],
            "lease_beat": ["drop_before", "slow", "drop_after"],
            "log": ["drop_after"],
            "report": ["drop_after", "twice"],
        }
        with service.runner():
            until(lambda: 404 in relay.seen["source"], "no tree was asked for")
            sources.rmdir()
            hidden.rename(sources)
            service.wait(lambda: states(service, number) == ["running"], "not running")
            relay.away = True
            until(lambda: relay.broken >= 3, "the outage was not noticed")
            assert service.jobs(number)[0].outcome == ""
            relay.away = False
            service.wait(ended(service, number), "the job did not end")
            service.wait(lambda: "**passed**" in service.report(number), "no report")
            until(lambda: len(relay.seen["report"]) == 2, "the report was not sent again")
        assert outcomes(service, number) == [("bench", 1, "passed")]
        (job,) = service.jobs(number)
        with service.database.read() as connection:
            rows = connection.execute(kpis.select().where(kpis.c.job_id == job.id)).all()
        assert [row.name for row in rows] == ["copy us"]
        assert relay.orders["report"] == []
        assert len(comments(service, number)) == 1


@pytest.mark.usefixtures("short_leases")
@pytest.mark.parametrize("answer", ["hold", "drop_after"])
def test_a_drain_at_the_instant_of_assignment_loses_nothing(tmp_path: Path, answer: Any) -> None:
    """CI.md 16. The job is this runner's already, and its answer is on the way or lost."""
    with ci(tmp_path, shell("smoke", "true")) as service, relaying(service.address) as relay:
        service.address = relay.url
        number = service.open("pull")
        with service.runner("one") as first:
            until(lambda: relay.seen["beat"], "no runner")
            relay.orders["claim"] = [answer]
            service.say(number, "owner", PHRASE)
            until(lambda: 200 in relay.seen["claim"], "no job was assigned")
            first.send_signal(signal.SIGTERM)
            until(lambda: relay.seen["beat"][1:], "it does not drain")
            relay.released.set()
            with service.runner("two"):
                service.wait(ended(service, number), "the job is lost")
            assert first.wait(30) == 0
        assert outcomes(service, number) == [("smoke", 1, "passed")]


@pytest.mark.usefixtures("short_leases")
def test_clocks_that_jump_and_a_runner_that_keeps_silent_cost_no_job(tmp_path: Path) -> None:
    """CI.md 15. The service's clock is set forward and back while a job runs; the runner's is another."""
    gpu = shell("gpu", "true", arch="sm90", gpus=1, paths=["none"])
    with (
        ci(tmp_path, shell("smoke", "sleep 7401.5 || true"), gpu) as service,
        relaying(service.address) as relay,
    ):
        service.address = relay.url
        silent = Inventory(arch="sm90", gpus=(Gpu(uuid="GPU-a", index=0, arch="sm90"),), sandbox=True)
        token = service.token()
        with service.database.write() as connection:
            asked = Registration(name="silent", inventory=silent)
            runner_id = runners.register(connection, token, asked, service.clock()).runner_id
            runners.listen(connection, runner_id, service.clock() + timedelta(seconds=30))
        number = service.open("pull")
        with service.runner("one", "--slots", "2"):
            service.say(number, "owner", PHRASE)
            service.wait(lambda: states(service, number) == ["running"], "not running")
            service.say(number, "owner", "/ci run gpu")
            service.wait(lambda: leases_closed(service, "untaken"), "the silent one was given nothing")
            # No beat comes between the jump and the reaper's next look.
            relay.away = True
            service.skew = timedelta(minutes=20)
            time.sleep(1.5)
            relay.away = False
            service.wait(
                lambda: "no runner offers 1 x sm90" in service.report(number), "the silent one counts"
            )
            service.skew = timedelta(minutes=-20)
            time.sleep(1.5)
            for sleeper in processes("sleep", "7401.5"):
                os.kill(sleeper, signal.SIGKILL)
            service.wait(lambda: service.jobs(number)[0].outcome, "the job did not end")
            assert outcomes(service, number)[0] == ("smoke", 1, "passed")
            service.skew = timedelta(0)
            service.say(number, "owner", "/ci run smoke")
            service.wait(lambda: len(service.jobs(number)) == 3, "no second run")
            service.say(number, "owner", "/ci cancel")
            service.wait(lambda: all(job.outcome for job in service.jobs(number)), "not stopped")
        assert {job.outcome for job in service.jobs(number)[1:]} == {"cancelled"}


LOUD = "yes 'a line that says nothing' | head -c 3000000; sleep 7301.5"
LIES = """
echo '{"kpis": [{"name": "a", "value": NaN}, {"name": "b", "value": "10"}, {"name": "c", "value": -1},
 {"name": "d", "value": true}, {"name": "e", "value": 1e999}, {"name": ["f"], "value": 1}], "outcome": "passed"}' > "$OUT/kpis.json"
echo 'compare diff count: 0'; echo PASSED
"""
ENDLESS = "trap '' TERM INT HUP; while :; do sleep 7302.5; done"


def test_steps_that_flood_lie_or_never_end_fail_by_themselves_alone(tmp_path: Path) -> None:
    perf = {"rounds": 2, "rules": [{"names": "*", "threshold": None}]}
    declared = [
        shell("loud", LOUD),
        shell("liar", LIES, step="bench", perf=perf),
        shell("endless", ENDLESS, timeout=1),
        shell("good", "echo well"),
    ]
    with ci(tmp_path, *declared, limits=Limits(log_bytes=1 << 20)) as service:
        number = service.open("pull")
        with service.runner("one", "--slots", "4"):
            service.say(number, "owner", PHRASE)
            service.wait(ended(service, number, 4), "the jobs did not end")
            service.wait(lambda: "timed out" in service.report(number), "no report")
        found = {job.name: job for job in service.jobs(number)}
        expected = {"loud": "code", "liar": "code", "endless": "timed_out", "good": "passed"}
        assert {name: job.outcome for name, job in found.items()} == expected
        assert [run.ending for run in report_of(service, found["loud"].id).runs] == ["log"]
        assert len(log_of(service, found["loud"].id)) <= 1 << 20
        lies = report_of(service, found["liar"].id)
        assert (lies.samples, len(lies.bad_numbers) >= 6) == ((), True)
        with service.database.read() as connection:
            assert connection.execute(kpis.select()).all() == []
        assert not processes("sleep", "7301.5")
        assert not processes("sleep", "7302.5")
        for name in found:
            service.wait(lambda name=name: service.conclusion(number, name), f"the check of {name} is open")
        failed = {name for name in found if service.conclusion(number, name) == "success"}
        assert failed == {"good"}


@contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[None]:
    place.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0700", "tmpfs", str(place)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"no small disk can be mounted: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_runner_whose_disk_is_full_is_no_fault_of_the_change(tmp_path: Path) -> None:
    place = tmp_path / "runner-full/place"
    declared = [shell("one", "echo well"), shell("other", "echo well")]
    with ci(tmp_path, *declared) as service, small_disk(place, 64):
        (place / "ballast").write_bytes(bytes(62 << 20))
        number = service.open("pull")
        with service.runner("full"), service.runner("roomy"):
            service.wait(lambda: listening(service) == {"full", "roomy"}, "a runner is missing")
            service.say(number, "owner", PHRASE)
            service.wait(ended(service, number, 3), "the jobs did not end")
        failed, *well = sorted(service.jobs(number), key=lambda job: job.outcome)
        assert (failed.outcome, report_of(service, failed.id).runner) == ("infra", "full")
        assert [(job.outcome, report_of(service, job.id).runner) for job in well] == [("passed", "roomy")] * 2
        notices = report_of(service, failed.id).notices
        assert [(one.kind, one.where) for one in notices] == [("disk", "before")]


def listening(service: CiService) -> set[str]:
    with service.database.read() as connection:
        return {one.name for one in runners.show(connection) if one.listens_until is not None}
