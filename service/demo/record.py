"""Makes the demo's recording anew from answers.yaml: `python -m service.demo.record`.

Run it after changing the sample, its answers, a prompt or a checklist; a test says when that is due.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from reviewer.checklist import load_builtin
from reviewer.checkout.snapshot import open_range
from reviewer.engines.recording import Recorder
from reviewer.ledger import Ledger
from reviewer.model import PullRequest, RoundReport
from reviewer.round import run_round
from service.demo.author import Author
from service.demo.play import RECORDING, ROUNDS
from service.demo.sample import Sample, build, push_fix
from service.local import base_policy

_NOTE = "Written by hand for the sample in service/demo/sample; no model was asked, and token counts are estimates."
_TIME = datetime(2026, 9, 1, 3, 57, tzinfo=UTC)


async def record(path: Path) -> tuple[RoundReport, ...]:
    """Plays both rounds with the author's words, writes their completions to `path`, and returns their reports."""
    path.unlink(missing_ok=True)
    reports = []
    with tempfile.TemporaryDirectory(prefix="whitesmoke-") as folder:
        sample = build(Path(folder, "quire"))
        ledger = Ledger()
        for index in ROUNDS:
            if index > 1:
                push_fix(sample.path)
            recorder = Recorder(Author(index), path, note=_NOTE, now=lambda: _TIME)
            with closing(recorder):
                ledger = await _round(sample, ledger, recorder)
            assert ledger.last is not None
            reports.append(ledger.last)
    return tuple(reports)


async def _round(sample: Sample, ledger: Ledger, recorder: Recorder) -> Ledger:
    items = [item for checklist in load_builtin() for item in checklist.items]
    policy = base_policy(sample.path, sample.base).review
    with closing(open_range(sample.path, sample.base, sample.head)) as checkout:
        pull = PullRequest(
            repo="local/quire",
            number=sample.pull.number,
            base_sha=checkout.base_sha,
            head_sha=checkout.head_sha,
            title=sample.pull.title,
            body=sample.pull.body,
            author=sample.pull.author,
        )
        result = await run_round(pull, checkout, policy, ledger, recorder, items, lambda _: None, now=_TIME)
    return result.ledger


if __name__ == "__main__":
    asyncio.run(record(RECORDING))
