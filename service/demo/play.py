"""The demo: a service is started, a sample pull request is opened on its local forge, reviewed, fixed by a force
push and reviewed again. What people see is read back from the forge."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from reviewer.errors import ReviewError
from reviewer.model import RoundReport
from reviewer.report import to_json, to_sarif
from service.demo.sample import Sample
from service.forge.local import LocalForge
from service.forge.local_events import PullAction, pull_event
from service.store import pulls, rounds
from service.store.database import Database
from service.store.lease import OPEN
from service.store.outbox import Outbox
from service.supervisor import free_port
from service.webhook_client import deliver

ROUNDS = (1, 2)
RECORDING = Path(__file__).with_name("recording.jsonl")
"""The completions of both rounds."""

REPO = "local/repository"
_MARK = ".whitesmoke-demo"
_READY_SECONDS, _ROUND_SECONDS, _END_SECONDS = 30.0, 60.0, 40.0


class DemoFailed(ReviewError):
    """The demo's service did not do its part."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The running service, and the forge and database that it works with."""

    folder: Path
    url: str
    secret: bytes
    database: Database
    forge: LocalForge

    def happen(self, action: PullAction, number: int) -> None:
        """Sends the signed webhook for what happened to the pull request."""
        state = self.forge.pull(REPO, number)
        deliver(self.url, self.secret, "pull_request", pull_event(action, state, state.author))

    def wait_for_round(self, number: int, index: int) -> RoundReport:
        """The report of a round once all that it says stands on the forge. Raises `DemoFailed`."""
        head = self.forge.pull(REPO, number).head_sha
        deadline = time.monotonic() + _ROUND_SECONDS
        while time.monotonic() < deadline:
            completed = any(check.status == "completed" for check in self.forge.checks(REPO, head))
            # A check may be completed before a review beside it stands: several workers bring effects about.
            if completed and not self.has_effects_left():
                return self._report(number, index)
            time.sleep(0.1)
        raise DemoFailed(
            f"round {index} did not end within {_ROUND_SECONDS:g} s", f"see {self.folder}/service.log"
        )

    def write_reports(self, folder: Path, number: int, report: RoundReport) -> None:
        """What the round left on the pull request, and its data, as files."""
        folder.mkdir(parents=True, exist_ok=True)
        said = self.forge.conversation(REPO, number)
        texts = {
            "round.md": [one.body for one in said if one.kind == "comment"][-1],
            "review.md": [one.body for one in said if one.kind == "review"][-1],
            "inline.md": "\n\n".join(
                f"### {one.place}\n\n{one.body}" for one in said if one.kind == "inline"
            ),
            "report.json": to_json(report),
            "report.sarif": to_sarif(report),
        }
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")

    def has_effects_left(self) -> bool:
        """Whether something is still to be posted."""
        with self.database.read() as connection:
            return any(state in OPEN for _, state in Outbox().counts(connection))

    def _report(self, number: int, index: int) -> RoundReport:
        with self.database.read() as connection:
            pull = pulls.find(connection, "local", REPO, number)
            found = rounds.of_pull(connection, pull.id, len(ROUNDS)) if pull is not None else []
            for one in found:
                report = rounds.report(connection, one.id)
                if one.round_index == index and report is not None:
                    return report
        raise DemoFailed(f"round {index} left no report", f"see {self.folder}/service.log")


def open_pull(stage: Stage, sample: Sample) -> int:
    """Opens the sample's pull request as its author; gives its number."""
    author = stage.forge.as_user(sample.pull.author)
    state = author.open_pull(REPO, sample.head, sample.base, title=sample.pull.title, body=sample.pull.body)
    return state.number


def prepare(folder: Path) -> None:
    """Empties the demo's folder. Raises `ReviewError` for a folder that an earlier demo did not make."""
    try:
        if folder.exists() and any(folder.iterdir()):
            if not (folder / _MARK).exists():
                raise ReviewError(f"{folder} is not empty", "name a new folder with --out")
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MARK).touch()
    except OSError as error:
        raise ReviewError(
            f"cannot use {folder}: {error.strerror}", "name another folder with --out"
        ) from error


@contextmanager
def running_service(folder: Path, repository: Path) -> Iterator[Stage]:
    """`whitesmoke serve --embedded` on a free port, with its data in `folder`, until the body ends."""
    secret, port = secrets.token_hex(16), free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WHITESMOKE_")}
    environment |= {
        "WHITESMOKE_DATA": str(folder / "data"),
        "WHITESMOKE_PORT": str(port),
        "WHITESMOKE_FORGE": "local",
        "WHITESMOKE_LOCAL_REPOSITORY": str(repository),
        "WHITESMOKE_WEBHOOK_SECRET": secret,
        "WHITESMOKE_ENGINE": "replay",
        "WHITESMOKE_RECORDING": str(RECORDING),
    }
    with (folder / "service.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "service.cli.main", "serve", "--embedded"],
            env=environment,
            stdout=log,
            stderr=log,
        )
        database: Database | None = None
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(process, url, folder)
            database = Database(f"sqlite:///{(folder / 'data' / 'whitesmoke.db').absolute()}")
            forge = LocalForge(database, {REPO: repository}, owner=getpass.getuser())
            yield Stage(folder, url, secret.encode(), database, forge)
        finally:
            if database is not None:
                database.close()
            process.send_signal(signal.SIGTERM)
            process.wait(_END_SECONDS)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, folder: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise DemoFailed("the service did not start", f"see {folder}/service.log")
