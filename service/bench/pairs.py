"""`whitesmoke bench pairs`: which labelled findings clustering puts together, and which it keeps apart."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from reviewer import yamlfile
from reviewer.cluster import cluster
from reviewer.errors import ConfigError
from reviewer.model import Finding, Severity, Side

DATA = Path(__file__).parent / "data" / "pairs.yaml"


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Labelled(_Entry):
    path: str
    line_start: int = Field(ge=0)
    line_end: int = Field(ge=0)
    side: Side = Side.RIGHT
    category: str
    title: str = Field(min_length=1)
    body: str
    quoted_code: str = ""
    lang: Literal["en", "zh"] = "en"
    moved: bool = False

    @model_validator(mode="after")
    def _lines_in_order(self) -> _Labelled:
        if self.line_end < self.line_start:
            raise ValueError("line_end should not lie before line_start")
        return self

    def finding(self, rep: int) -> Finding:
        fields = self.model_dump(exclude={"lang", "moved"})
        return Finding(**fields, severity=Severity.P2, rep=rep)


class _Group(_Entry):
    name: str
    words: str = ""
    findings: tuple[_Labelled, ...]


class _Pull(_Entry):
    name: str
    fresh: bool = False
    groups: tuple[_Group, ...]


class _File(_Entry):
    pulls: tuple[_Pull, ...]


# A pair's kind: why it belongs together or apart.
Kind = Literal[
    "reworded", "two languages", "moved lines", "one place", "same words", "same file", "other file"
]
TOGETHER: tuple[Kind, ...] = ("reworded", "two languages", "moved lines")
APART: tuple[Kind, ...] = ("one place", "same words", "same file", "other file")


@dataclass(slots=True)
class Count:
    """Pairs of one kind, how many of them clustering joined, and the wrongly treated by title."""

    pairs: int = 0
    joined: int = 0
    wrong: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PairsResult:
    """Counts by kind: over all pull requests, and over those written after the settings were chosen."""

    every: dict[Kind, Count]
    fresh: dict[Kind, Count]


@dataclass(frozen=True, slots=True)
class Figures:
    """Fractions 0 to 1."""

    precision: float
    recall: float
    f1: float


def measure(counts: dict[Kind, Count]) -> Figures:
    """Precision, recall and F1 of joining."""
    right = sum(counts[kind].joined for kind in TOGETHER)
    joined = right + sum(counts[kind].joined for kind in APART)
    wanted = sum(counts[kind].pairs for kind in TOGETHER)
    precision = right / joined if joined else 1.0
    recall = right / wanted if wanted else 1.0
    return Figures(precision, recall, 2 * right / (joined + wanted) if joined + wanted else 1.0)


def run(path: Path = DATA) -> PairsResult:
    """Clusters each pull request of `path` as a round whose every finding is another rep's.

    Raises `ConfigError` for a file that cannot be read, naming the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "name a readable file of labelled findings") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected UTF-8 text", "save the file as UTF-8") from error
    result = PairsResult(
        every={kind: Count() for kind in TOGETHER + APART}, fresh={kind: Count() for kind in TOGETHER + APART}
    )
    for pull in yamlfile.load(text, _File, str(path)).pulls:
        labelled = [(group, finding) for group in pull.groups for finding in group.findings]
        clusters = cluster([finding.finding(rep) for rep, (_, finding) in enumerate(labelled)])
        home = {member: found.members for found in clusters for member in found.members}
        for i, j in combinations(range(len(labelled)), 2):
            kind = _kind(*labelled[i], *labelled[j])
            joined = j in home[i]
            for counts in (result.every, result.fresh) if pull.fresh else (result.every,):
                count = counts[kind]
                count.pairs += 1
                count.joined += joined
                if joined != (kind in TOGETHER):
                    count.wrong.append((labelled[i][1].title, labelled[j][1].title))
    return result


def render(result: PairsResult) -> str:
    """Two tables for a terminal and every pair that went wrong."""
    lines = []
    for name, counts in (("all pull requests", result.every), ("written afterwards", result.fresh)):
        figures = measure(counts)
        lines.append(
            f"{name}: precision {figures.precision:.3f}, recall {figures.recall:.3f}, F1 {figures.f1:.3f}"
        )
        for title, kinds in (("together", TOGETHER), ("apart", APART)):
            lines += [
                f"  {title:<10}{kind:<15}{counts[kind].joined:>5} of {counts[kind].pairs:>4} joined"
                for kind in kinds
            ]
    for kind, count in result.every.items():
        lines += [f"wrong, {kind}: {one} / {other}" for one, other in count.wrong]
    return "\n".join(lines) + "\n"


def render_json(result: PairsResult) -> str:
    """`{all|fresh: {precision, recall, f1, kinds: {kind: {pairs, joined}}}}`, fractions 0 to 1."""
    table = {}
    for name, counts in (("all", result.every), ("fresh", result.fresh)):
        figures = measure(counts)
        table[name] = {
            "precision": round(figures.precision, 3),
            "recall": round(figures.recall, 3),
            "f1": round(figures.f1, 3),
            "kinds": {kind: {"pairs": c.pairs, "joined": c.joined} for kind, c in counts.items()},
        }
    return json.dumps(table, indent=2) + "\n"


def _kind(one_group: _Group, one: _Labelled, other_group: _Group, other: _Labelled) -> Kind:
    if one_group is other_group:
        if one.moved or other.moved:
            return "moved lines"
        return "reworded" if one.lang == other.lang else "two languages"
    if one_group.words and one_group.words == other_group.words:
        return "same words"
    if one.path != other.path:
        return "other file"
    return "one place" if _overlap(one, other) else "same file"


def _overlap(one: _Labelled, other: _Labelled) -> bool:
    return one.side == other.side and one.line_start <= other.line_end and other.line_start <= one.line_end
