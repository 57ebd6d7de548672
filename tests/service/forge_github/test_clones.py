"""Clones kept between rounds: what is in them, what is not, and what mends, evicts and shares them."""

from __future__ import annotations

import base64
import gc
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reviewer.checkout.git import executable
from reviewer.model import Side
from service.forge.clone import Source
from service.forge.clones import Clones
from tests.service.forge_github.clonekit import Fetches, git, only, pull_of
from tests.standin.github import GitHub, Repo

# What a review sees


def test_a_review_reads_everything_of_the_head_without_the_network(
    clones: Clones, source: Source, repo: Repo, hub: GitHub
) -> None:
    pull = pull_of(repo)
    with clones.open(source, "pull-1", pull.base_sha, pull.head_sha) as checkout:
        before = len(hub.requests)
        assert [file.path for file in checkout.diff.files] == ["a.py"]
        assert checkout.read("a.py", Side.RIGHT) == b"changed\n"
        assert (checkout.read("a.py", Side.LEFT) or b"").startswith(b"line 1\n")
        assert checkout.read("lib/c.py", Side.RIGHT) == b"needle = 1\n"
        assert [one.path for one in checkout.grep("needle", Side.RIGHT)] == ["lib/c.py"]
        assert [entry.size for entry in checkout.list_dir("lib", Side.RIGHT) or ()] == [11]
        assert "A change" in checkout.log(None, 5)
        assert "+changed" in checkout.show("head")
        assert len(hub.requests) == before


def test_a_whole_checkout_has_every_file_of_base_and_head_whatever_the_budget(
    clones: Clones, source: Source, repo: Repo, tmp_path: Path
) -> None:
    pull = pull_of(repo)
    repo.push("main", {"later.py": "only on main\n"})
    tip = repo.sha("main")
    lean = Clones(tmp_path / "lean", 1 << 30, content_budget=0)
    with lean.open(source, "pull-1", tip, pull.head_sha, whole=True) as checkout:
        for commit in (tip, checkout.base_sha, checkout.head_sha):
            checkout.archive(commit, tmp_path / "files.tar.gz")
        assert checkout.merge_tree(tip) is not None


def test_a_fork_is_fetched_by_its_commit_from_the_base_repository(
    clones: Clones, source: Source, repo: Repo, hub: GitHub
) -> None:
    pull = pull_of(repo, author="eve", fork=True)
    with clones.open(source, "pull-1", pull.base_sha, pull.head_sha) as checkout:
        assert checkout.read("a.py", Side.RIGHT) == b"changed\n"
    assert {one.path.split("/")[1] for one in hub.requests} == {"acme"}


def test_a_head_that_was_pushed_away_is_fetched_all_the_same(
    clones: Clones, source: Source, repo: Repo
) -> None:
    pull = pull_of(repo)
    lost = pull.head_sha
    pull.force_push({"a.py": "other\n"})
    assert lost not in repo.state.git.text("for-each-ref")
    with clones.open(source, "pull-1", pull.base_sha, lost) as checkout:
        assert checkout.read("a.py", Side.RIGHT) == b"changed\n"


def test_the_change_is_from_the_merge_base_however_far_it_is(
    clones: Clones, source: Source, repo: Repo
) -> None:
    pull = pull_of(repo)
    fork_point = repo.sha("main")
    for number in range(30):
        repo.push("main", {"other.py": f"{number}\n"})
    with clones.open(source, "pull-1", repo.sha("main"), pull.head_sha) as checkout:
        assert checkout.base_sha == fork_point
        assert [file.path for file in checkout.diff.files] == ["a.py"]


def test_renames_are_seen_for_what_they_are(clones: Clones, source: Source, repo: Repo) -> None:
    text = repo.state.git.run("cat-file", "blob", "main:a.py")
    pull = repo.open_pull(files={"a.py": None, "moved.py": text + b"more\n"})
    with clones.open(source, "pull-1", pull.base_sha, pull.head_sha) as checkout:
        assert [(file.status, file.old_path) for file in checkout.diff.files] == [("renamed", "a.py")]


