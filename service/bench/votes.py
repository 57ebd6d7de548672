"""`whitesmoke bench votes`: how well clustering and voting pick what is right out of what many reviewers said."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from reviewer.cluster import cluster
from reviewer.errors import ReviewError
from reviewer.model import Finding, Severity
from reviewer.similarity import THRESHOLD

# A cluster is kept when QUORUM * n**(1/4) reviewers support it, of n findings on the pull request: the more is
# said, the more of it agrees by chance. From 7 to 33 findings that asks for three reviewers, up to 104 for four.
QUORUM = 1.25

_THRESHOLDS = (0.30, 0.32, 0.34, 0.36, 0.38, 0.40, 0.42)
_QUORUMS = (1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4, 1.45, 1.5)


class VotesError(ReviewError):
    """The file of judged findings cannot be used."""


class _Gold(BaseModel):
    text: str


class _Candidate(BaseModel):
    reviewer: str
    text: str = Field(min_length=1)
    matches: frozenset[int]


class _Pull(BaseModel):
    url: str
    repo: str
    gold: tuple[_Gold, ...]
    candidates: tuple[_Candidate, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """Counts over pull requests: texts kept, kept texts that match gold, gold found, gold there is."""

    kept: int = 0
    hits: int = 0
    found: int = 0
    gold: int = 0

    def __add__(self, other: Score) -> Score:
        return Score(
            self.kept + other.kept, self.hits + other.hits, self.found + other.found, self.gold + other.gold
        )

    @property
    def precision(self) -> float:
        """Percent of the kept texts that match some gold."""
        return 100 * self.hits / self.kept if self.kept else 0.0

    @property
    def recall(self) -> float:
        """Percent of the gold that some kept text matches."""
        return 100 * self.found / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


@dataclass(frozen=True, slots=True)
class VotesResult:
    """Scores by judge and repository with the shipped setting.

    `held_out`, by judge, has each repository scored with the threshold and quorum that are best on the others;
    None where not asked for or where there is but one repository.
    """

    scores: dict[str, dict[str, Score]]
    held_out: dict[str, Score] | None

    def total(self, judge: str) -> Score:
        return _sum(self.scores[judge].values())


def run(path: Path, hold_out: bool = False) -> VotesResult:
    """Clusters, votes and scores every pull request of `path`. Raises `VotesError` for an unusable file.

    `hold_out` tries every threshold and quorum, which takes some seconds for 30 pull requests.
    """
    judges = _read(path)
    scores = _score(judges, THRESHOLD, (QUORUM,))[QUORUM]
    repos = {pull.repo for pulls in judges.values() for pull in pulls}
    return VotesResult(scores, _hold_out(judges, sorted(repos)) if hold_out and len(repos) > 1 else None)


def render(result: VotesResult) -> str:
    """A table of percentages for a terminal."""
    lines = [f"{'judge':<12}{'repository':<20}{'kept':>6}{'gold':>6}{'precision':>11}{'recall':>8}{'F1':>7}"]

    def row(judge: str, name: str, score: Score) -> None:
        lines.append(
            f"{judge:<12}{name:<20}{score.kept:>6}{score.gold:>6}"
            f"{score.precision:>11.1f}{score.recall:>8.1f}{score.f1:>7.1f}"
        )

    for judge, repos in result.scores.items():
        for repo, score in sorted(repos.items()):
            row(judge, repo, score)
        row(judge, "all", result.total(judge))
        if result.held_out:
            row(judge, "all, held out", result.held_out[judge])
    return "\n".join(lines) + "\n"


def render_json(result: VotesResult) -> str:
    """`{judge: {precision, recall, f1}}` in percent with one decimal."""
    table = {}
    for judge in result.scores:
        score = result.total(judge)
        figures = {"precision": score.precision, "recall": score.recall, "f1": score.f1}
        table[judge] = {name: round(figure, 1) for name, figure in figures.items()}
    return json.dumps(table, indent=2) + "\n"


def _read(path: Path) -> dict[str, list[_Pull]]:
    try:
        judges = TypeAdapter(dict[str, list[_Pull]]).validate_json(path.read_bytes())
    except OSError as error:
        raise VotesError(f"{path}: {error.strerror}", "name a readable file of judged findings") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "file"
        problem = f"{path}: {place}: {first['msg']}"
        raise VotesError(problem, "expected {judge: [{url, repo, gold, candidates}]}") from error
    for judge, pulls in judges.items():
        for pull in pulls:
            for candidate in pull.candidates:
                if any(not 0 <= index < len(pull.gold) for index in candidate.matches):
                    problem = f"{path}: {judge}: {pull.url}: a candidate matches gold that is not listed"
                    raise VotesError(problem, "count gold from 0")
    return judges


def _score(
    judges: dict[str, list[_Pull]], threshold: float, quorums: Iterable[float]
) -> dict[float, dict[str, dict[str, Score]]]:
    """Scores by quorum, judge and repository."""
    table: dict[float, dict[str, dict[str, Score]]] = {quorum: {} for quorum in quorums}
    for judge, pulls in judges.items():
        for scores in table.values():
            scores[judge] = {}
        for pull in pulls:
            clusters = cluster(_findings(pull), threshold)
            for quorum, scores in table.items():
                needed = quorum * len(pull.candidates) ** 0.25
                kept = [
                    pull.candidates[found.medoid].matches for found in clusters if found.support >= needed
                ]
                score = Score(len(kept), sum(map(bool, kept)), len(frozenset().union(*kept)), len(pull.gold))
                scores[judge][pull.repo] = scores[judge].get(pull.repo, Score()) + score
    return table


def _findings(pull: _Pull) -> list[Finding]:
    """Each reviewer is a rep; there are no positions and one text, so the words alone decide."""
    reviewers = {name: rep for rep, name in enumerate(dict.fromkeys(c.reviewer for c in pull.candidates))}
    return [
        Finding(path="", severity=Severity.P2, title=candidate.text, rep=reviewers[candidate.reviewer])
        for candidate in pull.candidates
    ]


def _hold_out(judges: dict[str, list[_Pull]], repos: Sequence[str]) -> dict[str, Score]:
    settings = [
        scores for threshold in _THRESHOLDS for scores in _score(judges, threshold, _QUORUMS).values()
    ]

    def mean_f1(scores: dict[str, dict[str, Score]], held: str) -> float:
        others = [_sum(s for repo, s in by_repo.items() if repo != held) for by_repo in scores.values()]
        return sum(score.f1 for score in others) / len(others)

    total = dict.fromkeys(judges, Score())
    for held in repos:
        best = max(settings, key=lambda scores: mean_f1(scores, held))
        for judge in judges:
            total[judge] += best[judge].get(held, Score())
    return total


def _sum(scores: Iterable[Score]) -> Score:
    return sum(scores, Score())
