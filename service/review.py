"""A round on a local change, from the repository to the ledger on disk."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from reviewer.checklist import load_items
from reviewer.policy import ReviewPolicy
from reviewer.round import OnProgress, RoundResult, run_round
from service.engines import EngineName, open_engine
from service.ledger_file import ledger_path, load, locked, save
from service.local import identify, open_local, read_base


async def review_local(
    repo: Path,
    base: str,
    head: str,
    patch: Path | None,
    policy: ReviewPolicy,
    *,
    engine: EngineName,
    models: Sequence[str],
    recording: Path | None,
    full: bool,
    data: Path,
    on_progress: OnProgress,
) -> RoundResult:
    """Runs the next round and remembers it. A round that fails leaves the ledger as it was."""
    items = load_items(policy.checklists, partial(read_base, repo, base))
    local = open_local(repo, base, head, patch)
    path = ledger_path(data, *identify(repo, base, head, patch))
    with local.checkout as checkout, locked(path):
        ledger = load(path)
        async with open_engine(engine, policy, models, recording) as opened:
            result = await run_round(
                local.pull,
                checkout,
                policy,
                ledger,
                opened.engine,
                items,
                on_progress,
                now=opened.now,
                full=full,
            )
        if not result.reprinted:
            save(path, result.ledger)
    return result