def test_only_contents_that_a_review_reads_are_fetched(
    clones: Clones, source: Source, repo: Repo, folder: Path
) -> None:
    old = repo.state.git.text("rev-parse", "main:b.py")
    repo.push("main", {"b.py": "newer\n"})
    pull = pull_of(repo)
    with clones.open(source, "pull-1", pull.base_sha, pull.head_sha):
        there = git(only(folder), "cat-file", "--batch-all-objects", "--batch-check")
        assert old not in there
        assert repo.state.git.text("rev-parse", "main:b.py") in there


def test_beyond_the_budget_the_change_is_whole_and_searches_still_work(
    folder: Path, source: Source, repo: Repo, hub: GitHub
) -> None:
    pull = pull_of(repo)
    with Clones(folder, 1 << 30, content_budget=0).open(
        source, "pull-1", pull.base_sha, pull.head_sha
    ) as checkout:
        before = len(hub.requests)
        assert checkout.read("a.py", Side.RIGHT) == b"changed\n"
        assert checkout.read("b.py", Side.RIGHT) is None
        assert [one.path for one in checkout.grep("changed", Side.RIGHT)] == ["a.py"]
        assert [entry.name for entry in checkout.list_dir("lib", Side.RIGHT) or ()] == ["c.py"]
        assert checkout.grep("nowhere to be found", Side.RIGHT) == ()
        assert len(hub.requests) == before


# What is kept


def test_the_same_head_again_fetches_nothing(
    clones: Clones, source: Source, repo: Repo, fetches: Fetches
) -> None:
    pull = pull_of(repo)
    clones.open(source, "pull-1", pull.base_sha, pull.head_sha).close()
    before = fetches()
    clones.open(source, "pull-1", pull.base_sha, pull.head_sha).close()
    assert fetches() == before


def test_the_next_push_fetches_the_difference_alone(
    clones: Clones, source: Source, repo: Repo, folder: Path
) -> None:
    for number in range(20):
        repo.push("main", {"history.txt": f"{number}\n"})
    pull = pull_of(repo)
    clones.open(source, "pull-1", pull.base_sha, pull.head_sha).close()
    packs = set(only(folder).glob("objects/pack/*.pack"))
    head = pull.push({"a.py": "again\n"})
    clones.open(source, "pull-1", pull.base_sha, head).close()
    fresh = set(only(folder).glob("objects/pack/*.pack")) - packs
    objects = sum(git(only(folder), "verify-pack", "-v", str(pack)).count("\n") for pack in fresh)
    # A commit, a tree and a blob, with some lines of summary for each pack.
    assert objects < 15


def test_the_password_is_in_no_file_argument_or_log(
    clones: Clones,
    source: Source,
    repo: Repo,
    token: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    real = executable()
    seen = tmp_path / "arguments"
    wrapper = tmp_path / "bin" / "git"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {seen}\nexec {real} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    executable.cache_clear()
    try:
        pull = pull_of(repo)
        clones.open(source, "pull-1", pull.base_sha, pull.head_sha).close()
    finally:
        executable.cache_clear()
    assert "fetch" in seen.read_text()
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    for secret in (token, base64.b64encode(f"x-access-token:{token}".encode()).decode()):
        assert secret not in seen.read_text() + caplog.text + repr(source)
        assert not [content for content in files if secret.encode() in content]


def test_the_clone_names_no_remote_and_runs_no_hook(
    clones: Clones, source: Source, repo: Repo, folder: Path, tmp_path: Path
) -> None:
    pull = pull_of(repo)
    clones.open(source, "pull-1", pull.base_sha, pull.head_sha).close()
    place = only(folder)
    assert git(place, "remote") == ""
    assert not list(place.glob("hooks/*"))
    ran = tmp_path / "ran"
    hook = place / "hooks" / "reference-transaction"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {ran}\n")
    hook.chmod(0o755)
    with (place / "config").open("a") as config:
        config.write(f"[core]\n\tfsmonitor = touch {ran}\n\thooksPath = {hook.parent}\n")
    clones.open(source, "pull-1", pull.base_sha, pull.push({"a.py": "again\n"})).close()
    assert not ran.exists()
    assert "fsmonitor" not in (place / "config").read_text()


# Who shares them


def open_in_a_process(
    folder: Path, url: str, token: str, base: str, heads: list[str]
) -> subprocess.Popen[str]:
    script = f"""
from pathlib import Path
from reviewer.model import Side
from service.forge.clone import Source
from service.forge.clones import Clones
source = Source({url!r}, "x-access-token", lambda: {token!r})
for number, head in enumerate({heads!r}):
    with Clones(Path({str(folder)!r}), 1 << 30).open(source, f"pull-{{number}}", {base!r}, head) as checkout:
        print(checkout.read("a.py", Side.RIGHT).decode(), end="")
"""
    root = Path(__file__).parents[3]
    return subprocess.Popen([sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE, text=True)


def test_threads_and_processes_share_a_clone(
    clones: Clones, source: Source, repo: Repo, token: str, folder: Path
) -> None:
    pulls = [pull_of(repo, f"change {number}\n", branch=f"topic-{number}") for number in range(4)]
    base, heads = pulls[0].base_sha, [pull.head_sha for pull in pulls]

    def read(number: int) -> bytes | None:
        with clones.open(source, f"pull-{number}", base, heads[number]) as checkout:
            return checkout.read("a.py", Side.RIGHT)

    other = open_in_a_process(folder, source.url, token, base, heads)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, range(4))) == [f"change {number}\n".encode() for number in range(4)]
    said, _ = other.communicate(timeout=60)
    assert said == "".join(f"change {number}\n" for number in range(4))
    assert git(only(folder), "fsck", "--connectivity-only", "--no-dangling") == ""


