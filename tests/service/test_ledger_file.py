"""The ledger on disk: whole or not at all, whatever happens while it is written."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from io import RawIOBase
from pathlib import Path

import pytest

from reviewer.errors import LedgerError
from reviewer.ledger import Ledger
from reviewer.plan import FileMark
from service.ledger_file import data_folder, ledger_path, load, locked, save

KEPT = Ledger(rounds=3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = ledger_path(tmp_path, "/src/repo/.git", "main", "topic")
    save(path, KEPT)
    return path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_what_is_saved_is_loaded(path: Path) -> None:
    assert load(path) == KEPT


def test_no_file_is_an_empty_ledger(tmp_path: Path) -> None:
    assert load(tmp_path / "none.json") == Ledger()


def test_a_full_disk_leaves_the_ledger_as_it_was(small_disk: Path) -> None:
    path = ledger_path(small_disk, "/src/repo/.git", "main", "topic")
    save(path, KEPT)
    with (small_disk / "filler").open("wb", buffering=0) as filler:
        while _wrote(filler):
            pass
    later = Ledger(rounds=4, files={"f": FileMark(base_blob="0" * 9000, head_blob="", digest="")})
    with pytest.raises(LedgerError, match=r"No space left on device; free space .* are intact"):
        save(path, later)
    assert load(path) == KEPT
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def _wrote(file: RawIOBase) -> bool:
    try:
        return file.write(b"x" * 4096) == 4096
    except OSError:
        return False


def test_a_write_that_is_cut_short_leaves_the_ledger_as_it_was(path: Path) -> None:
    with_limit = textwrap.dedent(f"""
        import resource
        from pathlib import Path
        from reviewer.ledger import Ledger
        from service.ledger_file import save
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
        save(Path({str(path)!r}), Ledger(rounds=4))
    """)
    done = subprocess.run([sys.executable, "-c", with_limit], capture_output=True, text=True)
    assert done.returncode == 1
    assert "LedgerError: cannot write the ledger" in done.stderr
    assert load(path) == KEPT


def test_a_process_killed_before_the_rename_leaves_the_ledger_as_it_was(path: Path) -> None:
    killed = textwrap.dedent(f"""
        import os, signal
        from pathlib import Path
        from reviewer.ledger import Ledger
        from service import ledger_file
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        ledger_file.save(Path({str(path)!r}), Ledger(rounds=4))
    """)
    assert subprocess.run([sys.executable, "-c", killed]).returncode == -9
    assert load(path) == KEPT


def test_a_second_review_of_the_same_pull_request_is_refused_while_the_first_runs(path: Path) -> None:
    with (
        locked(path),
        pytest.raises(LedgerError, match="another review of this pull request is running"),
        locked(path),
    ):
        pass
    with locked(path):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_an_unreadable_ledger_is_named(path: Path) -> None:
    path.chmod(0)
    with pytest.raises(LedgerError, match="Permission denied"):
        load(path)


def test_pull_requests_have_files_of_their_own(tmp_path: Path) -> None:
    names = {
        ledger_path(tmp_path, "/a/.git", "main", "x"),
        ledger_path(tmp_path, "/b/.git", "main", "x"),
        ledger_path(tmp_path, "/a/.git", "main", "y"),
        ledger_path(tmp_path, "/a/.git", "mainx", ""),
    }
    assert len(names) == 4


def test_the_data_folder_is_the_given_one_or_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHITESMOKE_DATA", "/from/environment")
    assert data_folder(Path("/given")) == Path("/given")
    assert data_folder() == Path("/from/environment")
    monkeypatch.delenv("WHITESMOKE_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", "/xdg")
    assert data_folder() == Path("/xdg/whitesmoke")
