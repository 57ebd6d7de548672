"""Snippets, and a short way to run detectors over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import yaml

from reviewer.checklist import Item, load_builtin
from reviewer.detectors.run import DetectorRun, detect

CASES = Path(__file__).parent / "cases"


class EveryLine:
    """Contains every line number: the whole file counts as changed."""

    def __contains__(self, line: object) -> bool:
        return True


@dataclass(frozen=True)
class Case:
    """A snippet that must fire on the lines marked `<-`, and one that must not fire at all."""

    item: str
    path: str
    fires: str
    quiet: str

    @property
    def marked(self) -> set[int]:
        return {number for number, line in enumerate(self.fires.split("\n"), 1) if "<-" in line}


@cache
def items_with_detectors() -> dict[str, Item]:
    return {
        item.id: item for checklist in load_builtin() for item in checklist.items if item.detector is not None
    }


@cache
def read_cases() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for file in sorted(CASES.glob("*.yaml")):
        text = file.read_text().replace("@@", "").replace("{RLO}", "\u202e")
        for item, fields in yaml.safe_load(text).items():
            assert item not in cases
            cases[item] = Case(item, **fields)
    return cases


Detect = Callable[..., DetectorRun]


@pytest.fixture(scope="session")
def all_items() -> dict[str, Item]:
    return items_with_detectors()


@pytest.fixture(scope="session")
def run_detectors() -> Detect:
    """detect() over texts, every line changed, with the items of the given ids (all where None)."""

    def run(
        files: Mapping[str, str | bytes], ids: Iterable[str] | None = None, **options: object
    ) -> DetectorRun:
        known = items_with_detectors()
        chosen = [known[name] for name in ids] if ids is not None else list(known.values())
        contents = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
        changed = options.pop("changed", {path: EveryLine() for path in contents})
        return detect(contents, changed, chosen, **options)  # type: ignore[arg-type]

    return run


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `case` runs once for every case."""
    if "case" in metafunc.fixturenames:
        cases = read_cases()
        metafunc.parametrize("case", cases.values(), ids=cases.keys())


@pytest.fixture(scope="session")
def all_cases() -> dict[str, Case]:
    return read_cases()


@pytest.fixture(scope="session")
def run_over_cases(run_detectors: Detect) -> dict[str, DetectorRun]:
    """All snippets that must fire in one run and all that must not in another, each in a folder of its own."""
    return {
        side: run_detectors(
            {f"{case.item}/{case.path}": text for case in read_cases().values() for text in [side_of(case)]}
        )
        for side, side_of in {"fires": lambda case: case.fires, "quiet": lambda case: case.quiet}.items()
    }
