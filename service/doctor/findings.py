"""What a check says, and how one is run: within a time, whatever it meets, and without a secret in its words."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from reviewer.errors import ReviewError
from reviewer.redact import Redactor

Level = Literal["ok", "warning", "problem"]
Seen = tuple[Level, str, str]
"""How it stands, what was seen, and what to do."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`part` is what was looked at; `remedy` says what to do, "" where that is nothing."""

    part: str
    level: Level
    said: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A `ReviewError` that `look` raises is a problem; what it yielded before still counts."""

    part: str
    look: Callable[[], Iterable[Seen]]
    seconds: float = 10.0


def run_checks(checks: Iterable[Check], redact: Redactor) -> Iterator[Finding]:
    """The findings of each check, as they come."""
    for check in checks:
        for level, said, remedy in _within_time(check):
            yield Finding(check.part, level, redact(_line(said)), redact(_line(remedy)))


def _within_time(check: Check) -> Iterator[Seen]:
    """A check that hangs is left behind in its thread, which ends with the process."""
    answers: queue.SimpleQueue[list[Seen]] = queue.SimpleQueue()
    threading.Thread(target=lambda: answers.put(_look(check)), daemon=True).start()
    try:
        yield from answers.get(timeout=check.seconds)
    except queue.Empty:
        yield "problem", f"no answer within {check.seconds:g} s", "see that it is running and reachable"


def _look(check: Check) -> list[Seen]:
    seen: list[Seen] = []
    try:
        # One by one: what was seen before something failed counts.
        for one in check.look():
            seen.append(one)  # noqa: PERF402
    except ReviewError as error:
        seen.append(("problem", error.problem, error.remedy))
    except Exception as error:  # noqa: BLE001 - a check must not keep the others from being run
        seen.append(("problem", f"unexpected {type(error).__name__}: {error}", "report this"))
    return seen


def _line(text: str) -> str:
    return " ".join(text.split())
