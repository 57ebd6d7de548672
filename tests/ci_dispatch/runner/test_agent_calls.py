"""Single calls of a runner to the service: trees, artifacts, refusals, addresses."""

from __future__ import annotations

import io
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci_dispatch.model import Artifact, JobReport
from ci_dispatch.runner.base import KeepError, SourceError
from ci_dispatch.runner.client import Service, backoff, travels_in_clear
from ci_dispatch.runner.errors import LeaseLost, Refused, RunnerError
from ci_dispatch.runner.sources import LeaseSources
from ci_dispatch.runner.unpack import unpack
from tests.kit.runner_agents import build_host, running
from tests.kit.runner_service import RunnerService, job, served, tree


@pytest.fixture
def service() -> Iterator[RunnerService]:
    with served() as state:
        yield state


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


@pytest.mark.parametrize(
    ("url", "clear"),
    [
        ("https://host", False),
        ("http://127.0.0.1:8377", False),
        ("http://[::1]:1", False),
        ("http://host", True),
    ],
)
def test_an_address_over_which_tokens_could_be_read_is_known(url: str, clear: bool) -> None:
    assert travels_in_clear(url) is clear


def test_tries_come_later_and_later_and_never_at_once() -> None:
    assert [backoff(attempt, 0.0) for attempt in range(4)] == [0.1, 0.2, 0.4, 0.8]
    assert backoff(50, 0.999) <= 15.0
    assert backoff(50, 0.0) >= 7.5
