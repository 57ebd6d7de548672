"""The sample repository that the demo reviews: a pull request with seeded faults, and the push that mends most."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from reviewer import yamlfile
from reviewer.errors import GitError
from reviewer.model import Frozen

BASE = "main"
HEAD = "pull"
_DATA = Path(__file__).with_name("sample")


class PullText(Frozen):
    """What the pull request says of itself."""

    number: int
    title: str
    author: str
    body: str


class Commit(Frozen):
    """Files of one folder laid over the parent's tree, after what moves unchanged has moved."""

    folder: str
    paths: tuple[str, ...] = ()
    renames: dict[str, str] = {}
    author: str
    date: str
    message: str


class Fix(Frozen):
    """The commit that amends the pull request's last one."""

    folder: str
    author: str
    date: str


class History(Frozen):
    pull: PullText
    base: tuple[Commit, ...]
    change: tuple[Commit, ...]
    upstream: tuple[Commit, ...]
    fix: Fix


@dataclass(frozen=True, slots=True)
class Sample:
    """The built repository; `base` and `head` are its branches."""

    path: Path
    pull: PullText
    base: str = BASE
    head: str = HEAD


def build(target: Path) -> Sample:
    """Makes the repository in `target`, a missing or empty folder, with the pull request checked out.

    Raises `GitError` for a folder that holds something, or where git cannot do its part.
    """
    history = _history()
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise GitError(f"{target} is not empty", "name a new or empty folder for the sample")
    _git(target, "init", "--template=", f"--initial-branch={BASE}")
    for commit in history.base:
        _commit(target, commit)
    _git(target, "switch", "--create", HEAD)
    for commit in history.change:
        _commit(target, commit)
    return Sample(target, history.pull)


def push_fix(target: Path) -> None:
    """What the author's force push leaves: `main` moved on, `pull` rebased onto it, its tip amended."""
    history = _history()
    _git(target, "switch", BASE)
    for commit in history.upstream:
        _commit(target, commit)
    fix = history.fix
    _git(target, "rebase", BASE, HEAD, author=fix.author, date=fix.date)
    _lay(target, fix.folder, ())
    _git(target, "commit", "--amend", "--no-edit", "--all", author=fix.author, date=fix.date)


def _history() -> History:
    path = _DATA / "history.yaml"
    return yamlfile.load(path.read_text("utf-8"), History, path.name)


def _commit(target: Path, commit: Commit) -> None:
    for old, new in commit.renames.items():
        _git(target, "mv", old, new)
    _lay(target, commit.folder, commit.paths)
    _git(target, "add", "--all")
    _git(target, "commit", "--message", commit.message, author=commit.author, date=commit.date)


def _lay(target: Path, folder: str, paths: tuple[str, ...]) -> None:
    """Copies the folder's files, or those under `paths`; contents only, so that their modes do not matter."""
    source = _DATA / folder
    for file in source.rglob("*"):
        path = file.relative_to(source)
        if not file.is_file() or "__pycache__" in path.parts:
            continue
        if paths and not any(path.is_relative_to(wanted) for wanted in paths):
            continue
        copy = target / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())


def _git(target: Path, *arguments: str, author: str = "", date: str = "") -> None:
    """Runs git deaf to the user's settings: signing, hooks, ignored files or line ends must not change an id."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "XDG_CONFIG_HOME": os.devnull,
    }
    if author:
        name, _, email = author.removesuffix(">").partition(" <")
        for role in ("AUTHOR", "COMMITTER"):
            environment |= {f"GIT_{role}_NAME": name, f"GIT_{role}_EMAIL": email, f"GIT_{role}_DATE": date}
    try:
        subprocess.run(
            ["git", *arguments], cwd=target, env=environment, check=True, capture_output=True, text=True
        )
    except FileNotFoundError:
        raise GitError("git is not on the PATH", "install git 2.34 or newer") from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip() or error.stdout.strip()).split("\n")[0]
        raise GitError(f"git {arguments[0]} failed in {target}: {said}", "build the sample anew") from None
