"""The check on a head: a check run for an App, a commit status for a token, which may not make check runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

from reviewer.report.check import ANNOTATIONS_PER_REQUEST, Annotation
from service.forge.base import Check, Conclusion
from service.forge.github.client import GONE, Client

_DESCRIPTION = 140
"""Most characters of a commit status."""

# A status knows no more. What has no verdict is an error, never a success.
_STATES: dict[Conclusion | None, str] = {
    None: "pending",
    "success": "success",
    "neutral": "success",
    "skipped": "success",
    "failure": "failure",
    "timed_out": "error",
    "cancelled": "error",
    "action_required": "error",
}


class Checks(Protocol):
    def find(self, repo: str, head_sha: str, name: str) -> int | None: ...

    def create(self, repo: str, check: Check) -> int: ...

    def update(self, repo: str, check_id: int, check: Check) -> bool: ...


class CheckRuns:
    def __init__(self, client: Client, app_id: int) -> None:
        self._client = client
        self._app_id = app_id

    def find(self, repo: str, head_sha: str, name: str) -> int | None:
        wanted = {"check_name": name, "app_id": self._app_id, "filter": "all"}
        found = self._client.pages(repo, f"/commits/{head_sha}/check-runs", wanted, within="check_runs")
        return max((run["id"] for run in found), default=None)

    def create(self, repo: str, check: Check) -> int:
        first, *others = _batches(check.annotations)
        body = {"name": check.name, "head_sha": check.head_sha, **_shown(check, first)}
        check_id: int = self._client.send("POST", repo, "/check-runs", body)["id"]
        self._add(repo, check_id, check, others)
        return check_id

    def update(self, repo: str, check_id: int, check: Check) -> bool:
        path = f"/check-runs/{check_id}"
        missing = check.annotations
        if missing:
            # What is sent is added to what is there, and nothing can be taken away.
            if self._client.get(repo, path, absent=GONE) is None:
                return False
            there = {_facts(one) for one in self._client.pages(repo, f"{path}/annotations")}
            missing = tuple(one for one in missing if _facts(_annotation(one)) not in there)
        first, *others = _batches(missing)
        if self._client.send("PATCH", repo, path, _shown(check, first), absent=GONE) is None:
            return False
        self._add(repo, check_id, check, others)
        return True

    def _add(self, repo: str, check_id: int, check: Check, batches: list[tuple[Annotation, ...]]) -> None:
        for batch in batches:
            self._client.send("PATCH", repo, f"/check-runs/{check_id}", {"output": _output(check, batch)})


class Statuses:
    """The newest status of a name counts, so that updating is creating."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def find(self, repo: str, head_sha: str, name: str) -> None:
        return None

    def create(self, repo: str, check: Check) -> int:
        body = {
            "state": _STATES[check.conclusion],
            "context": check.name,
            "description": check.title[:_DESCRIPTION],
            **({"target_url": check.details_url} if check.details_url else {}),
        }
        made: int = self._client.send("POST", repo, f"/statuses/{check.head_sha}", body)["id"]
        return made

    def update(self, repo: str, check_id: int, check: Check) -> bool:
        self.create(repo, check)
        return True


def suite_created(client: Client, repo: str, head_sha: str, branch: str) -> datetime | None:
    """When the first check suite of a commit was made, of those that are of this branch, or of none as a fork's are."""
    found = client.pages(repo, f"/commits/{head_sha}/check-suites", within="check_suites")
    times = [
        datetime.fromisoformat(one["created_at"])
        for one in found
        if one["created_at"] and one["head_branch"] in (None, branch)
    ]
    return min(times, default=None)


def _batches(annotations: tuple[Annotation, ...]) -> list[tuple[Annotation, ...]]:
    """At least one, be it empty."""
    starts = range(0, max(1, len(annotations)), ANNOTATIONS_PER_REQUEST)
    return [annotations[start : start + ANNOTATIONS_PER_REQUEST] for start in starts]


def _shown(check: Check, annotations: tuple[Annotation, ...]) -> dict[str, Any]:
    return {
        "status": check.status,
        **({"conclusion": check.conclusion} if check.conclusion else {}),
        **({"details_url": check.details_url} if check.details_url else {}),
        "output": _output(check, annotations),
        "actions": [
            {"label": one.label, "description": one.description, "identifier": one.identifier}
            for one in check.buttons
        ],
    }


def _output(check: Check, annotations: tuple[Annotation, ...]) -> dict[str, Any]:
    return {
        "title": check.title or check.name,
        "summary": check.summary,
        "text": check.text,
        "annotations": [_annotation(one) for one in annotations],
    }


def _annotation(one: Annotation) -> dict[str, Any]:
    return {
        "path": one.path,
        "start_line": one.start_line,
        "end_line": one.end_line,
        "annotation_level": one.annotation_level,
        "title": one.title,
        "message": one.message,
    }


def _facts(one: dict[str, Any]) -> tuple[Any, ...]:
    """What tells an annotation from others. GitHub drops blanks at a message's ends."""
    places = (one["path"], one["start_line"], one["end_line"], one["annotation_level"])
    return (*places, (one["title"] or "").strip(), (one["message"] or "").strip())
