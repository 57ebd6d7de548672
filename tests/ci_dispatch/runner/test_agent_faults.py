"""The agent where answers are dropped after the service has acted, come late or twice, or do not come at all."""

from __future__ import annotations

import io
import logging
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci_dispatch.model import Artifact, JobReport
from ci_dispatch.runner import lease as lease_module
from ci_dispatch.runner import stream as stream_module
from ci_dispatch.runner.base import KeepError, SourceError
from ci_dispatch.runner.client import Service, backoff
from ci_dispatch.runner.errors import LeaseLost, Refused, RunnerError, Unreachable
from ci_dispatch.runner.identity import load_identity, only_agent, register
from ci_dispatch.runner.sources import LeaseSources
from ci_dispatch.runner.unpack import unpack
from tests.kit.runner_agents import PASSED, Steered, build_host, running
from tests.kit.runner_service import RunnerService, job, served, tree

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


# Single calls


def leased(service: RunnerService, **fault: list[str]) -> LeaseSources:
    client = Service(service.url)
    service.secrets["s"] = "host-1"
    service.waiting.append((job(), ()))
    grant = client.claim("s", 0.1)
    service.faults.update(fault)
    return LeaseSources(client.lease(grant.lease_id, grant.token), Path(), threading.Event())


def fetch(service: RunnerService, folder: Path, patience: float = 10.0) -> Path:
    sources = leased(service)
    into = folder / "into"
    into.mkdir()
    LeaseSources(sources.calls, folder, sources.cancelled, patience).fetch("head", into)
    return into


def test_a_tree_that_is_not_packed_yet_is_waited_for(service: RunnerService, tmp_path: Path) -> None:
    packed = service.trees.pop("head")

    def later() -> None:
        service.wait_for(lambda: "source" in service.calls)
        service.trees["head"] = packed

    thread = threading.Thread(target=later)
    thread.start()
    assert (fetch(service, tmp_path) / "README").read_bytes() == b"head\n"
    thread.join()


def test_a_tree_that_never_comes_is_named(service: RunnerService, tmp_path: Path) -> None:
    del service.trees["head"]
    with pytest.raises(SourceError, match=r"the tree of head did not come within 0.3 s: not there yet"):
        fetch(service, tmp_path, patience=0.3)


def test_a_tree_of_a_lost_lease_is_not_waited_for(service: RunnerService, tmp_path: Path) -> None:
    sources = leased(service)
    service.lease(1).lost = True
    with pytest.raises(SourceError, match="the lease is lost"):
        LeaseSources(sources.calls, tmp_path, sources.cancelled).fetch("head", tmp_path)


def test_a_damaged_archive_is_named(service: RunnerService, tmp_path: Path) -> None:
    service.trees["head"] = tree({"a": b"x" * 100_000})[:-40]
    with pytest.raises(SourceError, match="archive is damaged"):
        fetch(service, tmp_path)


def packed(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, mode
    return info


@pytest.mark.parametrize(
    "members",
    [
        [(member("../out"), b"x")],
        [(member("/tmp/out-of-it"), b"x")],
        [(member("a", tarfile.SYMTYPE, "/tmp"), b""), (member("a/b", tarfile.SYMTYPE, "c"), b"")],
        [(member("a"), b"x"), (member("b", tarfile.LNKTYPE, "a"), b"")],
        [(member("fifo", tarfile.FIFOTYPE), b"")],
        [(member("null", tarfile.CHRTYPE), b"")],
        [(member("a"), b"x"), (member("a"), b"y")],
    ],
)
def test_an_archive_that_leaves_its_folder_is_refused(tmp_path: Path, members: list) -> None:
    (tmp_path / "into").mkdir()
    (tmp_path / "a.tar.gz").write_bytes(packed(*members))
    with pytest.raises(SourceError):
        unpack(tmp_path / "a.tar.gz", tmp_path / "into")
    assert not (tmp_path / "out").exists()


def test_links_and_modes_of_a_tree_are_kept(tmp_path: Path) -> None:
    members = [
        (member("run", mode=0o4775), b"#!/bin/sh"),
        (member("d/link", tarfile.SYMTYPE, "../run"), b""),
        (member("abs", tarfile.SYMTYPE, "/usr/bin/env"), b""),
        (member("d", tarfile.DIRTYPE), b""),
    ]
    (tmp_path / "into").mkdir()
    (tmp_path / "a.tar.gz").write_bytes(packed(*members))
    unpack(tmp_path / "a.tar.gz", tmp_path / "into")
    assert (tmp_path / "into/d/link").readlink() == Path("../run")
    assert (tmp_path / "into/abs").readlink() == Path("/usr/bin/env")
    assert (tmp_path / "into/run").stat().st_mode & 0o7777 == 0o755


def test_an_archive_of_more_than_its_limits_is_refused_before_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "into").mkdir()
    (tmp_path / "a.tar.gz").write_bytes(tree({"zeros": bytes(1 << 20)}))
    with pytest.raises(SourceError, match="more than"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "into", most_bytes=1 << 19)
    assert list((tmp_path / "into").iterdir()) == []


def test_a_refusal_says_what_the_service_said(service: RunnerService) -> None:
    client = Service(service.url)
    with pytest.raises(Refused, match="unknown runner") as refused:
        client.claim("nobody", 0.1)
    assert refused.value.status == 401
    with pytest.raises(LeaseLost):
        client.lease(99, "x").beat("", 0.0)


def test_an_artifact_of_a_lost_lease_is_not_kept_and_loses_the_lease(
    service: RunnerService, tmp_path: Path
) -> None:
    problems: list[str] = []

    def execute(job, gpus, sources, watcher, workplace) -> JobReport:
        watcher.begin("build")
        service.lease(1).lost = True
        (workplace.folder / "f").write_bytes(b"x")
        try:
            watcher.keep("f", workplace.folder / "f")
        except KeepError as error:
            problems.append(str(error))
        assert watcher.cancelled.is_set()
        return JobReport()

    with running(service, build_host(tmp_path), execute, claim_seconds=0.3):
        service.offer(job())
        service.wait_for(lambda: problems)
    assert problems == ["the lease is lost"]
    assert service.lease(1).reports == []


def test_a_file_that_changes_while_it_is_sent_keeps_its_length(
    service: RunnerService, tmp_path: Path
) -> None:
    calls = leased(service).calls
    (tmp_path / "f").write_bytes(b"abc")

    def kept(length: int) -> Artifact:
        return calls.keep("f", tmp_path / "f", length, 1.0, threading.Event())

    assert kept(2).bytes == 2
    assert kept(5).bytes == 5
    assert service.lease(1).artifacts["f"] == b"abc\0\0"


@pytest.mark.parametrize("url", ["host:80", "ftp://host", "https://", "https://user:pass@host"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(RunnerError) as error:
        Service(url)
    assert "pass" not in str(error.value).replace("password", "")


def test_tries_come_later_and_later_and_never_at_once() -> None:
    assert [backoff(attempt, 0.0) for attempt in range(4)] == [0.1, 0.2, 0.4, 0.8]
    assert backoff(50, 0.999) <= 15.0
    assert backoff(50, 0.0) >= 7.5
