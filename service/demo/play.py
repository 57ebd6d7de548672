"""The demo: a sample pull request reviewed in two rounds, with the author's force push in between."""

from __future__ import annotations

import shutil
from contextlib import closing
from datetime import datetime
from pathlib import Path

from reviewer.checklist import load_builtin
from reviewer.checkout.snapshot import GitCheckout, open_range
from reviewer.diff import Diff
from reviewer.engines.base import Engine
from reviewer.errors import ReviewError
from reviewer.ledger import Ledger
from reviewer.model import PullRequest, RoundReport
from reviewer.report import inline_comments, render_review, render_round, to_json, to_sarif
from reviewer.report.inline import InlineComment
from reviewer.round import OnProgress, RoundResult, run_round
from service.demo.sample import Sample
from service.local import base_policy

ROUNDS = (1, 2)
_MARK = ".whitesmoke-demo"


def recording(round_index: int) -> Path:
    """The completions of one round."""
    return Path(__file__).with_name("recordings") / f"round-{round_index}.jsonl"


async def play_round(
    sample: Sample, ledger: Ledger, engine: Engine, now: datetime, on_progress: OnProgress
) -> tuple[RoundResult, Diff]:
    """Reviews the pull request as it now stands on the sample's branches."""
    items = [item for checklist in load_builtin() for item in checklist.items]
    with closing(open_range(sample.path, sample.base, sample.head)) as checkout:
        result = await run_round(
            _pull(sample, checkout),
            checkout,
            base_policy(sample.path, sample.base).review,
            ledger,
            engine,
            items,
            on_progress,
            now=now,
        )
        return result, checkout.diff


def write_reports(folder: Path, report: RoundReport, diff: Diff) -> None:
    """Everything that a round publishes, as files: the comment, the review with its inline comments, the data."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "round.md": render_round(report),
        "review.md": render_review(report, diff),
        "inline.md": "\n".join(_as_text(comment) for comment in inline_comments(report, diff)),
        "report.json": to_json(report),
        "report.sarif": to_sarif(report),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


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


def _pull(sample: Sample, checkout: GitCheckout) -> PullRequest:
    return PullRequest(
        repo="sample/quire",
        number=sample.pull.number,
        base_sha=checkout.base_sha,
        head_sha=checkout.head_sha,
        title=sample.pull.title,
        body=sample.pull.body,
        author=sample.pull.author,
    )


def _as_text(comment: InlineComment) -> str:
    place = f"{comment.path}:{comment.line}" if comment.line else comment.path
    return f"### {place}\n\n{comment.body}\n"
