"""What is kept of a step's output folder: regular files of the job's own, within limits; all else is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_dispatch.model import Artifact
from ci_dispatch.runner import artifacts
from ci_dispatch.runner.artifacts import Collector
from tests.kit.runner_jobs import Bench, job, make_bench, shell


def test_links_and_other_than_files_are_left_out_of_the_artifacts(bench: Bench) -> None:
    secret = bench.folder / "secret"
    secret.write_text("wsm-secret")
    script = (
        f"cd $OUT; ln -s {secret} link; ln -s / root; ln -s nowhere gone; mkfifo pipe; echo a > one; ln one two;"
        "mkdir -p in/side; echo kept > in/side/file; mkdir loop; ln -s .. loop/up; echo x > \"$(printf 'a\\nb')\""
    )
    ran = bench.run(job(shell(script), trusted=True))
    assert [artifact.path for artifact in ran.report.artifacts] == ["smoke/in/side/file"]
    left = " | ".join(ran.report.left_out)
    for name in ("link", "root", "gone", "pipe", "one", "two", "loop/up"):
        assert f"smoke/{name}: " in left
    kept = [file.read_text() for file in (bench.folder / "artifacts").rglob("*") if file.is_file()]
    assert kept == ["kept\n"]


def test_an_output_folder_that_became_a_link_gives_nothing(bench: Bench) -> None:
    """The step cannot replace its output folder when confined; unconfined it can, and nothing is followed."""
    secrets = bench.folder / "secrets"
    secrets.mkdir()
    (secrets / "key").write_text("wsm-secret")
    ran = bench.run(job(shell(f"rmdir $OUT && ln -s {secrets} $OUT; true"), trusted=True))
    assert ran.report.artifacts == ()


def test_artifacts_beyond_the_limit_are_named_and_left_out(bench: Bench) -> None:
    workplace = make_bench(
        bench.folder, sandboxed=bench.workplace.sandboxed, artifact_bytes=100_000
    ).workplace
    script = (
        "cd $OUT; head -c 60000 /dev/zero > a; head -c 60000 /dev/zero > b; truncate -s 1T c; echo small > d"
    )
    ran = bench.run(job(shell(script), trusted=True, disk_mb=2_000_000), workplace=workplace)
    assert [artifact.path for artifact in ran.report.artifacts] == ["smoke/a", "smoke/d"]
    assert len(ran.report.left_out) == 2


def test_what_the_service_does_not_keep_is_named(bench: Bench) -> None:
    ran = bench.run(
        job(shell("echo a > $OUT/a"), trusted=True), watcher=bench.watcher(refuse="the service is full")
    )
    assert ran.report.left_out == ("smoke/a: the service is full",)


def collect(folder: Path, bytes_left: int = 1 << 20) -> Collector:
    collector = Collector(lambda path, file: Artifact(path=path, bytes=0, sha256=""), bytes_left)
    collector.collect(folder, "smoke")
    return collector


def test_names_that_cannot_be_shown_are_left_out(tmp_path: Path) -> None:
    for name in ("line\nbreak", "back\\slash", "\x1b[31mred", "\udcff"):
        (tmp_path / name).touch()
    (tmp_path / "名字 ok").touch()
    collector = collect(tmp_path)
    assert [one.path for one in collector.artifacts] == ["smoke/名字 ok"]
    assert len(collector.left_out) == 4
    assert all(sentence.encode() for sentence in collector.left_out)


def test_paths_longer_than_the_service_takes_are_left_out(tmp_path: Path) -> None:
    (tmp_path / ("a" * 200)).mkdir()
    (tmp_path / ("a" * 200) / ("b" * 100)).touch()
    collector = collect(tmp_path)
    assert collector.artifacts == []
    assert "255" in collector.left_out[0]


def test_deep_folders_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path
    for _ in range(30):
        folder /= "d"
    folder.mkdir(parents=True)
    (folder / "f").touch()
    assert "deeper" in collect(tmp_path).left_out[0]


def test_so_many_files_that_listing_them_would_cost_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "MOST_ENTRIES", 50)
    monkeypatch.setattr(artifacts, "MOST_FILES", 30)
    for number in range(80):
        (tmp_path / f"{number:03}").touch()
    collector = collect(tmp_path)
    assert len(collector.artifacts) == 30
    assert "not looked at" in collector.left_out[-1]


def test_what_is_left_out_is_counted_where_it_is_too_much_to_name(tmp_path: Path) -> None:
    for number in range(150):
        (tmp_path / f"{number}").symlink_to("x")
    collector = collect(tmp_path)
    assert len(collector.left_out) == 101
    assert collector.left_out[-1] == "and 50 more"
