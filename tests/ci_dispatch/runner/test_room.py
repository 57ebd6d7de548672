"""A job's folder, its caches and whom it runs as."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ci_dispatch.runner import room
from ci_dispatch.runner.base import Workplace
from ci_dispatch.runner.room import RoomError, open_room
from tests.kit.runner_jobs import job, shell

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
TRUSTED, FORK = job(shell("true"), trusted=True), job(shell("true"))


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path / "runner", tmp_path / "caches")


def test_a_rooms_folder_is_fresh_and_goes_with_it(place: Workplace) -> None:
    with (
        open_room(TRUSTED, place, confined=False) as first,
        open_room(TRUSTED, place, confined=False) as second,
    ):
        assert first.folder != second.folder
        assert list(first.places["head"].tree.iterdir()) == []
    assert not first.folder.exists()


@needs_root
def test_trusted_jobs_of_a_repository_share_a_user_and_others_do_not(place: Workplace) -> None:
    other = TRUSTED.model_copy(update={"repo": "other/name"})
    with (
        open_room(TRUSTED, place, confined=True) as one,
        open_room(TRUSTED, place, confined=True) as same,
        open_room(other, place, confined=True) as second,
        open_room(FORK, place, confined=True) as fork,
        open_room(FORK, place, confined=True) as fork_too,
    ):
        assert one.uid == same.uid
        assert len({one.uid, second.uid, fork.uid, fork_too.uid}) == 4
        assert one.places["head"].cache == same.places["head"].cache
    with open_room(TRUSTED, place, confined=True) as later:
        assert later.uid == one.uid


@needs_root
def test_a_user_is_free_again_when_its_room_is_gone(place: Workplace) -> None:
    with open_room(FORK, place, confined=True) as first:
        pass
    with open_room(FORK, place, confined=True) as second:
        assert second.uid == first.uid


@needs_root
def test_a_host_without_a_user_left_says_so(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_SLOTS", 1)
    with (
        open_room(FORK, place, confined=True),
        pytest.raises(RoomError),
        open_room(FORK, place, confined=True),
    ):
        pass


@needs_root
def test_jobs_that_run_as_the_agent_do_not_write_the_caches_of_confined_ones(place: Workplace) -> None:
    with (
        open_room(TRUSTED, place, confined=True) as confined,
        open_room(TRUSTED, place, confined=False) as plain,
    ):
        assert confined.places["head"].cache != plain.places["head"].cache


def test_links_in_a_cache_are_copied_as_links(place: Workplace, tmp_path: Path) -> None:
    confined = os.geteuid() == 0
    with open_room(TRUSTED, place, confined=confined) as trusted:
        domain = trusted.places["head"].cache
    (tmp_path / "secret").write_text("x")
    (domain / "link").symlink_to(tmp_path / "secret")
    (domain / "key").write_text("compiled")
    with open_room(FORK, place, confined=confined) as fork:
        caches = [fork.places[tree].cache for tree in ("head", "base")]
        assert all((cache / "link").is_symlink() for cache in caches)
        assert [(cache / "key").read_text() for cache in caches] == ["compiled"] * 2
        assert caches[0] != caches[1]


def test_a_cache_too_large_to_copy_is_left_and_the_report_says_so(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_room(TRUSTED, place, confined=False) as trusted:
        (trusted.places["head"].cache / "key").write_bytes(b"x" * 100_000)
    monkeypatch.setattr(room, "_COPIED_BYTES", 50_000)
    with open_room(FORK, place, confined=False) as fork:
        assert list(fork.places["head"].cache.iterdir()) == []
        assert "too many to copy" in fork.cache
