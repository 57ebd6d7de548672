"""Findings that mean the same, and how many reps said so."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from reviewer.model import Cluster, Finding
from reviewer.similarity import THRESHOLD, Located, Metric

if TYPE_CHECKING:
    from reviewer.similarity import Matrix

# At most so many different wordings about one file are compared with each other, which bounds memory at some
# 100 MB whatever a model says; a file with more is cut in the order of its lines.
LIMIT = 1000


def cluster(findings: Sequence[Finding], threshold: float = THRESHOLD) -> tuple[Cluster, ...]:
    """Groups findings that mean the same, by average linkage; in the order of each group's first member.

    `members` and `medoid` index `findings`. Support counts distinct reps; detectors (rep -1) do not vote. The
    medoid is the member most like all others by the geometric mean, which no single close twin can win; of equals
    the longest, of equal wordings the earliest rep's. The partition does not depend on the order of `findings`.
    """
    same: defaultdict[tuple[str, int, int, str, str, str, str, str], list[int]] = defaultdict(list)
    for index, finding in enumerate(findings):
        same[_content(finding)].append(index)
    # Sorted, so that neither groups nor ties depend on the order of the input.
    wordings = [same[content] for content in sorted(same)]
    distinct = [findings[wording[0]] for wording in wordings]
    metric = Metric(distinct)
    clusters = []
    for block in _blocks(distinct):
        lengths = [len(distinct[i].title) + len(distinct[i].body) for i in block]
        alike = metric.among(block)
        for group in _average_linkage(alike, threshold):
            members = sorted(index for i in group for index in wordings[block[i]])
            medoid = wordings[block[_medoid(alike, group, lengths)]]
            clusters.append(
                Cluster(
                    members=tuple(members),
                    medoid=min(medoid, key=lambda index: (findings[index].rep, index)),
                    support=len({rep for index in members if (rep := findings[index].rep) >= 0}),
                )
            )
    return tuple(sorted(clusters, key=lambda found: found.members))


def match(
    new: Sequence[Located], old: Sequence[Located], threshold: float = THRESHOLD
) -> list[tuple[int | None, float]]:
    """For each of `new` the index in `old` of the finding it repeats, and how alike they are (0 to 1).

    The index is None where nothing about the same file reaches the threshold. Whoever knows how lines and
    files moved between the rounds passes `old` with its places carried over; else the quoted code must agree.
    """
    metric = Metric([*new, *old])
    found: list[tuple[int | None, float]] = [(None, 0.0)] * len(new)
    for block in _blocks([*new, *old]):
        alike = metric.among(block)
        olds = [i for i, index in enumerate(block) if index >= len(new)]
        for i, index in enumerate(block):
            if index < len(new) and olds:
                best = max(olds, key=lambda j: (alike[i, j], -j))
                score = float(alike[i, best])
                found[index] = (block[best] - len(new) if score >= threshold else None, score)
    return found


def _content(finding: Finding) -> tuple[str, int, int, str, str, str, str, str]:
    """All that is compared; the order of lines comes before that of words."""
    return (
        finding.path,
        finding.line_start,
        finding.line_end,
        finding.side.value,
        finding.title,
        finding.body,
        finding.quoted_code,
        finding.category,
    )


def _blocks(findings: Sequence[Located]) -> Iterator[list[int]]:
    """Indices by path, and no more than `LIMIT` together. Findings of two files never join."""
    paths: defaultdict[str, list[int]] = defaultdict(list)
    for index, finding in enumerate(findings):
        paths[finding.path].append(index)
    for block in paths.values():
        block.sort(key=lambda index: findings[index].line_start)
        for start in range(0, len(block), LIMIT):
            yield block[start : start + LIMIT]


def _average_linkage(alike: Matrix, threshold: float) -> list[list[int]]:
    """Merges the two most similar groups while the mean similarity between them reaches the threshold."""
    size = len(alike)
    if size == 1:
        return [[0]]
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    labels = fcluster(
        linkage(squareform(1 - alike, checks=False), "average"), 1 - threshold, criterion="distance"
    )
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for index, label in enumerate(labels):
        groups[int(label)].append(index)
    return list(groups.values())


def _medoid(alike: Matrix, group: Sequence[int], lengths: Sequence[int]) -> int:
    import numpy as np

    # 0.01 keeps one unrelated member from deciding alone.
    closeness = np.log(alike[np.ix_(group, group)] + 0.01).mean(axis=1).round(6)
    return max(zip(group, closeness, strict=True), key=lambda member: (member[1], lengths[member[0]]))[0]
