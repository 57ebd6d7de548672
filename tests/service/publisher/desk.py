"""A pull request on the local forge, reviewed for real by scripted reviewers, and publishing with faults."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from reviewer.ledger import Ledger
from reviewer.model import RoundReport
from service.forge.base import ForgeError, PullState
from service.forge.local import LocalForge
from service.publisher.deliver import deliver
from service.publisher.effects import Effect, from_payload, to_payload
from service.publisher.publication import Posting, effects_of
from service.store.database import Database
from service.store.schema import metadata
from tests.kit.checkouts import Repo
from tests.kit.rounds import answers, finding, review

REPO = "acme/cache"
PATH = "cache/pages.py"

_LINES = [f"def read_{number}(page):\n    return page[{number}]\n\n\n" for number in range(1, 13)]
_WRITE = "def write(page, slot, value):\n    page[slot] = value\n    return slot\n"
FILES = {PATH: _WRITE + "\n\n" + "".join(_LINES), "docs/guide.md": "Pages hold slots.\n" * 3}
PLAIN = Posting()
FAULTY = _WRITE.replace("page[slot] = value", "page[slot + 1] = value")

OFF_BY_ONE = finding(path=PATH)
FAR_AWAY = finding(
    "read_9 reads a slot that write no longer fills",
    path=PATH, line_start=39, line_end=39, severity="P2", quoted_code="return page[9]", suggestion="",
)  # fmt: skip
IN_THE_GUIDE = finding(
    "The guide still promises the old slot",
    path="docs/guide.md", line_start=2, line_end=2, severity="P3", quoted_code="Pages hold slots.",
    suggestion="",
)  # fmt: skip
NO_ANSWER = finding(
    "Callers of write now get None",
    path=PATH, line_start=3, line_end=3, severity="P2", quoted_code="return None", suggestion="",
    body="The scheduler adds what it is given to a list of integers.",
)  # fmt: skip
MISSPELT = finding(
    "The note misspells the allocator's name",
    path="notes.txt", line_start=1, line_end=1, severity="P3", quoted_code="alocator", suggestion="",
    body="Whoever searches for allocator will not find this note.",
)  # fmt: skip
FIXED = {"answer": "fixed", "evidence": "line 2"}
ALL = (OFF_BY_ONE, FAR_AWAY, IN_THE_GUIDE)


class Killed(BaseException):
    """Stands for SIGKILL: no handler of ours may live through it."""


class FlakyForge:
    """A forge whose `n`th call (from 1) fails: before it did anything, or after all was done, with no answer.

    `refuses` makes it answer 422 to inline comments.
    """

    def __init__(
        self,
        forge: LocalForge,
        *,
        fail_before: int = 0,
        fail_after: int = 0,
        fault: Callable[[], BaseException] = Killed,
        refuses: Callable[[Any], bool] = lambda comment: False,
    ) -> None:
        self._forge = forge
        self._before, self._after = fail_before, fail_after
        self._fault = fault
        self._refuses = refuses
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            if len(self.calls) == self._before:
                raise self._fault()
            try:
                return self._answer(name, *arguments)
            finally:
                # A refusal is an answer too, and can be lost on its way.
                if len(self.calls) == self._after:
                    raise self._fault()

        return call

    def _answer(self, name: str, *arguments: Any) -> Any:
        if name == "create_review" and any(map(self._refuses, arguments[-1])):
            raise ForgeError("one of the places", "", status=422)
        if name == "create_review_comment" and self._refuses(arguments[-1]):
            raise ForgeError("the place", "", status=422)
        answer = getattr(self._forge, name)(*arguments)
        return iter(list(answer)) if isinstance(answer, Iterator) else answer

    @property
    def writes(self) -> list[str]:
        """The calls that change something, in order."""
        verbs = ("create", "edit", "update", "dismiss", "resolve", "set", "react")
        return [name for name in self.calls if name.startswith(verbs)]


@dataclass
class Desk:
    """One pull request and what the service would remember of it."""

    forge: LocalForge
    repo: Repo
    number: int
    ledger: Ledger = field(default_factory=Ledger)
    outbox: dict[str, str | None] = field(default_factory=dict)

    @property
    def pull(self) -> PullState:
        return self.forge.pull(REPO, self.number)

    def push(self, files: dict[str, str | None]) -> str:
        self.repo.git("checkout", "--quiet", "topic")
        return self.repo.commit(files)

    def review(self, *found: dict[str, Any], recheck: Any = None, **policy: Any) -> RoundReport:
        """A round of five reviewers who all find the same."""
        engine = answers({"findings": list(found)}, recheck=recheck)
        with self.forge.checkout(self.pull) as checkout:
            result = review(engine, checkout=checkout, ledger=self.ledger, **policy)
        self.ledger = result.ledger
        return result.report

    def effects(self, report: RoundReport, posting: Posting = PLAIN) -> tuple[Effect, ...]:
        """As they come back out of the outbox."""
        with self.forge.checkout(self.pull) as checkout:
            effects = effects_of(report, checkout.diff, self.pull, posting)
        return tuple(from_payload(to_payload(effect)) for effect in effects)

    def send(self, effects: tuple[Effect, ...], forge: Any = None) -> None:
        """Delivers and notes, one by one; what fails leaves no note."""
        for effect in effects:
            found = deliver(effect, forge or self.forge, self.outbox.get(effect.key))
            self.outbox[effect.key] = found

    def publish(self, report: RoundReport, posting: Posting = PLAIN, forge: Any = None) -> None:
        self.send(self.effects(report, posting), forge)

    def comments(self) -> list[str]:
        return [one.body for one in self.forge.comments(REPO, self.number)]

    def reviews(self) -> list[Any]:
        return list(self.forge.reviews(REPO, self.number))

    def inline(self) -> list[Any]:
        return [one for one in self.forge.conversation(REPO, self.number) if one.kind == "inline"]


_SECONDS = itertools.count()


def clock() -> datetime:
    """A second later at each look."""
    return datetime(2026, 9, 1, tzinfo=UTC) + timedelta(seconds=next(_SECONDS))


def snapshot(desk: Desk) -> list[object]:
    """All that a reader of the pull request sees, without ids and times."""
    said = [
        (one.kind, one.author.login, one.state, one.place, one.body)
        for one in desk.forge.conversation(REPO, desk.number)
    ]
    checks = desk.forge.checks(REPO, desk.pull.head_sha)
    return [*sorted(said), *checks, desk.pull.labels]


def make_repo(folder: Path) -> Repo:
    """`main`, and `topic` one commit ahead of it."""
    repo = Repo(folder)
    repo.commit(FILES)
    repo.git("checkout", "--quiet", "-b", "topic")
    repo.commit({PATH: FILES[PATH].replace(_WRITE, FAULTY)}, "Batch the writes")
    return repo


@contextmanager
def open_desk(repo: Repo, path: Path) -> Iterator[Desk]:
    """A forge whose database is `path`, made where it is missing, with ada's pull request of `topic` on it."""
    database = Database(f"sqlite:///{path}")
    # What survives a power cut is the store's matter, and syncing is slow.
    sa.event.listen(database.engine, "connect", lambda one, _: one.execute("PRAGMA synchronous=OFF"))
    try:
        with database.write() as connection:
            metadata.create_all(connection)
        forge = LocalForge(database, {REPO: repo.folder}, owner="olga", clock=clock)
        yield Desk(forge, repo, forge.as_user("ada").open_pull(REPO, "topic", "main").number)
    finally:
        database.close()
