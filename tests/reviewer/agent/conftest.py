from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reviewer.checkout.snapshot import GitCheckout, open_range

Commit = Callable[[dict[str, str | bytes]], str]


def start(folder: Path) -> Commit:
    """A new repository; what it returns writes files and commits the whole work tree."""

    def git(*arguments: str) -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            **{f"GIT_{who}_NAME": "Ada" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": "ada@localhost" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_DATE": "2024-05-06T07:08:09Z" for who in ("AUTHOR", "COMMITTER")},
        }
        done = subprocess.run(
            ["git", *arguments], cwd=folder, env=environment, capture_output=True, check=True
        )
        return done.stdout.decode().strip()

    def commit(files: dict[str, str | bytes]) -> str:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        git("add", "--all")
        git("commit", "--quiet", "--allow-empty", "--message", "change")
        return git("rev-parse", "HEAD")

    folder.mkdir()
    git("init", "--quiet", "--initial-branch=main")
    return commit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "repo"


@pytest.fixture
def commit(folder: Path) -> Commit:
    return start(folder)


APP = """import os

LIMIT = 3


class Cache:
    def get(self, key):
        return os.environ[key]


def run(cache):
    return cache.get("x") + LIMIT
"""

KERNEL = """#define TILE 32
struct Page;
struct __align__(16) Page {
  int id;
};
__global__ void copy(float* out, const float* in);
__global__ void __launch_bounds__(256) copy(float* out,
                                            const float* in) {
  out[0] = in[0];
}
void launch(float* a) {
  copy<<<1, TILE>>>(a, a);
}
"""


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitCheckout]:
    """Base: `old.py` alone. Head: a small code base with links and files that are not plain text."""
    folder = tmp_path_factory.mktemp("agent") / "repo"
    commit = start(folder)
    commit({"old.py": "gone = 1\n"})
    (folder / "old.py").unlink()
    (folder / "link").symlink_to("/etc")
    (folder / "passwd").symlink_to("/etc/passwd")
    commit(
        {
            "app.py": APP,
            "kernels/copy.cu": KERNEL,
            "long.txt": "".join(f"line {number}\n" for number in range(1, 1001)),
            "wide.txt": "w" * 100_000 + "\nend\n",
            "image.png": b"\x89PNG\0\0",
            "latin.txt": b"caf\xe9\n",
            "empty.txt": "",
        }
    )
    with open_range(folder, "HEAD~1", "HEAD") as opened:
        yield opened
