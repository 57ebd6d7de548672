"""Beam search returns what a plain reference over whole vocabularies does; its parameters and order of calls are checked."""

import itertools
import math
import tracemalloc
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.sampling import MAX_TOP
from runtime.beam import MAX_CANDIDATES, BeamOrderError, BeamParameters, BeamSearch, Choice, Hypothesis
from runtime.errors import RequestError
from tests.runtime.beam_driver import Logprobs, run

EARLY_STOPPING = (False, True, "never")


def odds(values: list[int], vocab_size: int) -> Logprobs:
    """Log probabilities that depend on the whole history: multiples of 1/8, so that equal sums are frequent, or -inf."""

    @cache
    def row(history: tuple[int, ...]) -> list[float]:
        mixed = sum((place + 2) * (token + 1) * (token + 3) for place, token in enumerate(history))
        chosen = [values[(mixed + 7 * token) % len(values)] for token in range(vocab_size)]
        return [-math.inf if value == 25 else -value / 8 for value in chosen]

    return lambda histories: np.array([row(history) for history in histories], np.float32)


def reference(
    parameters: BeamParameters, max_tokens: int, stops: list[int], logprobs: Logprobs
) -> tuple[list[tuple[tuple[int, ...], float]], list[list[tuple[tuple[int, ...], float]]]]:
    """Ended sequences with scores, best first, and those that went on after each step; whole vocabularies, no -inf."""

    def score(total: float, length: int) -> float:
        return float(np.float32(total) / np.float32(length**parameters.length_penalty))

    running: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    ended: list[tuple[tuple[int, ...], float]] = []
    steps = []
    for length in range(1, max_tokens + 1):
        rows = logprobs([history for history, _ in running])
        candidates = [
            ((*history, token), total + float(rows[row, token]))
            for row, (history, total) in enumerate(running)
            for token in range(rows.shape[1])
            if rows[row, token] > -math.inf
        ]
        candidates.sort(key=lambda candidate: -candidate[1])
        ended += [
            (history, score(total, length))
            for history, total in candidates[: parameters.beams]
            if history[-1] in stops or length == max_tokens
        ]
        ended = sorted(ended, key=lambda one: -one[1])[: parameters.beams]
        running = [one for one in candidates if one[0][-1] not in stops][: parameters.beams]
        if length == max_tokens or not running:
            break
        if len(ended) == parameters.beams:
            grown = max_tokens if parameters.length_penalty > 0 else length
            best = score(running[0][1], grown if parameters.early_stopping == "never" else length)
            if parameters.early_stopping is True or best <= ended[-1][1]:
                break
        steps.append(running)
    return ended, steps


