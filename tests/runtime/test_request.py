"""Requests are checked at the door; each error names the field, what was expected and what came."""

import pytest

from runtime.request import RequestError, SamplingParameters, check_prompt


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -1}, "temperature: expected a finite number of at least 0, got -1.0"),
        ({"temperature": float("nan")}, "temperature: expected a finite number of at least 0, got nan"),
        ({"temperature": float("inf")}, "temperature: expected a finite number of at least 0, got inf"),
        ({"temperature": "hot"}, "temperature: unexpected value 'hot'"),
        ({"temperature": True}, "temperature: unexpected value True"),
        ({"top_k": -1}, r"top_k: expected at least 0 \(0: all\), got -1"),
        ({"top_k": 1.5}, "top_k: unexpected value 1.5"),
        ({"top_p": 0}, "top_p: expected above 0 and at most 1, got 0.0"),
        ({"min_p": 2}, "min_p: expected from 0 to 1, got 2.0"),
        ({"max_tokens": 0}, "max_tokens: expected at least 1, got 0"),
        ({"seed": -4}, r"seed: expected from 0 to 2\^63 - 1, got -4"),
        ({"logprobs": 21}, "logprobs: expected from 0 to 20, got 21"),
        ({"stop": "end"}, "stop: unexpected value 'end'"),
        ({"stop_ids": ["7"]}, r"stop_ids: unexpected value \['7'\]"),
        ({"ignore_stop_ids": 1}, "ignore_stop_ids: unexpected value 1"),
        ({"presence_penalty": 3}, "presence_penalty: expected a number from -2 to 2, got 3"),
        ({"processors": None}, "processors: no such sampling field"),
        (
            {"topk": 4},
            "topk: no such sampling field; there are frequency_penalty, ignore_stop_ids, logit_bias,",
        ),
    ],
)
def test_bad_sampling_fields_are_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SamplingParameters.parse(values)


def test_good_fields_are_taken() -> None:
    assert SamplingParameters.parse(
        {"temperature": 1, "stop": ["\n"], "stop_ids": [7], "seed": 3}
    ) == SamplingParameters(temperature=1.0, stop=("\n",), stop_ids=frozenset({7}), seed=3)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "prompt: expected at least one token, got none"),
        ([5] * 15, r"prompt: expected at most 14 tokens \(length limit 16, less max_tokens 2\), got 15"),
        ([1, 100], "prompt: expected token ids from 0 to 99, got 100 at 1"),
        ([-1], "prompt: expected token ids from 0 to 99, got -1 at 0"),
        ([1, "2"], "prompt: expected token ids from 0 to 99, got '2' at 1"),
    ],
)
def test_bad_prompts_are_refused(prompt: list[int], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check_prompt(prompt, vocab_size=100, max_length=16, max_tokens=2)


def test_the_longest_prompt_that_fits_is_taken() -> None:
    assert check_prompt([5] * 14, vocab_size=100, max_length=16, max_tokens=2) == (5,) * 14
