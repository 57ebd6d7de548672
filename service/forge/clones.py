"""Clones of the repositories under review, kept from one round to the next, on a limited part of the disk."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path

from reviewer.checkout.git import MIB
from reviewer.checkout.snapshot import GitCheckout, open_range
from reviewer.errors import GitError
from service.forge.base import ForgeError
from service.forge.clone import Clone, Damaged, Source

_log = logging.getLogger(__name__)

_CONTENT_BUDGET = 256 * MIB
_RETRY_SECONDS = 60.0


class Clones:
    """One clone for each URL under `folder`. Together they take at most `limit` bytes, save those in use.

    Of the head's files that the change leaves alone, about `content_budget` bytes are fetched each time.
    Safe to use from several threads and processes.
    """

    def __init__(self, folder: Path, limit: int, content_budget: int = _CONTENT_BUDGET) -> None:
        self._folder = folder
        self._limit = limit
        self._content_budget = content_budget

    def open(self, source: Source, name: str, base: str, head: str, *, whole: bool = False) -> GitCheckout:
        """The change from commit `base` to commit `head`, with all that a review reads fetched beforehand.

        `whole` fetches every file of both, and of their merge base. `name` tells the change from others of the repository. The clone stays for as long as something refers to the
        checkout.
        Raises `ForgeError` where the source does not give it, and `GitError` where there is nothing to compare.
        """
        for commit in (base, head):
            if not re.fullmatch(r"[0-9a-f]{40}", commit):
                raise GitError(f"{commit!r} is not a commit's full name", "ask the forge for it again")
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = self._folder / f"{_slug(source.url)}.git"
        stamp = _stamp(place)
        # Shared by all who read the clone, and taken alone by who deletes it.
        use = _lock(stamp, fcntl.LOCK_SH)
        try:
            os.utime(stamp)
            with _locked(place.with_suffix(".fetch"), fcntl.LOCK_EX):
                self._fetch(Clone(place, source), name, base, head, None if whole else self._content_budget)
            checkout = open_range(place, base, head)
        except BaseException:
            os.close(use)
            raise
        weakref.finalize(checkout, os.close, use)
        self._evict(place)
        return checkout

    def _fetch(self, clone: Clone, name: str, base: str, head: str, budget: int | None) -> None:
        try:
            clone.fetch(name, base, head, budget)
        except Damaged as error:
            _log.warning("cloning %s anew: %s", clone.source.url, error)
        else:
            return
        # Who reads it at this moment may fail; what it can read is no more to be relied on.
        shutil.rmtree(clone.place, ignore_errors=True)
        try:
            clone.fetch(name, base, head, budget)
        except Damaged as error:
            raise ForgeError(
                f"{clone.source.url} cannot be cloned: {error.problem}",
                f"it is tried again; check the disk that {self._folder} is on",
                retry_after=_RETRY_SECONDS,
            ) from error

    def _evict(self, kept: Path) -> None:
        """Deletes clones, the one longest unused first, until all are within the limit."""
        places = [place for place in self._folder.glob("*.git") if _stamp(place).exists()]
        sizes = {place: _size(place) for place in places}
        total = sum(sizes.values())
        for place in sorted(places, key=lambda one: _stamp(one).stat().st_mtime):
            if total <= self._limit:
                return
            if place == kept:
                continue
            with contextlib.suppress(BlockingIOError), _locked(_stamp(place), fcntl.LOCK_EX | fcntl.LOCK_NB):
                shutil.rmtree(place, ignore_errors=True)
                total -= sizes[place]


def _stamp(place: Path) -> Path:
    """The file whose time says when a clone was last used; it outlives the clone, as a lock on it may be awaited."""
    return place.with_suffix(".use")


def _slug(url: str) -> str:
    """Readable and unique."""
    tail = "-".join(url.lower().removesuffix(".git").rsplit("/", 2)[1:])
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", tail).strip("-")[:80]
    return f"{name}-{hashlib.sha256(url.lower().encode()).hexdigest()[:12]}"


def _lock(path: Path, how: int) -> int:
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, how)
    except BaseException:
        os.close(handle)
        raise
    return handle


@contextlib.contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    handle = _lock(path, how)
    try:
        yield
    finally:
        os.close(handle)


def _size(folder: Path) -> int:
    """Bytes that the files in a folder take; what goes away meanwhile counts nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total
