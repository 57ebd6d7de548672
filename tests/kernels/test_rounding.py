"""What a check takes for float32's rounding, and what it does not."""

import pytest
import torch

from kernels.rounding import FLOAT32_ERROR, share_outside

NAN = float("nan")


@pytest.mark.parametrize(
    ("actual", "share"),
    [([1.0, -2.0], 0.0), ([1.5, -2.5], 0.0), ([0.99, -2.0], 0.5), ([1.0, -2.51], 0.5), ([NAN, -2.0], 0.5)],
)
def test_values_are_inside_between_both_ends_in_any_order(actual, share):
    ends = torch.tensor([1.0, -2.0]), torch.tensor([1.5, -2.5])
    assert share_outside(torch.tensor(actual), *ends) == share
    assert share_outside(torch.tensor(actual), *reversed(ends)) == share


def test_ends_that_are_nan_accept_nothing():
    assert share_outside(torch.ones(2), torch.full((2,), NAN), torch.ones(2)) == 1


def test_a_row_near_a_tie_rounds_apart_in_all_values_of_a_significand():
    """Why the check counts no values: half of this row differs, by one float32 rounding of its factor."""
    values = torch.tensor([1.0, 1.0078125]).repeat(512)
    factor = torch.tensor(1.00390625)  # halfway between two bfloat16 numbers
    down, up = ((values * torch.nextafter(factor, torch.tensor(end))).bfloat16() for end in (0.0, 2.0))
    assert (down != up).float().mean() >= 0.5
    low, high = (
        (values.double() * factor * (1 + error)).bfloat16() for error in (-FLOAT32_ERROR, FLOAT32_ERROR)
    )
    assert share_outside(down, low, high) == share_outside(up, low, high) == 0
    assert share_outside((values * factor * 1.01).bfloat16(), low, high) > 0.5
