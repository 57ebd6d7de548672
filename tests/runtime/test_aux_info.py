"""What is told of an output is the same one by one and stacked."""

import math
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.aux_info import COLUMNS, REASON_CODES, AuxInfo, stack, unstack
from runtime.request import FinishReason

ONE = AuxInfo(
    prompt_tokens=7,
    output_tokens=5,
    reused_prefix_tokens=4,
    steps=6,
    preemptions=1,
    cumulative_logprob=-3.25,
    time_to_first_token=0.5,
    total_time=2.0,
    finish_reason=FinishReason.LENGTH,
)
counts = st.integers(0, 1 << 53)
seconds = st.floats(0, allow_infinity=False) | st.just(math.nan)
infos = st.builds(
    AuxInfo,
    counts,
    counts,
    counts,
    counts,
    counts,
    st.floats(),
    seconds,
    seconds,
    st.sampled_from(FinishReason),
)


def comparable(info: AuxInfo) -> list[object]:
    """Values with their types; NaN equals itself."""
    return [(type(value), "nan" if value != value else value) for value in astuple(info)]


@given(st.lists(infos, max_size=6))
def test_both_forms_decode_to_the_same_values(given_infos: list[AuxInfo]) -> None:
    stacked = stack(given_infos)
    assert (stacked.dtype, stacked.shape) == (np.float64, (len(given_infos), len(COLUMNS)))
    assert [comparable(info) for info in unstack(stacked)] == [comparable(info) for info in given_infos]


def test_columns_are_in_the_documented_order() -> None:
    assert stack([ONE])[0].tolist() == [7, 5, 4, 6, 1, -3.25, 0.5, 2.0, 1]
    assert COLUMNS[0] == "prompt_tokens"
    assert COLUMNS[-1] == "finish_reason"
    assert [stack([replace(ONE, finish_reason=reason)])[0, -1] for reason in FinishReason] == [0, 1, 2, 3]


def test_every_finish_reason_has_a_code_of_its_own() -> None:
    assert REASON_CODES.keys() == set(FinishReason)
    assert len(set(REASON_CODES.values())) == len(REASON_CODES)


@pytest.mark.parametrize("name", COLUMNS[:5])
@pytest.mark.parametrize("value", [-1, (1 << 53) + 1])
def test_a_count_that_the_array_cannot_hold_is_refused(name: str, value: int) -> None:
    with pytest.raises(
        ValueError, match=f"row 1: {name}: expected a whole number from 0 to 2\\^53, got {value}"
    ):
        stack([ONE, replace(ONE, **{name: value})])


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (0, 1.5, "row 0: prompt_tokens: expected a whole number from 0 to 2\\^53, got 1.5"),
        (4, math.nan, "row 0: preemptions: expected a whole number from 0 to 2\\^53, got nan"),
        (3, math.inf, "row 0: steps: expected a whole number from 0 to 2\\^53, got inf"),
        (8, 4.0, "row 0: finish_reason: expected a code from 0 to 3, got 4.0"),
        (8, math.nan, "row 0: finish_reason: expected a code from 0 to 3, got nan"),
    ],
)
def test_values_that_are_none_are_refused(column: int, value: float, message: str) -> None:
    stacked = stack([ONE])
    stacked[0, column] = value
    with pytest.raises(ValueError, match=message):
        unstack(stacked)


@pytest.mark.parametrize("wrong", [np.zeros((2, 8)), np.zeros(9), np.zeros((2, 9), np.float32)])
def test_an_array_of_another_form_is_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"stacked: expected float64 \[n, 9\], got"):
        unstack(wrong)
