"""Merging on the local forge: the tree of a merge, its commit, and the base branch moved to it.

The merge is made in a scratch repository, so that no configuration of the repository decides what a merge is. Only the
new objects and the branch are the repository's own; a work tree that has the branch checked out follows.
"""

from __future__ import annotations

import os
import re
from datetime import datetime
from pathlib import Path
from typing import Literal

from reviewer.checkout.git import Git
from reviewer.checkout.repository import Repository, open_scratch
from reviewer.errors import GitError
from service.forge.base import ForgeError

_MERGE_SECONDS = 300.0
_RETRY_SECONDS = 1.0
_UNSAFE = re.compile(r"[<>\n\0]")


class Conflict(Exception):
    """The two sides do not merge by themselves."""


def conflicts(repository: Repository, base: str, head: str) -> bool:
    """Whether the commit `head` merges into the commit `base`; nothing is written."""
    git, owner = open_scratch(repository)
    with owner:
        try:
            _merged_tree(git, base, head, {})
        except Conflict:
            return True
    return False


def make_merge(
    repository: Repository,
    base: str,
    head: str,
    method: Literal["merge", "squash"],
    message: str,
    author: str,
    when: datetime,
) -> str:
    """Writes the commit that merges `head` into `base`, on no branch; `base` itself where it has all of it already.

    Raises `Conflict`.
    """
    git, owner = open_scratch(repository)
    with owner:
        # Into the repository itself, past its configuration.
        env = {"GIT_OBJECT_DIRECTORY": os.fspath(repository.common_dir / "objects")}
        tree = _merged_tree(git, base, head, env)
        if tree == git.out("rev-parse", f"{base}^{{tree}}").decode().strip():
            return base
        name = _UNSAFE.sub("", author) or "nobody"
        stamp = f"{int(when.timestamp())} +0000"
        for role in ("AUTHOR", "COMMITTER"):
            env |= {
                f"GIT_{role}_NAME": name,
                f"GIT_{role}_EMAIL": f"{name}@localhost",
                f"GIT_{role}_DATE": stamp,
            }
        parents = (base, head) if method == "merge" else (base,)
        options = [word for parent in parents for word in ("-p", parent)]
        made = git.out("commit-tree", tree, *options, stdin=message.encode(), env=env)
        return made.decode().strip()


def advance(repository: Repository, branch: str, old: str, new: str) -> None:
    """Moves the branch from `old` to `new`. Raises `ForgeError` with status 405 where it stands elsewhere, or where its
    work tree holds changes that are in the way."""
    place = _work_tree(repository, branch)
    if place is None:
        moved = repository.git.run("update-ref", f"refs/heads/{branch}", new, old)
    else:
        moved = Git(place, None).run("merge", "--ff-only", "--quiet", new, timeout=_MERGE_SECONDS)
    if not moved.code:
        return
    (tip,) = repository.git.out("for-each-ref", "--format=%(objectname)", f"refs/heads/{branch}").split() or (
        b"",
    )
    if tip.decode() != old:
        raise ForgeError(
            f"{branch} was moved meanwhile", "it is tried again", status=405, retry_after=_RETRY_SECONDS
        )
    remedy = f"commit or stash what is in {place}" if place else "check that the repository can be written"
    raise ForgeError(f"{branch} cannot be moved: {moved.complaint}", remedy, status=405)


def _merged_tree(git: Git, base: str, head: str, env: dict[str, str]) -> str:
    done = git.run("merge-tree", "--write-tree", "--no-messages", base, head, env=env, timeout=_MERGE_SECONDS)
    if done.code == 1:
        raise Conflict
    if done.code or done.cut:
        raise GitError(
            f"git cannot merge {head[:12]} into {base[:12]}: {done.complaint}",
            "merging takes git 2.38 or newer",
        )
    return done.out.decode().split()[0]


def _work_tree(repository: Repository, branch: str) -> Path | None:
    """The folder in which the branch is checked out."""
    listed = repository.git.out("worktree", "list", "--porcelain")
    for record in os.fsdecode(listed).split("\n\n"):
        lines = record.splitlines()
        if f"branch refs/heads/{branch}" in lines:
            return Path(lines[0].removeprefix("worktree "))
    return None
