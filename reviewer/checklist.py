"""Checklists: what a review checks, read from YAML files.

A file names a checklist and its sections; a section lists items. An item may be bound to a detector, a
deterministic analyser that can show by itself that the item fails.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from importlib import resources
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from reviewer import yamlfile
from reviewer.errors import ConfigError
from reviewer.globs import check_glob, matches
from reviewer.model import Frozen, Language, Severity

BUILTIN = ("general", "python", "cuda_triton", "cuda_graphs", "cpp")

_T = TypeVar("_T")


def _not_empty(entries: tuple[_T, ...]) -> tuple[_T, ...]:
    if not entries:
        raise ValueError("expected at least one entry, found none; add one")
    return entries


# Not min_length: pydantic counts only valid entries, and so would blame the list for one bad entry.
Some: TypeAlias = Annotated[tuple[_T, ...], AfterValidator(_not_empty)]
ReadFile = Callable[[str], bytes | None]
"""A file of the base branch by its path, or None where there is none."""

Phrase = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
Glob = Annotated[str, AfterValidator(check_glob)]
ItemId = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*\.[a-z0-9]+(-[a-z0-9]+)*$")]


class Text(Frozen):
    """The same words in both languages of a report."""

    en: Phrase
    zh: Phrase

    def say(self, language: Language) -> str:
        return self.zh if language == "zh" else self.en


class _Detector(Frozen):
    """What a detector's finding says: its title, why it matters, and how to mend it."""

    title: Text
    why: Text
    fix: Text


class RuffDetector(_Detector):
    kind: Literal["ruff"]
    rules: Some[Annotated[str, StringConstraints(pattern=r"^[A-Z]+[0-9]+$")]]


class BanditDetector(_Detector):
    kind: Literal["bandit"]
    rules: Some[Annotated[str, StringConstraints(pattern=r"^B[0-9]{3}$")]]


class AstGrepRule(Frozen):
    """One rule in ast-grep's own language; CUDA sources are read as C++."""

    language: Literal["python", "c", "cpp"]
    rule: dict[str, Any] = Field(min_length=1)
    constraints: dict[str, Any] = {}


class AstGrepDetector(_Detector):
    kind: Literal["ast_grep"]
    rules: Some[AstGrepRule]


def _known_check(name: str) -> str:
    from reviewer.detectors.checks import CHECKS

    if name not in CHECKS:
        raise ValueError(f"expected a known check, found {name!r}; use one of: {', '.join(sorted(CHECKS))}")
    return name


class OwnDetector(_Detector):
    kind: Literal["own"]
    rules: Some[Annotated[str, AfterValidator(_known_check)]]


Detector: TypeAlias = Annotated[
    RuffDetector | BanditDetector | AstGrepDetector | OwnDetector, Field(discriminator="kind")
]


class _ItemFields(Frozen):
    id: ItemId
    text: Text
    applies_to: Some[Glob] = Field(default=("**",), description="globs as in .gitignore")
    severity: Severity = Field(description="the worst severity a finding under this item may have")
    blocking: bool = Field(default=False, description="whether a detector's finding may block by itself")
    detector: Detector | None = None

    @model_validator(mode="after")
    def _blocking_needs_detector(self) -> _ItemFields:
        if self.blocking and (self.detector is None or not self.severity.can_block):
            raise ValueError(
                "expected a detector and severity P0 or P1 beside 'blocking: true'; set 'blocking: false'"
            )
        return self


class Item(_ItemFields):
    """One thing to check; `checklist` and `section` are the headings it stands under."""

    checklist: Text
    section: Text


class _Section(Frozen):
    id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]+(\.[A-Za-z0-9]+)*$")]
    name: Text
    items: Some[_ItemFields]


class _File(Frozen):
    checklist: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
    name: Text
    sections: Some[_Section]

    @model_validator(mode="after")
    def _each_id_once(self, info: ValidationInfo) -> _File:
        seen = set(info.context or ())
        errors: list[InitErrorDetails] = []
        for at, section in enumerate(self.sections):
            for place, item in enumerate(section.items):
                if item.id in seen:
                    kind = PydanticCustomError(
                        "duplicate_id", f"expected each id once, found '{item.id}' again; choose another id"
                    )
                    errors.append(
                        InitErrorDetails(type=kind, loc=("sections", at, "items", place, "id"), input=item.id)
                    )
                seen.add(item.id)
        if errors:
            raise ValidationError.from_exception_data("checklist", errors)
        return self


class Checklist(Frozen):
    """One file: `id` names it in a policy."""

    id: str
    name: Text
    items: tuple[Item, ...]


def load_text(text: str, name: str, taken: Collection[str] = ()) -> Checklist:
    """Reads one checklist; `name` is the file's name in messages, `taken` the item ids of those read before.

    Raises `ConfigError` naming file, line and what was expected.
    """
    file = yamlfile.load(text, _File, name, context=frozenset(taken))
    items = tuple(
        Item(
            checklist=file.name,
            section=Text(en=f"{section.id} {section.name.en}", zh=f"{section.id} {section.name.zh}"),
            **dict(item),
        )
        for section in file.sections
        for item in section.items
    )
    return Checklist(id=file.checklist, name=file.name, items=items)


def load_builtin(names: Sequence[str] | None = None) -> tuple[Checklist, ...]:
    """The checklists shipped with the product, in the order of `names` (all where None)."""
    return _load(BUILTIN if names is None else names, lambda _: None)


def load_items(names: Sequence[str] | None, read: ReadFile) -> list[Item]:
    """The items of the checklists that a policy names; of all shipped ones where it names none.

    A name that ends in .yaml or .yml is a file of the base branch, which `read` gives by its path. Raises
    `ConfigError` naming what does not exist, or file and line of what is wrong.
    """
    return [item for one in _load(BUILTIN if names is None else names, read) for item in one.items]


def _load(names: Iterable[str], read: ReadFile) -> tuple[Checklist, ...]:
    checklists: list[Checklist] = []
    for name in dict.fromkeys(names):
        if name in BUILTIN:
            place = f"checklists/{name}.yaml"
            content: bytes | None = resources.files("checklists").joinpath(f"{name}.yaml").read_bytes()
        else:
            place = name
            content = read(name) if name.endswith((".yaml", ".yml")) else None
        if content is None:
            raise ConfigError(
                f"checklist {name!r} does not exist",
                f"use one of: {', '.join(BUILTIN)}, or the path of a YAML file on the base branch",
            )
        taken = {item.id for checklist in checklists for item in checklist.items}
        checklists.append(load_text(content.decode("utf-8", "replace"), place, taken))
    return tuple(checklists)


def applicable(items: Iterable[Item], paths: Iterable[str]) -> tuple[Item, ...]:
    """The items whose globs match at least one of the paths, in their own order."""
    paths = tuple(paths)
    return tuple(item for item in items if any(True for _ in paths_of(item, paths)))


def paths_of(item: Item, paths: Iterable[str]) -> Iterator[str]:
    """The paths that the item applies to."""
    return (path for path in paths if matches(path, item.applies_to))


def cap(severity: Severity, items: Iterable[Item]) -> Severity:
    """The severity, made no worse than the worst that its items allow; unchanged where there are none."""
    caps = [item.severity.rank for item in items]
    return severity if not caps else Severity(f"P{max(severity.rank, min(caps))}")
