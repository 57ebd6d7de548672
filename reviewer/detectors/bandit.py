"""Bandit, asked once for all files and tests."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath

from reviewer.detectors.analysis import Analysis, Hit, run_module

_ALONE = ("--quiet", "--exit-zero", "--ignore-nosec", "--format", "json")
_LIKELY = ("--severity-level", "medium", "--confidence-level", "medium")


def analyse(folder: Path, files: Sequence[str], tests: Collection[str]) -> Analysis:
    """nosec comments do not count, nor does what bandit itself holds unlikely or harmless."""
    output = run_module(["bandit", *_ALONE, *_LIKELY, "--tests", ",".join(sorted(tests)), *files], folder)
    answer = json.loads(output)
    return Analysis(
        hits=[
            Hit(_name(hit["filename"]), hit["line_number"], max(hit["line_range"]), hit["test_id"])
            for hit in answer["results"]
        ],
        unread={_name(error["filename"]): error["reason"] for error in answer["errors"]},
    )


def _name(reported: str) -> str:
    """Bandit writes `./name`."""
    return PurePosixPath(reported).as_posix()