@settings(max_examples=300, deadline=None)
@given(
    values=st.lists(st.integers(0, 25), min_size=5, max_size=40),
    vocab_size=st.integers(2, 7),
    stop_count=st.integers(0, 3),
    beams=st.integers(2, 6),
    max_tokens=st.integers(1, 6),
    penalty=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]),
    early=st.sampled_from(EARLY_STOPPING),
)
def test_equals_a_plain_reference_with_ties_and_tokens_ruled_out(
    values: list[int],
    vocab_size: int,
    stop_count: int,
    beams: int,
    max_tokens: int,
    penalty: float,
    early: Any,
) -> None:
    stops = list(range(vocab_size))[::2][: min(stop_count, vocab_size - 1)]
    parameters = BeamParameters(beams, penalty, early, return_sequences=beams)
    logprobs = odds(values, vocab_size)
    results, steps = run(BeamSearch(parameters, max_tokens, stops, vocab_size), logprobs)
    expected, went_on = reference(parameters, max_tokens, stops, logprobs)
    assert [(one.tokens, one.score) for one in results] == expected
    histories: list[tuple[int, ...]] = [()]
    for choices, live in zip(steps[:-1], went_on, strict=True):
        assert len(choices) == beams
        histories = [(*histories[choice.parent], choice.token) for choice in choices]
        scored = zip(histories, choices, strict=True)
        assert [(history, one.score) for history, one in scored if one.score > -math.inf] == live
    wide, _ = run(BeamSearch(parameters, max_tokens, stops, vocab_size), logprobs, width=vocab_size)
    assert wide == results


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.integers(0, 24), min_size=20, max_size=40),
    penalty=st.sampled_from([-1.0, 0.0, 0.7, 1.0, 3.0]),
)
def test_finds_the_best_sequences_of_all_when_there_are_beams_enough(
    values: list[int], penalty: float
) -> None:
    logprobs = odds(values, 3)
    totals: dict[tuple[int, ...], float] = {}
    for tokens in itertools.chain.from_iterable(
        itertools.product(range(3), repeat=length) for length in (1, 2, 3)
    ):
        if 2 not in tokens[:-1] and (tokens[-1] == 2 or len(tokens) == 3):
            total = sum(float(logprobs([tokens[:place]])[0, token]) for place, token in enumerate(tokens))
            totals[tokens] = float(np.float32(total) / np.float32(len(tokens) ** penalty))
    parameters = BeamParameters(16, penalty, "never", return_sequences=15)
    results, _ = run(BeamSearch(parameters, 3, [2], 3), logprobs)
    assert {one.tokens: one.score for one in results} == totals
    assert [one.score for one in results] == sorted(totals.values(), reverse=True)


def test_equal_sums_go_by_beam_then_by_token() -> None:
    search = BeamSearch(BeamParameters(3, return_sequences=3), 2, [], 4)
    first = search.start(np.array([2, 0, 3]), np.array([-1.0, -1.0, -1.0]))
    assert first == [Choice(0, 0, -1.0), Choice(0, 2, -1.0), Choice(0, 3, -1.0)]
    assert search.advance(np.array([[3, 1, 2]] * 3), np.full((3, 3), -1.0)) == []
    assert [one.tokens for one in search.results()] == [(0, 1), (0, 2), (0, 3)]


def test_a_search_with_nothing_left_ends_with_what_has_ended() -> None:
    parameters = BeamParameters(2, return_sequences=2)
    search = BeamSearch(parameters, 5, [1], 6)
    assert search.start(np.array([1, 0, 2]), np.array([-0.5, -math.inf, -math.inf])) == []
    assert search.done
    assert search.results() == [Hypothesis((1,), -0.5, (-0.5,), stopped=True)]
    nothing = BeamSearch(parameters, 5, [1], 6)
    nothing.start(np.array([0, 1, 2]), np.full(3, -math.inf))
    assert (nothing.done, nothing.results()) == (True, [])


def test_a_row_without_a_continuation_is_there_all_the_same() -> None:
    search = BeamSearch(BeamParameters(3), 5, [], 6)
    choices = search.start(np.array([4, 0, 1]), np.array([0.0, -math.inf, -math.inf]))
    assert choices[0] == Choice(0, 4, 0.0)
    assert [(one.parent, one.score) for one in choices[1:]] == [(0, -math.inf)] * 2
    assert all(0 <= one.token < 6 for one in choices)


def test_histories_take_no_memory_beyond_what_they_were_made_with() -> None:
    beams, tokens = 4, 1000
    search = BeamSearch(BeamParameters(beams), tokens, [], 100)
    ids, top = np.arange(16).reshape(beams, 4), np.linspace(-2, -1, 16).reshape(beams, 4)
    search.start(ids[0], top[0])
    tracemalloc.start()
    while not search.done:
        search.advance(ids, top)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert search.length == tokens
    assert peak < 16_000  # a copy of one buffer would be 32,000


