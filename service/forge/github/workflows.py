"""Workflow runs of GitHub Actions: listed, run again, approved."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from ci_dispatch.native import WorkflowRun
from service.forge.base import ForgeError
from service.forge.github.client import Client
from service.forge.github.errors import RETRY_SECONDS

_ACTIVE = re.compile(r"already running", re.IGNORECASE)
_NOT_PERMITTED = re.compile(r"not accessible by|must have (admin|more) rights", re.IGNORECASE)


def list_runs(client: Client, repo: str, head_sha: str) -> Iterator[WorkflowRun]:
    found = client.pages(repo, "/actions/runs", {"head_sha": head_sha}, within="workflow_runs")
    return (_read(one) for one in found)


def rerun(client: Client, repo: str, run_id: int, failed_only: bool) -> None:
    _ask(client, repo, run_id, "rerun-failed-jobs" if failed_only else "rerun")


def approve(client: Client, repo: str, run_id: int) -> None:
    _ask(client, repo, run_id, "approve")


def _ask(client: Client, repo: str, run_id: int, what: str) -> None:
    try:
        client.send("POST", repo, f"/actions/runs/{run_id}/{what}")
    except ForgeError as error:
        if error.status != 403 or _NOT_PERMITTED.search(error.problem):
            raise
        # GitHub says 403 for all: that it runs, that it is not ready yet, that it never will be.
        if _ACTIVE.search(error.problem):
            raise ForgeError(error.problem, "it is active: there is nothing to do", status=409) from error
        raise ForgeError(
            error.problem, "its runs are looked at again then", status=403, retry_after=RETRY_SECONDS
        ) from error


def _read(data: Any) -> WorkflowRun:
    return WorkflowRun(
        id=data["id"],
        event=data["event"],
        head_sha=data["head_sha"],
        status=data["status"] or "queued",
        conclusion=data["conclusion"],
        created_at=datetime.fromisoformat(data["created_at"]),
        attempt=data.get("run_attempt") or 1,
        path=data["path"],
    )
