"""Frequencies against the papers' formulas in float64, and against transformers where it is installed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from kernels.rope_frequencies import axes_of_sections, cos_sin_table, inverse_frequencies

HEAD_DIM, THETA, LONGEST = 128, 1e6, 40_960
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0},
    YARN,
    {**YARN, "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 1.0, "beta_fast": 30, "truncate": False},
    {**YARN, "attention_factor": 0.9},
    LLAMA3,
]


def base(theta: float = THETA) -> torch.Tensor:
    return theta ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)


def compute(scaling: dict[str, Any] | None, **options: Any) -> tuple[torch.Tensor, float]:
    return inverse_frequencies(HEAD_DIM, THETA, scaling, max_positions=LONGEST, **options)


def require_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    # A power in float32 is off by its exponent's rounding times ln(theta) of at most 14, and a few roundings follow.
    torch.testing.assert_close(actual.double(), expected, rtol=24 * 2.0**-24, atol=0)


@pytest.mark.parametrize("scaling", [None, {"rope_type": "default"}, {"type": "mrope"}])
def test_the_base_is_a_geometric_series(scaling: dict[str, Any] | None) -> None:
    frequencies, factor = compute(scaling)
    assert frequencies.dtype == torch.float32
    assert factor == 1.0
    require_near(frequencies, base())


def test_linear_divides_every_frequency() -> None:
    require_near(compute({"type": "linear", "factor": 4})[0], base() / 4)


@pytest.mark.parametrize(("length", "stretch"), [(None, 1.0), (100, 1.0), (2 * LONGEST, 3.0)])
def test_dynamic_stretches_the_base_beyond_the_longest_trained(length: int | None, stretch: float) -> None:
    frequencies, factor = compute({"rope_type": "dynamic", "factor": 2.0}, sequence_length=length)
    assert factor == 1.0
    require_near(frequencies, base(THETA * stretch ** (HEAD_DIM / (HEAD_DIM - 2))))


def test_yarn_keeps_fast_frequencies_and_divides_slow_ones() -> None:
    frequencies, factor = compute(YARN)
    assert factor == pytest.approx(0.1 * math.log(4) + 1)
    turns = 32_768 * base() / (2 * math.pi)
    index = torch.arange(HEAD_DIM // 2)
    fast, slow = index <= int((turns >= 32).sum()) - 1, index >= int((turns > 1).sum()) + 1
    require_near(frequencies[fast], base()[fast])
    require_near(frequencies[slow], base()[slow] / 4)
    between = ~fast & ~slow
    assert (frequencies[between] <= base()[between].float()).all()
    assert (frequencies[between] >= (base()[between] / 4).float()).all()
    assert (frequencies.diff() < 0).all()


def test_llama3_keeps_short_waves_divides_long_ones_and_blends_between() -> None:
    frequencies, factor = compute(LLAMA3)
    assert factor == 1.0
    waves = 2 * math.pi / base()
    blend = ((8192 / waves - 1) / 3).clamp(0, 1)
    expected = base() * (blend + (1 - blend) / 8)
    torch.testing.assert_close(frequencies.double(), expected, rtol=64 * 2.0**-24, atol=0)
    assert 0 < int(((blend > 0) & (blend < 1)).sum()) < HEAD_DIM // 2


@pytest.mark.parametrize("scaling", SCALINGS[1:], ids=lambda s: s["rope_type"])
@pytest.mark.parametrize("length", [None, 100_000])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_equals_transformers_to_the_bit(scaling: dict[str, Any], length: int | None, head_dim: int) -> None:
    utilities = pytest.importorskip("transformers.modeling_rope_utils")
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3Config(
        head_dim=head_dim, max_position_embeddings=LONGEST, rope_parameters={**scaling, "rope_theta": THETA}
    )
    expected, factor = utilities.ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, None, seq_len=length)
    actual, ours = inverse_frequencies(
        head_dim, THETA, scaling, max_positions=LONGEST, sequence_length=length
    )
    assert torch.equal(actual, expected)
    assert ours == factor


def test_the_table_holds_cosines_then_sines_times_the_factor() -> None:
    frequencies = torch.tensor([1.0, 0.25])
    table = cos_sin_table(frequencies, 2.0, 5)
    assert table.shape == (5, 4)
    angles = torch.arange(5.0)[:, None] * frequencies
    assert torch.equal(table, 2 * torch.cat([angles.cos(), angles.sin()], 1))


def test_sections_follow_each_other_or_take_turns() -> None:
    assert axes_of_sections([3, 2, 1]).tolist() == [0, 0, 0, 1, 1, 2]
    assert axes_of_sections([4, 2, 1], interleaved=True).tolist() == [0, 1, 2, 0, 1, 0, 0]
    assert axes_of_sections([24, 20, 20], interleaved=True).bincount().tolist() == [24, 20, 20]


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        (
            {"rope_type": "longrope"},
            "rope_type: expected one of default, mrope, linear, dynamic, yarn, llama3, got",
        ),
        ({"rope_type": "linear"}, "rope_scaling: expected an entry factor, got rope_type"),
        (
            {"rope_type": "linear", "factor": "2"},
            "rope_scaling: expected a positive number for factor, got '2'",
        ),
        ({"rope_type": "linear", "factor": 0}, "rope_scaling: expected a positive number for factor, got 0"),
        (
            {"rope_type": "yarn", "factor": [4]},
            r"rope_scaling: expected a positive number for factor, got \[4\]",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: expected 1, got 0.5"),
    ],
)
def test_a_bad_scaling_is_refused(scaling: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compute(scaling)


def test_a_base_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match=r"theta: expected a positive number, got 0\.0"):
        inverse_frequencies(64, 0.0, max_positions=LONGEST)


def test_an_odd_head_is_refused() -> None:
    with pytest.raises(ValueError, match="head_dim: expected an even number of at least 4, got 65"):
        inverse_frequencies(65, THETA, max_positions=LONGEST)
