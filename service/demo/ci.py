"""The demo's CI: a runner on this machine, words that start jobs, and what they leave on the pull request."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from ci_dispatch.report import JobView, terminal
from service.demo.play import REPO, DemoFailed, Stage
from service.forge.local_events import comment_event
from service.policy import Policy
from service.store import jobs, pulls, runners
from service.store.types import utc_now
from service.webhook_client import deliver
from service.worker.ci.shown import writing_of

_ANSWER_SECONDS, _JOBS_SECONDS, _END_SECONDS = 30.0, 120.0, 40.0


@contextmanager
def running_runner(stage: Stage, folder: Path) -> Iterator[None]:
    """`whitesmoke runner` for jobs without a GPU, until the body ends. Jobs find this Python as `$PYTHON`."""
    with stage.database.write() as connection:
        token = runners.create_token(connection, utc_now(), ttl=timedelta(minutes=10))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WHITESMOKE_")}
    prefixes = dict.fromkeys((sys.prefix, sys.base_prefix))
    readonly = [part for prefix in prefixes for part in ("--readonly", prefix)]
    with (folder / "runner.log").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "service.cli.main", "runner", "--url", stage.url, "--arch", "cpu",
                "--folder", str(folder / "runner"), "--name", "demo", "--pass", f"PYTHON={sys.executable}", *readonly,
            ],
            env={**environment, "WHITESMOKE_RUNNER_TOKEN": token},
            stdout=log,
            stderr=log,
        )  # fmt: skip
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(_END_SECONDS)


def say(stage: Stage, number: int, login: str, body: str) -> int:
    """A comment of somebody's, and its webhook; gives its id."""
    comment_id = stage.forge.as_user(login).create_comment(REPO, number, body)
    comment = next(one for one in stage.forge.comments(REPO, number) if one.id == comment_id)
    event = comment_event(stage.forge.pull(REPO, number), comment)
    deliver(stage.url, stage.secret, "issue_comment", event)
    return comment_id


def wait_for_answer(stage: Stage, number: int, comment_id: int) -> str:
    """The bot's answer to a comment, without its marker. Raises `DemoFailed`."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    while time.monotonic() < deadline:
        for comment in stage.forge.comments(REPO, number):
            marker, _, answer = comment.body.partition("\n")
            if f'"ci:comment:{comment_id}"' in marker:
                return answer
        time.sleep(0.1)
    raise DemoFailed(f"comment {comment_id} was not answered", f"see {stage.folder}/service.log")


def wait_for_jobs(stage: Stage, number: int, folder: Path) -> str:
    """The jobs' report for a terminal, once they have ended; the comment on them is written to `folder`.

    Raises `DemoFailed`.
    """
    head = stage.forge.pull(REPO, number).head_sha
    deadline = time.monotonic() + _JOBS_SECONDS
    while time.monotonic() < deadline:
        with stage.database.read() as connection:
            pull = pulls.find(connection, "local", REPO, number)
            found = jobs.of_pull(connection, pull.id, head) if pull is not None else []
            if found and all(job.outcome for job in found) and not stage.has_effects_left():
                writing = writing_of(Policy())
                shown = [
                    terminal(
                        JobView(jobs.job_of(connection, job.id), "done", jobs.result_of(connection, job.id)),
                        writing,
                    )
                    for job in found
                ]
                _write(stage, number, folder)
                return "\n".join(shown)
        time.sleep(0.1)
    raise DemoFailed("the jobs did not end", f"see {stage.folder}/runner.log and service.log")


def _write(stage: Stage, number: int, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for comment in stage.forge.comments(REPO, number):
        if comment.body.startswith("<!-- whitesmoke:ci "):
            (folder / "report.md").write_text(comment.body.partition("\n")[2], encoding="utf-8")
