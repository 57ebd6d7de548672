from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Content = str | bytes | None


class Repo:
    """A real repository to review, written with plain git and a configuration of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def git(self, *arguments: str | bytes, check: bool = True, stdin: bytes = b"") -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder.parent),
            "GIT_CONFIG_NOSYSTEM": "1",
            **{f"GIT_{who}_NAME": "Ada" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": "ada@localhost" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_DATE": "2024-05-06T07:08:09Z" for who in ("AUTHOR", "COMMITTER")},
        }
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.folder,
            env=environment,
            input=stdin,
            capture_output=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr.decode()
        return done.stdout.decode(errors="replace").strip()

    def raw(self, *arguments: str) -> bytes:
        """Output byte for byte, for patches."""
        return subprocess.run(
            ["git", *arguments],
            cwd=self.folder,
            capture_output=True,
            check=True,
            env={"PATH": os.environ["PATH"]},
        ).stdout

    def write(self, files: dict[str | bytes, Content]) -> None:
        for name, content in files.items():
            path = os.path.join(os.fsencode(self.folder), os.fsencode(name))
            if content is None:
                os.remove(path)
                continue
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)

    def commit(self, files: dict[str | bytes, Content], message: str = "change") -> str:
        """Writes the files (None deletes) and commits the whole work tree; the commit's name."""
        self.write(files)
        self.git("add", "--all")
        return self.commit_index(message)

    def commit_index(self, message: str = "change") -> str:
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    def branch(self, name: str) -> None:
        self.git("checkout", "--quiet", "-b", name)


def start(folder: Path, *options: str) -> Repo:
    folder.mkdir(parents=True)
    repo = Repo(folder)
    repo.git("init", "--quiet", "--initial-branch=main", *options)
    return repo


@pytest.fixture
def make_repo(tmp_path: Path) -> Callable[..., Repo]:
    return lambda name="repo", *options: start(tmp_path / name, *options)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `repo` starts from: a copy costs less than seven runs of git."""
    made = start(tmp_path_factory.mktemp("template") / "repo")
    made.commit({"app.py": "def run():\n    return 1\n", "src/util.py": "LIMIT = 3\n"}, "first")
    made.branch("pull")
    made.commit({"app.py": "def run():\n    return 2\n"}, "second")
    return made.folder


@pytest.fixture
def repo(template: Path, tmp_path: Path) -> Repo:
    """One commit on main and one more on the branch `pull`, which is checked out."""
    return Repo(Path(shutil.copytree(template, tmp_path / "repo")))