def test_what_two_want_at_once_is_fetched_once(
    clones: Clones, source: Source, repo: Repo, hub: GitHub, fetches: Fetches
) -> None:
    pull = pull_of(repo)
    hub.fail("* /acme/app.git/**", times=2, delay=0.3)

    def read(_: int) -> bytes | None:
        with clones.open(source, "pull-1", pull.base_sha, pull.head_sha) as checkout:
            return checkout.read("a.py", Side.RIGHT)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(read, range(3))) == [b"changed\n"] * 3
    # Commits, the change's contents, the rest.
    assert fetches() == 3


def test_a_review_under_way_does_not_keep_the_next_from_fetching(
    clones: Clones, source: Source, repo: Repo
) -> None:
    pull = pull_of(repo)
    with clones.open(source, "pull-1", pull.base_sha, pull.head_sha):
        head = pull.push({"a.py": "again\n"})
        with clones.open(source, "pull-1", pull.base_sha, head) as second:
            assert second.read("a.py", Side.RIGHT) == b"again\n"


# What they may take


def repositories(hub: GitHub, token: str, *names: str) -> list[tuple[Source, str]]:
    made = [hub.create_repo(f"acme/{name}", files={"a.bin": os.urandom(200_000)}) for name in names]
    return [(Source(one.clone_url, "x-access-token", lambda: token), one.sha("main")) for one in made]


def names(folder: Path) -> list[str]:
    return sorted(place.name.rsplit("-", 1)[0].removeprefix("acme-") for place in folder.glob("*.git"))


def test_the_clone_longest_unused_leaves_first(hub: GitHub, token: str, folder: Path) -> None:
    clones = Clones(folder, 600_000)
    found = repositories(hub, token, "one", "two", "three")
    for number in (0, 1, 0, 2):
        source, sha = found[number]
        clones.open(source, "pull-1", sha, sha).close()
        gc.collect()
        time.sleep(0.02)
    assert names(folder) == ["one", "three"]
    source, sha = found[1]
    with clones.open(source, "pull-1", sha, sha) as checkout:
        assert len(checkout.read("a.bin", Side.RIGHT) or b"") == 200_000


def test_a_clone_in_use_stays_whatever_it_takes(hub: GitHub, token: str, folder: Path) -> None:
    clones = Clones(folder, 100_000)
    (one, one_sha), (two, two_sha) = repositories(hub, token, "one", "two")
    first = clones.open(one, "pull-1", one_sha, one_sha)
    clones.open(two, "pull-1", two_sha, two_sha).close()
    assert names(folder) == ["one", "two"]
    assert len(first.read("a.bin", Side.RIGHT) or b"") == 200_000
    first.close()
    del first
    gc.collect()
    clones.open(two, "pull-1", two_sha, two_sha).close()
    assert names(folder) == ["two"]
