"""How alike two findings are, between 0 (unrelated) and 1 (the same words about the same place)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from reviewer.model import Side

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Located(Protocol):
    """What the metric reads of a finding: `Finding` and `ReportedFinding` both have it."""

    @property
    def path(self) -> str: ...
    @property
    def line_start(self) -> int: ...
    @property
    def line_end(self) -> int: ...
    @property
    def side(self) -> Side: ...
    @property
    def title(self) -> str: ...
    @property
    def body(self) -> str: ...
    @property
    def quoted_code(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Weights:
    """`near` is the number of lines at which two places of one file count half as near."""

    near: float = 10.0
    same_place: float = 0.6
    elsewhere: float = 0.4


DEFAULT_WEIGHTS = Weights()
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|\d+|[\u3400-\u9fff]+")


def _grams(text: str) -> Counter[str]:
    grams: Counter[str] = Counter()
    for word in _WORD.findall(text.lower()):
        if word[0] >= "\u3400":
            grams.update(word[i : i + 2] for i in range(max(1, len(word) - 1)))
            continue
        padded = f" {word} "
        for size in (3, 4, 5):
            grams.update(padded[i : i + size] for i in range(len(padded) - size + 1))
    return grams


class Metric:
    """Compares any two of the findings it was built over; idf comes from them all."""

    def __init__(self, findings: Sequence[Located], weights: Weights = DEFAULT_WEIGHTS) -> None:
        import numpy as np
        from scipy import sparse

        self.weights = weights
        vocabulary: dict[str, int] = {}
        indices: list[int] = []
        data: list[float] = []
        indptr = [0]
        for finding in findings:
            grams = _grams(f"{finding.title} {finding.title} {finding.body}")
            for gram, count in grams.items():
                indices.append(vocabulary.setdefault(gram, len(vocabulary)))
                data.append(1.0 + np.log(count))
            indptr.append(len(indices))
        shape = (len(findings), len(vocabulary))
        matrix: Any = sparse.csr_matrix((data, indices, indptr), shape=shape, dtype=np.float32)
        present = np.bincount(matrix.indices, minlength=shape[1])
        idf = np.log((1 + shape[0]) / (1 + present)) + 1
        matrix = matrix.multiply(idf[np.newaxis, :]).tocsr()
        norm = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
        norm[norm == 0] = 1
        self.text: Any = sparse.diags(1 / norm) @ matrix
        paths: dict[str, int] = {"": -1}
        self.path = np.array([paths.setdefault(f.path, len(paths)) for f in findings], dtype=np.int64)
        self.start = np.array([f.line_start for f in findings], dtype=np.int64)
        self.end = np.array([f.line_end for f in findings], dtype=np.int64)

    def between(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.float64]:
        """Similarities of every finding in `left` to every one in `right`: [len(left), len(right)]."""
        import numpy as np

        text = np.asarray((self.text[left] @ self.text[right].T).todense(), dtype=np.float64)
        a, b = self.path[left][:, None], self.path[right][None, :]
        known = (a >= 0) & (b >= 0)
        gap = np.maximum(
            self.start[left][:, None] - self.end[right][None, :],
            self.start[right][None, :] - self.end[left][:, None],
        )
        whole = (self.start[left][:, None] == 0) | (self.start[right][None, :] == 0)
        near = np.where(whole, 0.5, 0.5 ** (np.maximum(gap, 0) / self.weights.near))
        factor = np.where(a == b, 1 + self.weights.same_place * (2 * near - 1), self.weights.elsewhere)
        return np.clip(np.where(known, text * factor, text), 0.0, 1.0)
