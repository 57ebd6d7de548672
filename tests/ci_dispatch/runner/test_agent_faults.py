"""The agent where answers are dropped after the service has acted, come late or twice, or do not come at all."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci_dispatch.model import JobReport
from ci_dispatch.runner import lease as lease_module
from ci_dispatch.runner import stream as stream_module
from ci_dispatch.runner.client import Service
from ci_dispatch.runner.errors import Refused, RunnerError, Unreachable
from ci_dispatch.runner.identity import load_identity, only_agent, register
from tests.kit.runner_agents import PASSED, Steered, build_host, running
from tests.kit.runner_service import RunnerService, job, served

SECRETS = ("registration-token", "secret-", "lease-token")


@pytest.fixture
def service() -> Iterator[RunnerService]:
    with served() as state:
        yield state


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "_REPORT_PATIENCE", 0.5)
    monkeypatch.setattr(stream_module, "_PATIENCE", 0.5)


@pytest.mark.parametrize("fault", ["drop_before", "drop_after", "503", "slow"])
@pytest.mark.parametrize("call", ["report", "log", "lease_beat", "claim", "beat", "source", "artifact"])
def test_one_fault_in_any_call_loses_nothing_and_does_nothing_twice(
    service: RunnerService, tmp_path: Path, call: str, fault: str
) -> None:
    service.beat_seconds = 0.1
    service.faults[call] = [fault]
    runs: list[str] = []

    def execute(job, gpus, sources, watcher, workplace) -> JobReport:
        runs.append(job.spec.name)
        into = workplace.folder / "tree"
        into.mkdir()
        sources.fetch("head", into)
        watcher.begin("build")
        for number in range(5):
            watcher.log(f"line {number}\n".encode())
            time.sleep(0.05)
        kept = watcher.keep("a/b c.txt", into / "README")
        return JobReport(runs=(PASSED,), artifacts=(kept,))

    with running(service, build_host(tmp_path), execute, claim_seconds=0.3):
        service.offer(job())
        service.wait_for(lambda: service.leases and service.lease(1).reports)
        service.wait_for(lambda: not (tmp_path / "leases/1").exists())
    state = service.lease(1)
    assert runs == ["build"]
    assert len(state.reports) == 1
    assert state.reports[0].artifacts[0].bytes == 5
    assert state.artifacts == {"a/b c.txt": b"head\n"}
    assert bytes(state.log) == b"".join(f"line {number}\n".encode() for number in range(5))
    assert len(service.leases) == 1
    assert service.faults[call] == []


def test_no_token_is_in_any_log_line(
    service: RunnerService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    service.faults = {name: ["503", "drop_after"] for name in ("register", "claim", "report", "beat", "log")}
    with running(service, build_host(tmp_path), Steered.opened(b"x"), claim_seconds=0.3):
        # A grant whose answer is dropped is granted again, which may cross the runner's own beats.
        service.wait_for(lambda: not service.faults["claim"])
        service.offer(job())
        service.wait_for(lambda: service.leases and service.lease(1).reports)
    assert all(any(token.startswith(secret) for token in service.authorizations) for secret in SECRETS)
    assert caplog.records
    assert [text for text in caplog.messages if any(secret in text for secret in SECRETS)] == []
    files = [one for one in tmp_path.rglob("*") if one.is_file() and one.stat().st_mode & 0o077]
    assert files == []


def test_a_report_outlives_the_agent_and_an_outage(
    service: RunnerService, tmp_path: Path, quick: None
) -> None:
    """The service is away when the job ends; the agent ends too; the next one sends report and log."""
    execute = Steered(chunks=(b"before\n",))
    execute.before.set()
    host = build_host(tmp_path)
    with running(service, host, execute, claim_seconds=0.3) as current:
        service.offer(job())
        service.wait_for(lambda: service.leases and bytes(service.lease(1).log) == b"before\n")
        service.faults = {"report": ["503"] * 10_000, "log": ["503"] * 10_000}
        execute.after.set()
        service.wait_for(lambda: "report 503" in service.calls)
        current.agent.signalled()
        time.sleep(0.3)
        current.agent.signalled()
        current.end()
    assert (tmp_path / "leases/1/report.json").exists()
    assert service.lease(1).reports == []
    service.faults = {}
    again = Steered.opened()
    with running(service, build_host(tmp_path), again, claim_seconds=0.3):
        service.wait_for(lambda: service.lease(1).reports)
    assert again.entered == []
    assert bytes(service.lease(1).log) == b"before\n"
    assert service.lease(1).reports[0].runs == (PASSED,)
    assert list((tmp_path / "leases.earlier").iterdir()) == []


def test_a_job_that_died_with_its_agent_is_reported_as_lost_by_the_next(
    service: RunnerService, tmp_path: Path
) -> None:
    host = build_host(tmp_path)
    for name in ("begun", "not begun"):
        service.offer(job(name.replace(" ", "-")))
    client = Service(service.url)
    register(client, tmp_path, "host-1", service.token(), host.inventory())
    secret = load_identity(tmp_path, service.url, "host-1").secret
    begun, unbegun = (host.kept.open(client.claim(secret, 1.0)) for _ in range(2))
    begun.mark_begun()
    begun.log.write_bytes(b"its last line\n")
    with running(service, build_host(tmp_path), Steered.opened(), claim_seconds=0.3):
        service.wait_for(lambda: service.lease(1).reports and service.lease(2).returned)
    assert [one.kind for one in service.lease(1).reports[0].notices] == ["lost"]
    assert bytes(service.lease(1).log) == b"its last line\n"
    assert unbegun.grant.lease_id == 2


def test_a_kept_lease_that_cannot_be_read_does_not_stop_the_agent(
    service: RunnerService, tmp_path: Path
) -> None:
    (tmp_path / "leases/7").mkdir(parents=True)
    (tmp_path / "leases/7/grant.json").write_text("{")
    with running(service, build_host(tmp_path), Steered.opened(), claim_seconds=0.3):
        service.offer(job())
        service.wait_for(lambda: service.leases and service.lease(1).reports)
    assert list((tmp_path / "leases.earlier").iterdir()) == []


def test_a_partition_longer_than_the_lease_stops_the_job(service: RunnerService, tmp_path: Path) -> None:
    service.lease_seconds = 0.6
    execute = Steered()
    execute.before.set()
    with running(service, build_host(tmp_path), execute, claim_seconds=0.3):
        service.offer(job())
        service.wait_for(lambda: service.leases and "build" in service.lease(1).beats)
        service.faults["lease_beat"] = ["503"] * 10_000
        service.wait_for(lambda: execute.left == ["build"])
        service.faults["lease_beat"] = []
    assert service.lease(1).reports == []


def test_a_short_outage_in_the_job_is_survived(service: RunnerService, tmp_path: Path) -> None:
    execute = Steered(chunks=(b"one\n",))
    execute.before.set()
    service.lease_seconds = 8.0
    with running(service, build_host(tmp_path), execute, claim_seconds=0.3):
        service.offer(job())
        service.wait_for(lambda: service.leases and "build" in service.lease(1).beats)
        service.faults = {name: ["drop_before"] * 3 for name in ("lease_beat", "log", "beat", "report")}
        execute.after.set()
        service.wait_for(lambda: service.lease(1).reports)
    assert service.lease(1).reports[0].runs == (PASSED,)


def test_a_report_that_is_accepted_while_its_answer_is_lost_is_sent_once_more_and_then_forgotten(
    service: RunnerService, tmp_path: Path
) -> None:
    """Meanwhile the lease is over, so that its beats are refused: that must not look like a lost lease."""
    service.lease_seconds = 0.2
    service.faults["report"] = ["drop_after", "503", "503", "503"]
    with running(service, build_host(tmp_path), Steered.opened(), claim_seconds=0.3):
        service.offer(job())
        service.wait_for(lambda: service.calls.count("report") == 1)
        service.wait_for(lambda: not (tmp_path / "leases/1").exists())
    assert len(service.lease(1).reports) == 1
    assert service.lease(1).reports[0].runs == (PASSED,)


@pytest.mark.parametrize("fault", ["drop_before", "drop_after", "503"])
def test_a_registration_whose_answer_is_lost_costs_no_second_token(
    service: RunnerService, tmp_path: Path, fault: str
) -> None:
    service.faults["register"] = [fault]
    client = Service(service.url)
    identity = register(client, tmp_path, "host-1", service.token(), build_host(tmp_path).inventory())
    assert list(service.secrets) == [identity.secret]
    assert service.calls.count("register") + service.calls.count(f"register {fault}") == 2


def test_a_registration_that_the_agent_did_not_live_to_hear_of_is_asked_for_again(
    service: RunnerService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ci_dispatch.runner.identity._REGISTER_PATIENCE", 0.0)
    service.faults["register"] = ["drop_after"]
    inventory = build_host(tmp_path).inventory()
    token = service.token()
    with pytest.raises(Unreachable):
        register(Service(service.url), tmp_path, "host-1", token, inventory)
    register(Service(service.url), tmp_path, "host-1", token, inventory)
    with pytest.raises(Refused, match=r"token is unknown, spent or out of date; make a new one"):
        register(Service(service.url), tmp_path / "..", "host-2", token, inventory)


def test_who_has_no_token_and_is_not_known_is_told_what_to_do(service: RunnerService, tmp_path: Path) -> None:
    inventory = build_host(tmp_path).inventory()
    with pytest.raises(RunnerError, match=r"does not know the runner host-1.*--token-file"):
        register(Service(service.url), tmp_path, "host-1", "", inventory)


def test_the_identity_is_for_its_user_its_service_and_its_name_alone(
    service: RunnerService, tmp_path: Path
) -> None:
    register(Service(service.url), tmp_path, "host-1", service.token(), build_host(tmp_path).inventory())
    assert (tmp_path / "identity.json").stat().st_mode & 0o777 == 0o600
    assert load_identity(tmp_path, service.url, "host-1") is not None
    assert load_identity(tmp_path, service.url, "host-2") is None
    assert load_identity(tmp_path, "https://elsewhere", "host-1") is None


def test_two_agents_never_share_a_folder(tmp_path: Path) -> None:
    with only_agent(tmp_path), pytest.raises(RunnerError, match=r"another runner works in.*--folder"), only_agent(tmp_path):  # fmt: skip
        pass
    with only_agent(tmp_path):
        pass
