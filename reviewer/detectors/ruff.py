"""Ruff, asked once for all files and rules."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from reviewer.detectors.analysis import Analysis, Hit, run_module

_ALONE = ("--isolated", "--no-cache", "--ignore-noqa", "--exit-zero")
_ANY_SYNTAX = ("--target-version", "py314")


def analyse(folder: Path, files: Sequence[str], rules: Collection[str]) -> Analysis:
    """Neither the project's settings nor its noqa comments count, and the syntax of any Python version is accepted."""
    select = ("--output-format", "json", "--select", ",".join(sorted(rules)))
    output = run_module(["ruff", "check", *_ALONE, *_ANY_SYNTAX, *select, *files], folder)
    root = folder.resolve()
    analysis = Analysis()
    for entry in json.loads(output):
        file = Path(entry["filename"]).relative_to(root).as_posix()
        line, end = entry["location"]["row"], entry["end_location"]["row"]
        if entry["code"] in rules:
            analysis.hits.append(Hit(file, line, max(line, end), entry["code"]))
        else:
            analysis.unread.setdefault(file, f"line {line}: {entry['message']}")
    return analysis
