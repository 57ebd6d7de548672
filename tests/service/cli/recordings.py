"""Makes a recording of a round over a test's repository."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from reviewer.checklist import load_builtin
from reviewer.engines.recording import Recorder
from reviewer.ledger import Ledger
from reviewer.policy import ReviewPolicy
from reviewer.round import run_round
from service.cli.review import adjust
from service.local import open_local
from tests.kit.checkouts import Repo
from tests.kit.engines import ScriptedEngine


def record_round(repo: Repo, path: Path, reps: int | None = None) -> Path:
    """Records a round in which no rep finds anything."""
    now = datetime(2026, 9, 1, tzinfo=UTC)
    recorder = Recorder(ScriptedEngine(lambda request: {"findings": []}), path, now=lambda: now)
    items = [item for checklist in load_builtin() for item in checklist.items]
    local = open_local(repo.folder, "main", "HEAD", None)
    with local.checkout as checkout:
        policy = adjust(ReviewPolicy(), reps, None)
        asyncio.run(
            run_round(local.pull, checkout, policy, Ledger(), recorder, items, lambda _: None, now=now)
        )
    recorder.close()
    return path
