"""Where a worker works: the database, the forge, the alarm, and what it may ask a model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from reviewer.checklist import Item, ReadFile
from reviewer.policy import ReviewPolicy
from service.engines import Opened
from service.forge.base import Forge
from service.store.ci_rows import CI_PROGRESS, CI_RESULT
from service.store.database import Database
from service.store.outbox import Outbox
from service.store.types import utc_now
from service.store.work import WorkQueue

EngineOpener = Callable[[ReviewPolicy], AbstractAsyncContextManager[Opened]]
ItemsLoader = Callable[[ReviewPolicy, ReadFile], list[Item]]

REVIEW, COMMAND, RECHECK, REPUBLISH = "review", "command", "recheck", "republish"
CI_GATE = "ci_gate"
QUICK = (COMMAND, RECHECK, REPUBLISH, CI_PROGRESS)
"""Kinds of work that take moments; the others have workers of their own, so that nothing waits behind them."""
CI = (CI_GATE, CI_RESULT)

QUICK_LANE, REVIEW_LANE, CI_LANE = "quick", "review", "ci"
LANES = (QUICK_LANE, REVIEW_LANE, CI_LANE)
"""What workers are woken for: all that takes moments, reviews, and CI's starts and verdicts."""


@dataclass(frozen=True, slots=True)
class Station:
    """`owner` names this worker in leases; `ring` wakes others and is told the lane that has work. `data` is the folder of everything that is kept, what
    runners fetch and leave among it."""

    database: Database
    forge: Forge
    forge_name: str
    open_engine: EngineOpener
    load_items: ItemsLoader
    owner: str
    ring: Callable[[str], object] = lambda lane: None
    lease_seconds: float = 60.0
    public_url: str = ""
    web_url: str = ""
    app_id: int | None = None
    data: Path = Path("data")
    clock: Callable[[], datetime] = utc_now
    work: WorkQueue = field(init=False)
    outbox: Outbox = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "work", WorkQueue(self.clock))
        object.__setattr__(self, "outbox", Outbox(self.clock))
