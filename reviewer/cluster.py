"""Findings that mean the same, and how many reps said so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reviewer.model import Cluster, Finding
from reviewer.similarity import DEFAULT_WEIGHTS, Located, Metric, Weights

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Settings:
    """Findings join while their average similarity stays at or above `threshold`."""

    threshold: float = 0.25
    weights: Weights = DEFAULT_WEIGHTS


DEFAULT = Settings()


def cluster(findings: Sequence[Finding], settings: Settings = DEFAULT) -> tuple[Cluster, ...]:
    """Groups findings that mean the same, in the order of each group's first member.

    `members` and `medoid` index `findings`. Support counts distinct reps; detectors (rep -1) do not vote.
    The partition does not depend on the order of the input.
    """
    if not findings:
        return ()
    import numpy as np

    order = sorted(range(len(findings)), key=lambda i: _content(findings[i]))
    ordered = [findings[i] for i in order]
    metric = Metric(ordered, settings.weights)
    every = np.arange(len(ordered))
    similarity = metric.between(every, every)
    clusters = []
    for group in _average_linkage(1 - similarity, 1 - settings.threshold):
        mean = similarity[np.ix_(group, group)].mean(axis=1)
        medoid = min(group, key=lambda i: (-round(float(mean[list(group).index(i)]), 9), ordered[i].rep, i))
        members = tuple(sorted(order[i] for i in group))
        reps = {ordered[i].rep for i in group if ordered[i].rep >= 0}
        clusters.append(Cluster(members=members, medoid=order[medoid], support=len(reps)))
    return tuple(sorted(clusters, key=lambda c: c.members))


def match(
    new: Sequence[Located], old: Sequence[Located], settings: Settings = DEFAULT
) -> list[tuple[int | None, float]]:
    """For each of `new` the index of the most similar of `old` and how similar it is (0 to 1).

    The index is None where nothing of `old` reaches the threshold.
    """
    if not new:
        return []
    if not old:
        return [(None, 0.0)] * len(new)
    import numpy as np

    metric = Metric([*new, *old], settings.weights)
    similarity = metric.between(np.arange(len(new)), np.arange(len(new), len(new) + len(old)))
    best = similarity.argmax(axis=1)
    return [
        (int(j) if similarity[i, j] >= settings.threshold else None, float(similarity[i, j]))
        for i, j in enumerate(best)
    ]


def _content(finding: Finding) -> tuple[str, ...]:
    return (finding.path, f"{finding.line_start:09}", finding.title, finding.body, finding.model_dump_json())


def _average_linkage(distance: NDArray[np.float64], cut: float) -> list[NDArray[np.int64]]:
    import numpy as np
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    if len(distance) == 1:
        return [np.array([0])]
    np.fill_diagonal(distance, 0)
    labels = fcluster(linkage(squareform(distance, checks=False), "average"), cut, "distance")
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]
