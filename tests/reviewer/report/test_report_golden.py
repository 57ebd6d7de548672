"""Whole artifacts, compared with what is kept under golden/.

After a wanted change: `UPDATE_GOLDEN=1 pytest tests/reviewer/report/test_report_golden.py`, then read the diff.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from reviewer.diff import Diff
from reviewer.model import RoundReport
from reviewer.report import inline_comments, render_review, render_round, render_summary, to_sarif

GOLDEN = Path(__file__).parent / "golden"
BLOB_URL = "https://github.com/acme/cache/blob"

Render = Callable[[RoundReport, Diff], str]


def _inline(report: RoundReport, diff: Diff) -> str:
    return "\n\n---\n\n".join(
        f"{one.path} {one.start_side}:{one.start_line}..{one.side}:{one.line}\n\n{one.body}"
        for one in inline_comments(report, diff)
    )


RENDER: dict[str, Render] = {
    "round.md": lambda report, diff: render_round(report, blob_url=BLOB_URL),
    "review.md": lambda report, diff: render_review(report, diff, blob_url=BLOB_URL),
    "ready.md": lambda report, diff: render_review(report, diff, phrase="lgtm ready to ci"),
    "inline.md": _inline,
    "summary.txt": lambda report, diff: render_summary(report),
    "sarif.json": lambda report, diff: to_sarif(report),
}


@pytest.mark.parametrize(
    "name",
    [
        "blocked.round.md",
        "blocked.review.md",
        "blocked.inline.md",
        "blocked.summary.txt",
        "blocked.sarif.json",
        "blocked_zh.round.md",
        "blocked_zh.review.md",
        "blocked_zh.inline.md",
        "fixed.round.md",
        "fixed.ready.md",
        "inconclusive.round.md",
        "detectors.round.md",
        "detectors.review.md",
    ],
)
def test_the_artifact_is_as_kept(name: str, reports: dict[str, RoundReport], diff: Diff) -> None:
    case, _, kind = name.partition(".")
    text = RENDER[kind](reports[case], diff).rstrip("\n") + "\n"
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, "utf-8")
    assert path.read_text("utf-8") == text
