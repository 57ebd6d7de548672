"""Drives a beam search over log probabilities by history, for its tests."""

from collections.abc import Callable

import numpy as np

from runtime.beam import BeamSearch, Choice, Hypothesis

# Log probabilities [rows, vocabulary] after these histories of generated tokens.
Logprobs = Callable[[list[tuple[int, ...]]], np.ndarray]


def run(
    search: BeamSearch, logprobs: Logprobs, width: int = 0
) -> tuple[list[Hypothesis], list[list[Choice]]]:
    """Search over `logprobs`, rows cut to `width` candidates (0: as few as suffice); and the choices of each step."""
    histories: list[tuple[int, ...]] = [()]
    steps: list[list[Choice]] = []
    while not search.done:
        rows = logprobs(histories)
        ids = np.argsort(-rows, axis=1, kind="stable")[:, : width or search.candidates_per_row]
        top = np.take_along_axis(rows, ids, 1)
        choices = search.advance(ids, top) if steps else search.start(ids[0], top[0])
        steps.append(choices)
        histories = [(*histories[choice.parent], choice.token) for choice in choices]
    return search.results(), steps
