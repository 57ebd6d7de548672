"""GitHub's published descriptions, from npm, in a cache outside the repository.

    python -m tests.standin.github.packages

installs them; tests do it by themselves, once.
"""

from __future__ import annotations

import fcntl
import functools
import json
import shutil
import subprocess
import sys
from pathlib import Path

PINNED = {
    "@octokit/graphql-schema": "15.26.1",
    "@octokit/openapi": "23.0.2",
    "@octokit/webhooks-schemas": "7.6.1",
    "@octokit/webhooks-examples": "7.6.1",
    "emulate": "0.11.2",
}


def cache_folder() -> Path:
    """Beside the environment's packages, or in the user's cache where there is no virtual environment."""
    inside = sys.prefix != sys.base_prefix
    return Path(sys.prefix, "github-openapi") if inside else Path.home() / ".cache" / "whitesmoke-github"


def installed() -> Path:
    """The folder of the packages, filled first if need be. Raises OSError, saying why, where that cannot be done."""
    outcome = _outcome()
    if isinstance(outcome, OSError):
        raise outcome
    return outcome


@functools.cache
def _outcome() -> Path | OSError:
    # A failure is remembered too: without a network npm takes long to give up.
    try:
        return _fill()
    except OSError as error:
        return error


def _fill() -> Path:
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    modules = folder / "node_modules"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if any(_version(modules / name) != version for name, version in PINNED.items()):
            _install(folder)
    return modules


def _version(package: Path) -> str | None:
    try:
        told: str = json.loads((package / "package.json").read_text())["version"]
    except (OSError, ValueError, KeyError):
        return None
    return told


def _install(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise OSError("npm is not installed, so GitHub's API description cannot be fetched")
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": PINNED}))
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"npm install failed in {folder}: {done.stderr.strip()[-300:]}")


if __name__ == "__main__":
    print(installed())
