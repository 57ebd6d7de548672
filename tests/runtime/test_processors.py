"""Processor parameters: what is out of range is refused by name, and what changes nothing says so."""

import math

import pytest

from runtime.processors import ProcessorParameters
from runtime.request import RequestError


def test_the_defaults_are_neutral() -> None:
    assert ProcessorParameters().is_neutral
    assert ProcessorParameters().flags == 0


@pytest.mark.parametrize(
    "field",
    [
        {"repetition_penalty": 1.1},
        {"presence_penalty": -0.5},
        {"frequency_penalty": 2.0},
        {"no_repeat_ngram_size": 3},
        {"min_tokens": 1},
        {"logit_bias": {0: -math.inf}},
    ],
    ids=str,
)
def test_each_field_alone_asks_for_processing(field: dict[str, object]) -> None:
    parameters = ProcessorParameters(**field)
    assert not parameters.is_neutral
    assert parameters.flags == 1


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty: expected a number from 0.01 to 100, got 0.0"),
        ({"repetition_penalty": math.nan}, "repetition_penalty: expected a number from 0.01 to 100, got nan"),
        ({"repetition_penalty": math.inf}, "repetition_penalty: expected a number from 0.01 to 100, got inf"),
        ({"presence_penalty": 2.1}, "presence_penalty: expected a number from -2 to 2, got 2.1"),
        ({"presence_penalty": True}, "presence_penalty: expected a number from -2 to 2, got True"),
        ({"frequency_penalty": -2.1}, "frequency_penalty: expected a number from -2 to 2, got -2.1"),
        ({"frequency_penalty": "1"}, "frequency_penalty: expected a number from -2 to 2, got '1'"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size: expected a whole number from 0 to 64, got -1"),
        ({"no_repeat_ngram_size": 65}, "no_repeat_ngram_size: expected a whole number from 0 to 64, got 65"),
        ({"no_repeat_ngram_size": 2.0}, "no_repeat_ngram_size: expected a whole number from 0 to 64, got 2.0"),
        ({"min_tokens": -1}, "min_tokens: expected a whole number from 0 to 2147483647, got -1"),
        ({"min_tokens": 1 << 31}, "min_tokens: expected a whole number from 0 to 2147483647, got 2147483648"),
        ({"logit_bias": [1, 2]}, "logit_bias: expected a mapping, got list"),
        ({"logit_bias": dict.fromkeys(range(301), 0.0)}, "logit_bias: expected at most 300 tokens, got 301"),
        ({"logit_bias": {-1: 0.0}}, "logit_bias: expected token ids of at least 0, got -1"),
        ({"logit_bias": {"5": 0.0}}, "logit_bias: expected token ids of at least 0, got '5'"),
        ({"logit_bias": {5: math.inf}}, "logit_bias: expected numbers from -10000 to 10000, or -inf, got inf for"),
        ({"logit_bias": {5: math.nan}}, "logit_bias: expected numbers from -10000 to 10000, or -inf, got nan for"),
        ({"logit_bias": {5: None}}, "logit_bias: expected numbers from -10000 to 10000, or -inf, got None for"),
    ],
)  # fmt: skip
def test_what_is_out_of_range_is_refused_by_name(field: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError) as refused:
        ProcessorParameters(**field)
    assert str(refused.value).startswith(message)


def test_a_bias_outside_the_vocabulary_is_refused() -> None:
    ProcessorParameters().check(10)
    parameters = ProcessorParameters(logit_bias={3: 1.0, 10: 1.0, 9: -1.0})
    parameters.check(11)
    with pytest.raises(RequestError, match=r"^logit_bias: expected token ids from 0 to 9, got 10$"):
        parameters.check(10)


def test_a_later_change_of_the_caller_s_mapping_changes_nothing() -> None:
    given = {1: 2.0}
    parameters = ProcessorParameters(logit_bias=given)
    given[-5] = math.nan
    assert parameters.logit_bias == {1: 2.0}
    assert hash(parameters) == hash(ProcessorParameters(logit_bias={1: 2.0}))
