"""The command line in this process, with its output and exit status, on a repository of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from service.cli.main import main
from tests.kit.checkouts import Repo

FAULTY = "def load(path, cache={}):\n    try:\n        return cache[path]\n    except:\n        return None\n"


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], data: Path) -> Run:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "WHITESMOKE_MODELS", "WHITESMOKE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WHITESMOKE_DATA", str(data))

    def run(*arguments: str | Path) -> Ran:
        monkeypatch.setattr("sys.argv", ["whitesmoke", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Ran(ended.value.code or 0, said.out, said.err)  # type: ignore[arg-type]

    return run


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """`main` with one file; branch `pull`, checked out, adds faults that detectors know."""
    repo = Repo(tmp_path / "repo")
    repo.commit({"app.py": "x = 1\n"}, "start")
    repo.git("switch", "--quiet", "-c", "pull")
    repo.commit({"load.py": FAULTY}, "Add a loader\n\nIt loads.")
    return repo