def test_candidates_of_a_row_are_beams_and_stop_ids_within_the_vocabulary() -> None:
    assert BeamSearch(BeamParameters(4), 1, [], 100).candidates_per_row == 4
    assert BeamSearch(BeamParameters(4), 1, [5, 6, 6], 100).candidates_per_row == 6
    assert BeamSearch(BeamParameters(4), 1, [5, 200, -1], 100).candidates_per_row == 5
    assert BeamSearch(BeamParameters(4), 1, [0], 3).candidates_per_row == 3
    assert BeamSearch(BeamParameters(16), 1, range(16), 100).candidates_per_row == MAX_CANDIDATES == MAX_TOP
    with pytest.raises(RequestError, match="stop_ids: expected at most 16 beside 16 beams, got 17"):
        BeamSearch(BeamParameters(16), 1, range(17), 100)
    with pytest.raises(
        RequestError, match="stop_ids: expected fewer than the 3 ids of the vocabulary, got all"
    ):
        BeamSearch(BeamParameters(2), 1, [0, 1, 2], 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"beams": 1}, "beams: expected a whole number from 2 to 16, got 1"),
        ({"beams": 17}, "beams: expected a whole number from 2 to 16, got 17"),
        ({"beams": True}, "beams: expected a whole number from 2 to 16, got True"),
        ({"beams": 2.0}, "beams: expected a whole number from 2 to 16, got 2.0"),
        ({"length_penalty": math.nan}, "length_penalty: expected a number from -7.0 to 7.0, got nan"),
        ({"length_penalty": 8}, "length_penalty: expected a number from -7.0 to 7.0, got 8"),
        ({"length_penalty": "1"}, "length_penalty: expected a number from -7.0 to 7.0, got '1'"),
        ({"early_stopping": 1}, "early_stopping: expected true, false or 'never', got 1"),
        ({"early_stopping": "no"}, "early_stopping: expected true, false or 'never', got 'no'"),
        ({"return_sequences": 0}, "return_sequences: expected a whole number from 1 to the 4 beams, got 0"),
        ({"return_sequences": 5}, "return_sequences: expected a whole number from 1 to the 4 beams, got 5"),
    ],
)
def test_bad_parameters_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        BeamParameters(**({"beams": 4} | values))


def test_a_search_is_started_once_and_advanced_until_done() -> None:
    search = BeamSearch(BeamParameters(2), 2, [], 10)
    ids, top = np.array([[1, 2], [3, 4]]), np.array([[-1.0, -2.0], [-1.0, -2.0]])
    with pytest.raises(BeamOrderError, match="advance: start comes first"):
        search.advance(ids, top)
    search.start(ids[0], top[0])
    with pytest.raises(BeamOrderError, match="start: the search has started"):
        search.start(ids[0], top[0])
    search.advance(ids, top)
    with pytest.raises(BeamOrderError, match="advance: the search is over"):
        search.advance(ids, top)


def test_rows_of_another_shape_or_with_nan_are_refused() -> None:
    search = BeamSearch(BeamParameters(2), 4, [], 10)
    ids, top = np.array([[1, 2], [3, 4]]), np.array([[-1.0, -2.0], [-1.0, -2.0]])
    with pytest.raises(ValueError, match=r"top_ids: expected shape \(2,\) or wider, got \(2, 2\)"):
        search.start(ids, top)
    with pytest.raises(ValueError, match=r"top_ids: expected shape \(2,\) or wider, got \(1,\)"):
        search.start(ids[0, :1], top[0, :1])
    search.start(ids[0], top[0])
    with pytest.raises(ValueError, match=r"top_ids: expected shape \(2, 2\) or wider, got \(1, 2\)"):
        search.advance(ids[:1], top[:1])
    with pytest.raises(
        ValueError, match=r"top_logprobs: expected shape \(2, 2\) as top_ids has, got \(2, 1\)"
    ):
        search.advance(ids, top[:, :1])
    with pytest.raises(RequestError, match="the log probabilities hold NaN"):
        search.advance(ids, np.full((2, 2), math.nan))
    assert search.length == 1
