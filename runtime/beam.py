"""Beam search of one request: which beams go on, which sequences ended best. Host only; knows no device.

The rules are those of Hugging Face transformers 5.17, `generate(num_beams=..., do_sample=False)`, for one prompt
(`GenerationMixin._beam_search`). A candidate's sum is its beam's score plus the token's log probability, in float32.
Candidates are ordered by sum; equal sums by beam, then by token id. The best `beams` that no stop id ends go on. Of the
first `beams` candidates, those that end join the ended sequences, of which the best `beams` are kept; there a score is the
sum divided by length ** length_penalty, where the length counts generated tokens, the stop id among them. At the last token
all candidates end. The search is over when the best beam cannot improve on the worst ended sequence, as `early_stopping`
estimates it.

One difference. When fewer than `beams` continuations are possible at all, transformers fills up with sequences that have
ended already or that are there twice, at a score of -1e9, and may count them as ended and return them. Here such rows go on
at -inf, because the device computes every row, and never count.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from runtime.errors import RequestError

MIN_BEAMS, MAX_BEAMS = 2, 16
# What `kernels.sampling.log_probabilities` gives of a row at most.
MAX_CANDIDATES = 32
# 2^17 tokens to the seventh power still fit a float32, as do a sequence's sums divided by the inverse.
MAX_LENGTH_PENALTY = 7.0
IMPOSSIBLE = np.float32(-math.inf)
STEP = np.dtype([("token", np.int32), ("logprob", np.float32)])

Floats = npt.NDArray[np.float32]
Steps = npt.NDArray[np.void]


class BeamOrderError(RuntimeError):
    """The search was advanced before its start, started twice, or advanced after its end."""


@dataclass(frozen=True)
class BeamParameters:
    """How a request's beams are searched.

    Attributes:
        beams: sequences carried on at each step, from 2 to 16.
        length_penalty: exponent of the length that a sum is divided by; above 0 favours long sequences.
        early_stopping: True ends when `beams` sequences have ended; False ends when the best beam, at its length now, is no
            better than the worst of them; "never" grants that beam the length most favourable to it.
        return_sequences: ended sequences to return, best first; at most `beams`.
    """

    beams: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    return_sequences: int = 1

    def __post_init__(self) -> None:
        self._require(
            "beams",
            type(self.beams) is int and MIN_BEAMS <= self.beams <= MAX_BEAMS,
            f"a whole number from {MIN_BEAMS} to {MAX_BEAMS}",
        )
        self._require(
            "length_penalty",
            type(self.length_penalty) in (int, float) and abs(self.length_penalty) <= MAX_LENGTH_PENALTY,
            f"a number from {-MAX_LENGTH_PENALTY} to {MAX_LENGTH_PENALTY}",
        )
        self._require(
            "early_stopping",
            isinstance(self.early_stopping, bool) or self.early_stopping == "never",
            "true, false or 'never'",
        )
        self._require(
            "return_sequences",
            type(self.return_sequences) is int and 1 <= self.return_sequences <= self.beams,
            f"a whole number from 1 to the {self.beams} beams",
        )

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise RequestError(f"{name}: expected {expected}, got {self.__dict__[name]!r}")


@dataclass(frozen=True)
class Choice:
    """A beam that goes on: its row continues what was row `parent` with `token`.

    Attributes:
        score: sum of its log probabilities; -inf for a row that is only there to be computed.
    """

    parent: int
    token: int
    score: float


@dataclass(frozen=True)
class Hypothesis:
    """A sequence that ended.

    Attributes:
        tokens: generated ids; the stop id is the last of them where one ended it.
        score: sum of its log probabilities divided by length ** length_penalty.
        logprobs: each token's log probability, as it was given.
        stopped: a stop id ended it, rather than the limit of tokens.
    """

    tokens: tuple[int, ...]
    score: float
    logprobs: tuple[float, ...]
    stopped: bool


class BeamSearch:
    """The beams of one prompt, from `start` through `advance` until `done`.

    Args:
        max_tokens: most tokens generated; histories take 24 bytes for each of them and each beam, all at once.
        stop_ids: ids that end a sequence; empty where the request ignores them.
        vocab_size: ids there are.

    Raises:
        RequestError: more stop ids than candidates of a row can be had, or no id that goes on.
    """

    def __init__(
        self, parameters: BeamParameters, max_tokens: int, stop_ids: Collection[int], vocab_size: int
    ) -> None:
        self._parameters = parameters
        self._max_tokens = max_tokens
        stops = sorted(token for token in set(stop_ids) if 0 <= token < vocab_size)
        if len(stops) > MAX_CANDIDATES - parameters.beams:
            raise RequestError(
                f"stop_ids: expected at most {MAX_CANDIDATES - parameters.beams} beside {parameters.beams} beams,"
                f" got {len(stops)}"
            )
        if len(stops) == vocab_size:
            raise RequestError(
                f"stop_ids: expected fewer than the {vocab_size} ids of the vocabulary, got all"
            )
        self._stops = np.array(stops, np.int64)
        # Enough of a row: only the best `beams` of all candidates can end, and a row's best `beams` that go on are among its
        # best `beams` + stop ids. Transformers takes (1 + stop ids) * beams over all rows for the same reason. Where sums
        # are equal only by rounding, a row's better token counts first, whatever its id.
        self.candidates_per_row = min(parameters.beams + len(stops), vocab_size)
        self.length = 0
        self.done = False
        # Until the first token all beams are the prompt: one of them speaks for all.
        self._scores = np.full(parameters.beams, IMPOSSIBLE, np.float32)
        self._scores[0] = 0
        self._running = _Histories(parameters.beams, max_tokens)
        self._ended = _Ended(parameters.beams, max_tokens)

    def start(
        self, top_ids: npt.NDArray[np.integer[Any]], top_logprobs: npt.NDArray[np.floating[Any]]
    ) -> list[Choice]:
        """Choose the first tokens.

        Args:
            top_ids: [candidates_per_row or more], the likeliest tokens after the prompt, likeliest first.
            top_logprobs: as many natural logs of their probabilities; -inf for what is ruled out.

        Returns:
            The beams in order, each with parent 0: all of them start from the prompt. None when `done`.

        Raises:
            BeamOrderError: it has started.
            ValueError: a shape is wrong.
            RequestError: a log probability is NaN.
        """
        if self.length:
            raise BeamOrderError("start: the search has started; advance it")
        self._check(top_ids, top_logprobs, ())
        shape = (self._parameters.beams, len(top_ids))
        return self._choose(np.broadcast_to(top_ids, shape), np.broadcast_to(top_logprobs, shape))

    def advance(
        self, top_ids: npt.NDArray[np.integer[Any]], top_logprobs: npt.NDArray[np.floating[Any]]
    ) -> list[Choice]:
        """Choose the next tokens; as `start`, with one row for each beam: [beams, candidates_per_row or more]."""
        if not self.length or self.done:
            raise BeamOrderError("advance: the search is over" if self.done else "advance: start comes first")
        self._check(top_ids, top_logprobs, (self._parameters.beams,))
        return self._choose(top_ids, top_logprobs)

    def results(self) -> list[Hypothesis]:
        """The best `return_sequences` that have ended, best first; fewer where no more could end."""
        count = self._parameters.return_sequences
        return self._ended.best(count, frozenset(self._stops.tolist()))

    def _choose(
        self, ids: npt.NDArray[np.integer[Any]], logprobs: npt.NDArray[np.floating[Any]]
    ) -> list[Choice]:
        beams = self._parameters.beams
        given = logprobs.astype(np.float32)
        sums = (given + self._scores[:, None]).ravel()
        parents = np.repeat(np.arange(beams) if self.length else np.zeros(beams, np.intp), ids.shape[1])
        order = np.lexsort((ids.ravel(), parents, -sums))
        sums, parents, tokens = sums[order], parents[order], ids.ravel()[order]
        steps = np.empty(len(order), STEP)
        steps["token"], steps["logprob"] = tokens, given.ravel()[order]

        is_last = self.length + 1 == self._max_tokens
        ends = np.full(len(order), True) if is_last else np.isin(tokens, self._stops)
        divisor = self._divisor(self.length + 1)
        for index in np.flatnonzero(ends[:beams]):
            self._ended.offer(
                float(sums[index] / divisor), self._running.rows[parents[index], : self.length], steps[index]
            )
        onward = np.argsort(-np.where(ends, IMPOSSIBLE, sums), kind="stable")[:beams]
        self._running.reorder(parents[onward], self.length)
        self._running.rows[:, self.length] = steps[onward]
        self._scores = np.where(ends, IMPOSSIBLE, sums)[onward]
        self.length += 1
        self.done = is_last or self._is_decided()
        if self.done:
            return []
        chosen = zip(parents[onward].tolist(), tokens[onward].tolist(), self._scores.tolist(), strict=True)
        return [Choice(*values) for values in chosen]

    def _is_decided(self) -> bool:
        """Whether no beam is expected to improve on the ended sequences."""
        early_stopping, penalty = self._parameters.early_stopping, self._parameters.length_penalty
        if early_stopping is True and self._ended.count == self._parameters.beams:
            return True
        longest = self._max_tokens if early_stopping == "never" and penalty > 0 else self.length
        return not self._scores[0] / self._divisor(longest) > self._ended.worst

    def _divisor(self, length: int) -> np.float32:
        return np.float32(length**self._parameters.length_penalty)

    def _check(
        self,
        ids: npt.NDArray[np.integer[Any]],
        logprobs: npt.NDArray[np.floating[Any]],
        rows: tuple[int, ...],
    ) -> None:
        least = (*rows, self.candidates_per_row)
        if ids.shape[:-1] != rows or not ids.ndim or ids.shape[-1] < least[-1]:
            raise ValueError(f"top_ids: expected shape {least} or wider, got {ids.shape}")
        if logprobs.shape != ids.shape:
            raise ValueError(f"top_logprobs: expected shape {ids.shape} as top_ids has, got {logprobs.shape}")
        if np.isnan(logprobs).any():
            raise RequestError("the log probabilities hold NaN")


class _Histories:
    """Tokens of `beams` sequences `[beams, max_tokens]`, in one of two buffers made once; they take turns."""

    def __init__(self, beams: int, max_tokens: int) -> None:
        self.rows: Steps = np.zeros((beams, max_tokens), STEP)
        self._spare: Steps = np.zeros((beams, max_tokens), STEP)

    def reorder(self, parents: Sequence[int] | npt.NDArray[np.intp], length: int) -> None:
        """Make each row the first `length` tokens of its parent; all are read before one is written."""
        for row, parent in zip(self._spare, parents, strict=True):
            row[:length] = self.rows[parent, :length]
        self.rows, self._spare = self._spare, self.rows


class _Ended:
    """The best `beams` ended sequences; among equal scores the one that ended first."""

    def __init__(self, beams: int, max_tokens: int) -> None:
        self._rows: Steps = np.zeros((beams, max_tokens), STEP)
        # Best first: (score, row, length). A row is taken over when its sequence drops out; none is ever moved.
        self._order: list[tuple[float, int, int]] = []

    @property
    def count(self) -> int:
        return len(self._order)

    @property
    def worst(self) -> float:
        """The score that a further sequence has to exceed."""
        return self._order[-1][0] if self.count == len(self._rows) else -math.inf

    def offer(self, score: float, history: Steps, last: np.void) -> None:
        """Take in the sequence of `history` and the token `last`, if it is better than one that is held."""
        if not score > self.worst:
            return
        row = self._order.pop()[1] if self.count == len(self._rows) else self.count
        self._rows[row, : len(history)] = history
        self._rows[row, len(history)] = last
        place = sum(held >= score for held, _, _ in self._order)
        self._order.insert(place, (score, row, len(history) + 1))

    def best(self, count: int, stops: frozenset[int]) -> list[Hypothesis]:
        results = []
        for score, row, length in self._order[:count]:
            tokens = tuple(self._rows[row, :length]["token"].tolist())
            logprobs = tuple(self._rows[row, :length]["logprob"].tolist())
            results.append(Hypothesis(tokens, score, logprobs, tokens[-1] in stops))
        return results
