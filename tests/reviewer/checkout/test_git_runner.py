from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reviewer.checkout.git import Git, Result, TimedOut, executable
from reviewer.errors import GitError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Git(tmp_path, None).out("init", "--quiet", "--bare", "scratch.git")
    return tmp_path


@pytest.fixture
def fresh_search() -> Iterator[None]:
    executable.cache_clear()
    yield
    executable.cache_clear()


def run_shell(folder: Path, script: str, **settings: float) -> Result:
    """git itself neither hangs nor floods on demand; an alias given on the command line does."""
    return Git(folder, folder / "scratch.git").run("-c", f"alias.act=!{script}", "act", **settings)  # type: ignore[arg-type]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_dead(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not is_alive(pid)


def test_a_hanging_command_is_killed_with_all_that_it_started(folder: Path) -> None:
    began = time.monotonic()
    with pytest.raises(TimedOut, match="took longer than"):
        run_shell(folder, f"sleep 60 & echo $! > {folder}/pid; wait", timeout=0.5)
    assert time.monotonic() - began < 5
    assert wait_until_dead(int((folder / "pid").read_text()))


def test_output_beyond_the_limit_is_cut_and_its_writer_killed(folder: Path) -> None:
    result = run_shell(folder, f"echo $$ > {folder}/pid; yes", limit=100_000)
    assert result.cut
    assert len(result.out) == 100_000
    assert wait_until_dead(int((folder / "pid").read_text()))


def test_output_of_exactly_the_limit_is_not_cut(folder: Path) -> None:
    result = run_shell(folder, "printf 12345", limit=5)
    assert not result.cut
    assert result.out == b"12345"


def test_a_flood_on_stderr_is_kept_short(folder: Path) -> None:
    result = run_shell(folder, "head -c 3000000 /dev/zero | tr '\\0' x >&2; echo done")
    assert result.out == b"done\n"
    assert len(result.err) == 64 << 10


def test_the_child_sees_nothing_of_the_environment_but_the_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "HOME",
        "GIT_EXTERNAL_DIFF",
        "GIT_SSH_COMMAND",
        "GIT_CONFIG_COUNT",
        "OPENAI_API_KEY",
        "LANGUAGE",
    ):
        monkeypatch.setenv(name, "0")
    names = {line.split("=")[0] for line in run_shell(folder, "env").out.decode().splitlines()}
    assert "GIT_ALLOW_PROTOCOL" in names
    assert not names & {
        "HOME",
        "GIT_EXTERNAL_DIFF",
        "GIT_SSH_COMMAND",
        "GIT_CONFIG_COUNT",
        "OPENAI_API_KEY",
        "LANGUAGE",
    }


def test_a_git_hook_that_starts_the_review_does_not_redirect_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert Git(folder / "scratch.git", None).out("rev-parse", "--is-bare-repository") == b"true\n"


def test_input_larger_than_a_pipe_does_not_block(folder: Path) -> None:
    text = b"x" * 1_000_000
    assert Git(folder, folder / "scratch.git").out("stripspace", stdin=text) == text + b"\n"


@pytest.mark.usefixtures("fresh_search")
def test_a_missing_git_is_one_line_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitError, match=r"^git is not on the PATH; install git 2\.34 or newer$"):
        Git(tmp_path, None).run("version")


@pytest.mark.usefixtures("fresh_search")
@pytest.mark.parametrize(
    ("said", "problem"),
    [("git version 2.33.9", "is version 2.33; install git 2.34"), ("hello", "does not tell its version")],
)
def test_an_old_or_strange_git_is_refused(
    said: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "git").write_text(f"#!/bin/sh\necho '{said}'\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitError, match=problem):
        Git(tmp_path, None).run("status")


@pytest.mark.usefixtures("fresh_search")
def test_the_oldest_supported_version_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "git").write_text("#!/bin/sh\necho 'git version 2.34.1 (Apple Git-137)'\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert executable() == str(tmp_path / "git")


def test_a_failed_command_is_told_with_gits_own_first_complaint(folder: Path) -> None:
    with pytest.raises(GitError, match=r"git cat-file failed in .*: Not a valid object name nothing"):
        Git(folder, folder / "scratch.git").out("cat-file", "-t", "nothing")
