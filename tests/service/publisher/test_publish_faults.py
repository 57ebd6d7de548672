"""Whatever call of a publication fails, before or after it took effect, publishing again gives what one clean run gives."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reviewer.model import Outcome
from service.forge.base import ForgeError
from service.publisher.effects import Effect
from service.publisher.publication import Posting
from tests.kit.checkouts import Repo
from tests.service.publisher.desk import (
    ALL,
    FIXED,
    MISSPELT,
    NO_ANSWER,
    PATH,
    Desk,
    FlakyForge,
    Killed,
    make_repo,
    open_desk,
    snapshot,
)

POSTING = Posting(
    blocked_event="REQUEST_CHANGES",
    labels={Outcome.BLOCKED: "blocked", Outcome.LGTM: "lgtm"},
)


WITHOUT_RETURN = "def write(page, slot, value):\n    page[slot] = value\n    return None\n"


class Scene:
    """The second round of a pull request, about to be published; every `stage` is the same moment anew.

    The first finding is fixed, two are new: the publication edits, creates, supersedes, dismisses, resolves and
    labels.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stages = 0
        self.repo: Repo = make_repo(folder / "repo")
        with open_desk(self.repo, folder / "first.db") as desk:
            desk.publish(desk.review(*ALL), POSTING)
            self.outbox = dict(desk.outbox)
            desk.push({PATH: WITHOUT_RETURN, "notes.txt": "alocator"})
            self.effects: tuple[Effect, ...] = desk.effects(
                desk.review(NO_ANSWER, MISSPELT, recheck=FIXED), POSTING
            )

    def play(self, act: Callable[[Desk], None]) -> list[object]:
        self._stages += 1
        path = self._folder / f"stage-{self._stages}.db"
        shutil.copyfile(self._folder / "first.db", path)
        with open_desk(self.repo, path) as desk:
            desk.outbox = dict(self.outbox)
            act(desk)
            return snapshot(desk)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("scene"))


def accepts(comment: Any) -> bool:
    return False


def refuses_lines(comment: Any) -> bool:
    return comment.line is not None


def refuses_all(comment: Any) -> bool:
    return True


def hiccup() -> ForgeError:
    return ForgeError("the forge answers 502", "it is tried again", status=502, retry_after=1)


@pytest.mark.parametrize(
    ("refuses", "fault"),
    [(accepts, Killed), (refuses_lines, Killed), (refuses_all, hiccup)],
)
@pytest.mark.parametrize("position", ["before", "after"])
def test_a_fault_at_any_call_loses_nothing_and_doubles_nothing(
    scene: Scene, refuses: Callable[[Any], bool], position: str, fault: Callable[[], BaseException]
) -> None:
    calls: list[str] = []

    def clean(desk: Desk) -> None:
        forge = FlakyForge(desk.forge, refuses=refuses)
        desk.send(scene.effects, forge)
        calls.extend(forge.calls)

    wanted = scene.play(clean)
    assert Counter(one[0] for one in wanted if isinstance(one, tuple) and one) == Counter(
        comment=1, review=2, inline=2 if refuses is refuses_all else 4, lgtm=1
    )
    for number, name in enumerate(calls, start=1):

        def faulty(desk: Desk, number: int = number) -> None:
            with pytest.raises((Killed, ForgeError)):
                desk.send(
                    scene.effects,
                    FlakyForge(desk.forge, **{f"fail_{position}": number}, fault=fault, refuses=refuses),
                )
            desk.send(scene.effects, FlakyForge(desk.forge, refuses=refuses))

        assert scene.play(faulty) == wanted, f"{fault.__name__} {position} call {number}, {name}"
