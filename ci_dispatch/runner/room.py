"""A job's fresh folder on the host: its trees, homes, output folders and caches, and whom it runs as."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ci_dispatch.model import Job, Tree
from ci_dispatch.runner.base import Sources, Workplace
from ci_dispatch.runner.limits import used_bytes
from ci_dispatch.runner.sandbox import write_etc

FIRST_UID = 70_000
"""UIDs that no system hands out: above the service managers' dynamic ones, below those of subordinate users."""
_SLOTS = 500
_DOMAINS = 500
_COPIED_BYTES = 4 << 30


class RoomError(Exception):
    """No folder or user for the job on this host; says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """One tree and what its steps write besides."""

    tree: Path
    home: Path
    cache: Path


@dataclass(frozen=True, slots=True)
class Room:
    """Attributes:
    folder: all of it.
    uid: the owner of what the job writes; None where that is the agent's own user.
    places: by tree, those that were fetched.
    cache: in words, what its compiler caches are.
    """

    folder: Path
    uid: int | None
    places: dict[Tree, Place]
    cache: str

    @property
    def etc(self) -> Path:
        return self.folder / "etc"

    def out(self, name: str) -> Path:
        """A fresh output folder that the job may write."""
        folder = self.folder / "out" / name
        folder.mkdir(parents=True)
        self._give(folder)
        return folder

    def fetch(self, tree: Tree, sources: Sources) -> None:
        """Unpacks a tree and hands it to the job. Raises SourceError."""
        place = self.places[tree]
        sources.fetch(tree, place.tree)
        self._give(place.tree)

    def _give(self, folder: Path) -> None:
        if self.uid is not None:
            _own(folder, self.uid)


@contextmanager
def open_room(job: Job, workplace: Workplace, confined: bool) -> Iterator[Room]:
    """A fresh room, gone at the end whatever happened.

    Confined below an agent that is root, it belongs to a UID of its own. Trusted jobs of a repository share one, and write the caches
    of their trust domain; another job finds a copy of them, which goes with it.

    Raises:
        RoomError: the host has no place.
    """
    jobs = workplace.folder / "jobs"
    name = f"{job.spec.name[:40]}-{secrets.token_hex(6)}"
    try:
        jobs.mkdir(parents=True, exist_ok=True)
        workplace.caches.mkdir(parents=True, exist_ok=True)
        folder = jobs / name
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise RoomError(f"no folder for the job below {workplace.folder}: {error.strerror}") from None
    lowered = confined and os.geteuid() == 0
    try:
        domain = _domain(workplace.caches, job.repo, lowered)
        with _user(workplace, domain, job.trusted, lowered) as uid:
            yield _furnish(folder, domain, job.trusted, uid)
    finally:
        remove(folder)


def remove(folder: Path) -> None:
    """Removes a folder, however deep and with whatever modes a job left it."""
    for attempt in range(2):
        if attempt:
            subprocess.run(
                ["chmod", "-R", "u+rwX", "--", str(folder)], stderr=subprocess.DEVNULL, check=False
            )
        subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL, check=False)
        if not folder.exists():
            return


def _furnish(folder: Path, domain: Path, trusted: bool, uid: int | None) -> Room:
    places: dict[Tree, Place] = {}
    words = "of its trust domain"
    for tree in ("head", "base"):
        side = folder / tree
        for name in ("tree", "home", "cache"):
            (side / name).mkdir(parents=True)
        if trusted:
            cache = domain
        else:
            cache = side / "cache"
            words = _copy_cache(domain, cache)
        places[tree] = Place(side / "tree", side / "home", cache)
        if uid is not None:
            _own(side, uid)
    (folder / "out").mkdir()
    write_etc(folder / "etc", uid if uid is not None else os.geteuid())
    return Room(folder, uid, places, words)


def _copy_cache(domain: Path, into: Path) -> str:
    """A job that may not write the domain's caches starts from a copy, one for each side: neither poisons what the other is
    measured with."""
    size = used_bytes(domain)
    if size > _COPIED_BYTES:
        return f"empty: its trust domain's {size:,} bytes are too many to copy"
    # What a running job removes or replaces meanwhile is simply not there.
    subprocess.run(
        ["cp", "-R", "-P", "--reflink=auto", "--", f"{domain}/.", str(into)],
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return "a copy of its trust domain's"


def _domain(caches: Path, repo: str, lowered: bool) -> Path:
    """Jobs that run as the agent have caches of their own: what they write, a lowered one could not replace."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", repo)[:60]
    digest = hashlib.sha256(repo.encode()).hexdigest()[:12]
    folder = caches / f"{readable}-{digest}{'' if lowered else '-agent'}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@contextmanager
def _user(workplace: Workplace, domain: Path, trusted: bool, lowered: bool) -> Iterator[int | None]:
    if not lowered:
        yield None
        return
    if trusted:
        yield _domain_uid(domain)
        return
    locks = workplace.folder / "uids"
    locks.mkdir(exist_ok=True)
    for uid in range(FIRST_UID, FIRST_UID + _SLOTS):
        with (locks / str(uid)).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield uid
            return
    raise RoomError(f"{_SLOTS} jobs run at a time: no user is left")


def _domain_uid(domain: Path) -> int:
    """The owner of a domain's caches is whom its trusted jobs run as: no list has to be kept."""
    reserved = range(FIRST_UID + _SLOTS, FIRST_UID + _SLOTS + _DOMAINS)
    with (domain.parent / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        owner = domain.stat().st_uid
        if owner in reserved:
            return owner
        taken = {other.stat().st_uid for other in domain.parent.iterdir()}
        free = next((uid for uid in reserved if uid not in taken), None)
        if free is None:
            raise RoomError(
                f"{domain.parent} holds caches of {_DOMAINS} repositories; remove those not used any more"
            )
        _own(domain, free)
        return free


def _own(folder: Path, uid: int) -> None:
    ran = subprocess.run(
        ["chown", "-R", "-h", f"{uid}:{uid}", "--", str(folder)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if ran.returncode != 0:
        said = ran.stderr.decode(errors="replace").strip().splitlines()
        raise RoomError(f"{folder} cannot be handed to user {uid}: {said[-1] if said else 'chown failed'}")
