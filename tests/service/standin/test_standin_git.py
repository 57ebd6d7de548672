"""Real git against the stand-in."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.standin.github import GitHub, Repo


def git(folder: Path, *arguments: str, ok: bool = True) -> str:
    environment = {"PATH": "/usr/bin:/bin", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env={**environment, "GIT_TERMINAL_PROMPT": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == ok, done.stderr
    return done.stdout.strip() if ok else done.stderr


def test_a_clone_has_the_branches(repo: Repo, tmp_path: Path) -> None:
    pull = repo.open_pull(files={"c.py": "c\n"})
    git(tmp_path, "clone", "--quiet", repo.clone_url, "copy")
    assert git(tmp_path / "copy", "rev-parse", "origin/topic") == pull.head_sha


def test_a_commit_is_fetched_by_its_name_without_blobs_even_from_a_fork_and_after_a_force_push(
    repo: Repo, tmp_path: Path
) -> None:
    pull = repo.open_pull(author="eve", fork=True, files={"c.py": "c\n"})
    old = pull.head_sha
    pull.force_push({"c.py": "d\n"})
    git(tmp_path, "init", "--quiet", "--bare")
    git(tmp_path, "remote", "add", "origin", repo.clone_url)
    git(tmp_path, "config", "remote.origin.promisor", "true")
    git(tmp_path, "fetch", "--quiet", "--filter=blob:none", "origin", old, pull.base_sha)
    missing = git(tmp_path, "rev-list", "--objects", "--missing=print", old)
    assert missing.count("?") == 3
    assert git(tmp_path, "show", f"{old}:c.py") == "c"
    assert git(tmp_path, "ls-remote", "origin", "refs/pull/1/head").split()[0] == pull.head_sha


def test_a_private_repository_needs_a_token(hub: GitHub, tmp_path: Path) -> None:
    repo = hub.create_repo("acme/secret", private=True)
    repo.grant("ada", "read")
    refused = git(tmp_path, "ls-remote", repo.clone_url, ok=False)
    assert "terminal prompts disabled" in refused
    for login, good in (("ada", True), ("eve", False)):
        url = repo.clone_url.replace("http://", f"http://x-access-token:{hub.token(login)}@")
        answer = git(tmp_path, "ls-remote", url, ok=good)
        assert (repo.sha("main") in answer) == good


def test_failure_switches_work_on_git_too(hub: GitHub, repo: Repo, tmp_path: Path) -> None:
    struck = hub.fail("GET /acme/app.git/info/refs", 502)
    assert "502" in git(tmp_path, "ls-remote", repo.clone_url, ok=False)
    assert git(tmp_path, "ls-remote", repo.clone_url)
    assert struck.hits == 1


def test_a_push_is_refused(repo: Repo, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", repo.clone_url, "copy")
    assert "403" in git(tmp_path / "copy", "push", "origin", "main:other", ok=False)
