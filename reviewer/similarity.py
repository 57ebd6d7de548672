"""How alike two findings are: 0 where they have nothing in common, 1 for the same words about the same place.

The words decide where findings have no place. Where they have one, it must agree: nothing joins two files, or
two places of one file that neither lie close nor quote the same code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from reviewer.model import Side
from reviewer.terms import split_terms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]


class Located(Protocol):
    """What is compared: `Finding` and `ReportedFinding` both have it."""

    @property
    def path(self) -> str: ...
    @property
    def line_start(self) -> int: ...
    @property
    def line_end(self) -> int: ...
    @property
    def side(self) -> Side: ...
    @property
    def category(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def body(self) -> str: ...
    @property
    def quoted_code(self) -> str: ...


# Chosen with `whitesmoke bench votes` and `whitesmoke bench pairs`.
THRESHOLD = 0.36  # mean similarity at which groups of findings still join
LEAD = 60.0  # terms after which a term counts half: what comes first states the fault
UNSEEN = 10.0  # other findings imagined beside the real ones, so that what a handful all say still counts
NEIGHBOURS = 30  # findings whose resemblance counts as context: more would drown it in chance agreement
CONTEXT = 0.6  # share of the similarity that comes from resembling the same other findings
NEAR = 8.0  # gap in lines at which two places count as half the same
DRIFT = 40.0  # gap in lines at which an equal quotation counts half: a line may have moved, or stand twice
MISQUOTED = 0.5  # what nearness is worth where both quote code and share no line of it
ELSEWHERE = 0.15  # what words are worth at another place of the same file
HERE = 0.10  # similarity of two findings about the same place before any word agrees
KIND = 0.05  # added to it where the category agrees


class Metric:
    """Compares findings of one round with each other; how much a term counts comes from all of them."""

    def __init__(self, findings: Sequence[Located]) -> None:
        self._findings = findings
        self._terms = _term_matrix(findings)

    def among(self, group: Sequence[int]) -> Matrix:
        """Similarities [len(group), len(group)] of findings that all have the same path ("" for none)."""
        import numpy as np

        rows = self._terms[group]
        alike: Matrix = (rows @ rows.T).toarray()
        findings = [self._findings[i] for i in group]
        if findings and findings[0].path:
            alike = _placed(alike, findings)
        np.fill_diagonal(alike, 1.0)
        # Two wordings of one fault may share few words and yet both resemble a third.
        nearest = alike
        if len(group) > NEIGHBOURS:
            least = np.partition(alike, -NEIGHBOURS, axis=1)[:, -NEIGHBOURS, None]
            nearest = np.where(alike >= least, alike, np.float32(0))
        profiles = nearest / np.linalg.norm(nearest, axis=1, keepdims=True)
        blended: Matrix = (1 - CONTEXT) * alike + CONTEXT * (profiles @ profiles.T)
        return blended.clip(0.0, 1.0)


def _placed(alike: Matrix, findings: Sequence[Located]) -> Matrix:
    """Similarities of words, lowered between places of a file and raised at one place."""
    import numpy as np

    place = _places(findings)
    category = np.unique([finding.category.casefold() for finding in findings], return_inverse=True)[1]
    granted = HERE + KIND * (category[:, None] == category[None, :])
    worth = ELSEWHERE + (1 - ELSEWHERE) * place
    placed: Matrix = (alike * worth + granted * place * (1 - alike)).astype(np.float32)
    return placed


def _term_matrix(findings: Sequence[Located]) -> Any:
    """TF-IDF rows of length 1, sparse: [findings, terms]."""
    import numpy as np
    from scipy import sparse

    columns: dict[str, int] = {}
    counts: list[float] = []
    indices: list[int] = []
    starts = [0]
    for finding in findings:
        weights: dict[int, float] = {}
        for position, term in enumerate(split_terms(f"{finding.title}\n{finding.body}")):
            column = columns.setdefault(term, len(columns))
            weights[column] = weights.get(column, 0.0) + 1 / (1 + position / LEAD)
        indices.extend(weights)
        counts.extend(weights.values())
        starts.append(len(indices))
    column_of = np.array(indices, dtype=np.int32)
    holders = np.bincount(column_of, minlength=len(columns))
    idf = np.log((1 + len(findings) + UNSEEN) / (1 + holders))
    data = np.log1p(np.array(counts)) * idf[column_of]
    lengths = np.sqrt(np.add.reduceat(np.append(data**2, 0.0), starts[:-1])) if findings else np.empty(0)
    sizes = np.diff(starts)
    data /= np.repeat(np.where(sizes > 0, lengths, 1.0), sizes)
    shape = (len(findings), max(1, len(columns)))
    return sparse.csr_matrix((data.astype(np.float32), column_of, starts), shape=shape)


def _places(findings: Sequence[Located]) -> Matrix:
    """How far findings of one file point at the same place, 0 to 1: [findings, findings]."""
    import numpy as np

    start = np.array([finding.line_start for finding in findings], dtype=np.int64)
    end = np.array([finding.line_end for finding in findings], dtype=np.int64)
    side = np.array([finding.side is Side.LEFT for finding in findings])
    gap = np.maximum(0, np.maximum(start[:, None] - end[None, :], start[None, :] - end[:, None]))
    whole = start == 0
    gap[whole[:, None] | whole[None, :]] = 0
    near = 0.5 ** (gap / NEAR) * (side[:, None] == side[None, :])
    shared, quotes = _shared_quotes(findings)
    # The same line may stand in a file twice: far apart, an equal quotation is no proof.
    shared = shared * 0.5 ** (gap / DRIFT)
    both = quotes[:, None] & quotes[None, :]
    near = np.where(both, near * (MISQUOTED + (1 - MISQUOTED) * shared), near)
    places: Matrix = np.maximum(near, shared).astype(np.float32)
    return places


def _shared_quotes(findings: Sequence[Located]) -> tuple[Matrix, NDArray[np.bool_]]:
    """The share of the shorter quotation that both quote, by characters; and which findings quote at all."""
    import numpy as np
    from scipy import sparse

    lines: dict[str, int] = {}
    indices: list[int] = []
    starts = [0]
    for finding in findings:
        quoted = {"".join(line.split()) for line in finding.quoted_code.splitlines()} - {""}
        indices.extend(lines.setdefault(line, len(lines)) for line in sorted(quoted))
        starts.append(len(indices))
    sizes = np.array([len(line) for line in lines], dtype=np.float32)
    shape = (len(findings), max(1, len(lines)))
    holds: Any = sparse.csr_matrix((np.ones(len(indices), np.float32), indices, starts), shape=shape)
    weighed: Any = sparse.csr_matrix((sizes[indices], indices, starts), shape=shape)
    common = (weighed @ holds.T).toarray()
    own = common.diagonal()
    shorter = np.minimum(own[:, None], own[None, :])
    return np.divide(common, shorter, out=np.zeros_like(common), where=shorter > 0), own > 0
