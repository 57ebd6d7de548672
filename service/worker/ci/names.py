"""What the checks of jobs are called."""

from __future__ import annotations

_PREFIX = "whitesmoke/ci/"


def check_of(job: str) -> str:
    """The name of a job's check."""
    return f"{_PREFIX}{job}"


def job_of(check: str) -> str | None:
    """The job that a check is of; None for another check of ours."""
    return check.removeprefix(_PREFIX) if check.startswith(_PREFIX) else None
