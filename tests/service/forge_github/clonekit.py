"""Looking into clones."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.standin.github import Pull, Repo

Fetches = Callable[[], int]
"""How many requests for objects were made."""


def pull_of(repo: Repo, text: str = "changed\n", **more: object) -> Pull:
    return repo.open_pull(files={"a.py": text}, **more)  # type: ignore[arg-type]


def only(folder: Path) -> Path:
    (place,) = folder.glob("*.git")
    return place


def git(place: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(place), *arguments], capture_output=True, check=True, text=True)
    return done.stdout
