"""What goes wrong with a clone: refused, unreachable, damaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from reviewer.errors import GitError
from reviewer.model import Side
from service.forge.base import ForgeError
from service.forge.clone import Source
from service.forge.clones import Clones
from tests.service.forge_github.clonekit import Fetches, only, pull_of
from tests.standin.github import GitHub, Repo


def test_a_commit_that_is_nowhere_is_told(clones: Clones, source: Source, repo: Repo) -> None:
    with pytest.raises(ForgeError, match="does not have commit") as refused:
        clones.open(source, "pull-1", repo.sha("main"), "0123456789" * 4)
    assert (refused.value.status, refused.value.retry_after) == (404, None)


@pytest.mark.parametrize("commit", ["main", "--upload-pack=touch", "", "0" * 39, "refs/heads/main"])
def test_what_is_no_commit_name_reaches_no_git(
    clones: Clones, source: Source, repo: Repo, fetches: Fetches, commit: str
) -> None:
    with pytest.raises(GitError, match="not a commit's full name"):
        clones.open(source, "pull-1", repo.sha("main"), commit)
    assert fetches() == 0


@pytest.mark.parametrize("password", ["ghp_wrong", ""])
def test_a_repository_that_is_closed_to_us_is_told_with_the_permission(
    clones: Clones, hub: GitHub, password: str, folder: Path
) -> None:
    closed = hub.create_repo("acme/closed", private=True)
    source = Source(closed.clone_url, "x-access-token", lambda: password)
    sha = closed.sha("main")
    with pytest.raises(ForgeError, match=r"acme/closed\.git cannot be cloned.*Contents: read") as refused:
        clones.open(source, "pull-1", sha, sha)
    assert refused.value.retry_after is None


@pytest.mark.parametrize("failure", [{"status": 502}, {"drop": "before"}, {"drop": "after"}])
def test_a_remote_that_fails_is_worth_another_try_and_costs_no_clone(
    clones: Clones, source: Source, repo: Repo, hub: GitHub, folder: Path, failure: dict[str, object]
) -> None:
    pull = pull_of(repo)
    clones.open(source, "pull-1", pull.base_sha, pull.head_sha).close()
    head = pull.push({"a.py": "again\n"})
    before = only(folder).stat().st_ino
    hub.fail("* /acme/app.git/**", **failure)  # type: ignore[arg-type]
    with pytest.raises(ForgeError) as failed:
        clones.open(source, "pull-1", pull.base_sha, head)
    assert failed.value.retry_after
    with clones.open(source, "pull-1", pull.base_sha, head) as checkout:
        assert checkout.read("a.py", Side.RIGHT) == b"again\n"
    assert only(folder).stat().st_ino == before


def test_a_remote_that_is_too_slow_is_given_up(
    clones: Clones, source: Source, repo: Repo, hub: GitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.forge.clone._FETCH_SECONDS", 0.3)
    pull = pull_of(repo)
    hub.fail("* /acme/app.git/**", delay=1.0)
    with pytest.raises(ForgeError, match=r"took more than") as failed:
        clones.open(source, "pull-1", pull.base_sha, pull.head_sha)
    assert failed.value.retry_after


def no_head(place: Path) -> None:
    (place / "HEAD").write_text("garbage")


def no_index(place: Path) -> None:
    for path in place.glob("objects/pack/*"):
        path.chmod(0o600)
        path.write_bytes(b"garbage")


def cut_packs(place: Path) -> None:
    for path in place.glob("objects/pack/*.pack"):
        path.chmod(0o600)
        os.truncate(path, path.stat().st_size // 2)


def flipped_bits(place: Path) -> None:
    for path in place.glob("objects/pack/*.pack"):
        path.chmod(0o600)
        content = bytearray(path.read_bytes())
        for index in range(20, len(content) - 20, 7):
            content[index] ^= 0xFF
        path.write_bytes(content)


def lost_packs(place: Path) -> None:
    shutil.rmtree(place / "objects" / "pack")


def locked_ref(place: Path) -> None:
    (place / "refs" / "whitesmoke" / "pull-1" / "head.lock").touch()


def bad_ref(place: Path) -> None:
    (place / "refs" / "whitesmoke" / "pull-1" / "head").write_text("garbage")


def bad_config(place: Path) -> None:
    (place / "config").write_text("[garbage")


def leftover_pack(place: Path) -> None:
    (place / "objects" / "pack" / "tmp_pack_XXXX").write_bytes(b"half a pack")


RARE = (no_index, flipped_bits, lost_packs, bad_ref, bad_config)


@pytest.mark.parametrize(
    "damage",
    [
        *(no_head, cut_packs, locked_ref, leftover_pack),
        *(pytest.param(one, marks=pytest.mark.exhaustive) for one in RARE),
    ],
)
def test_a_damaged_clone_is_mended(
    clones: Clones, source: Source, repo: Repo, folder: Path, damage: Callable[[Path], None]
) -> None:
    pull = pull_of(repo)
    clones.open(source, "pull-1", pull.base_sha, pull.head_sha).close()
    damage(only(folder))
    head = pull.push({"a.py": "again\n"})
    with clones.open(source, "pull-1", pull.base_sha, head) as checkout:
        assert checkout.read("a.py", Side.RIGHT) == b"again\n"
        assert checkout.read("b.py", Side.RIGHT) == b"b\n"
    assert not list(only(folder).glob("objects/pack/tmp_*"))


def test_a_change_without_a_common_commit_is_told_and_costs_no_clone(
    clones: Clones, source: Source, repo: Repo, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    git_store = repo.state.git
    orphan = git_store.commit("orphan", {"z.py": "z\n"}, "alone", "ada", repo.hub.world.now(), parent=None)
    with pytest.raises(GitError, match="no common commit"):
        clones.open(source, "pull-1", repo.sha("main"), orphan)
    assert "anew" not in caplog.text
