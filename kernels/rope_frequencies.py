"""Rotary frequencies from a model's configuration, and the table of cosines and sines that `rope_kv_write` reads.

Everything is computed in float32 in the order of Hugging Face's `modeling_rope_utils`, so that a float32 model agrees
with transformers to the bit: an angle is float32(position) * float32(inverse frequency), rounded once.

Sources: linear, position interpolation, https://arxiv.org/abs/2306.15595; dynamic, NTK-aware scaling; yarn,
https://arxiv.org/abs/2309.00071; llama3, the Llama 3.1 release; mRoPE, https://arxiv.org/abs/2409.12191.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from kernels import contract

Scaling = Mapping[str, Any]


def inverse_frequencies(
    head_dim: int,
    theta: float,
    scaling: Scaling | None = None,
    *,
    max_positions: int,
    sequence_length: int | None = None,
) -> tuple[torch.Tensor, float]:
    """Radians a position, float32 [head_dim/2] on the CPU, and the factor that cosines and sines are multiplied with.

    Args:
        head_dim: all of it is rotated.
        theta: the base, `rope_theta`.
        scaling: Hugging Face's `rope_scaling` or `rope_parameters`; its `rope_type` (or `type`) is default, linear,
            dynamic, yarn or llama3, or mrope, which is default (see `axes_of_sections`).
        max_positions: `max_position_embeddings`.
        sequence_length: for dynamic, the longest sequence; beyond `max_positions` it stretches the base.

    Raises:
        ValueError: an unknown type, an entry that is missing or no positive number, or a part of the head that is not
            rotated.
    """
    if head_dim < 4 or head_dim % 2:
        raise ValueError(f"head_dim: expected an even number of at least 4, got {head_dim}")
    if theta <= 0:
        raise ValueError(f"theta: expected a positive number, got {theta}")
    scaling = scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    contract.require_value("rope_type", kind, tuple(_KINDS))
    if scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"partial_rotary_factor: expected 1, got {scaling['partial_rotary_factor']}")
    return _KINDS[kind](head_dim, theta, scaling, max_positions, sequence_length)


def cos_sin_table(frequencies: torch.Tensor, factor: float, positions: int) -> torch.Tensor:
    """Cosines, then sines, of every position below `positions`: float32 [positions, head_dim], where `frequencies` is."""
    angles = torch.arange(positions, dtype=torch.float32, device=frequencies.device)[:, None] * frequencies
    return torch.cat([angles.cos() * factor, angles.sin() * factor], dim=1)


def axes_of_sections(sections: Sequence[int], *, interleaved: bool = False) -> torch.Tensor:
    """The axis (0 time, 1 height, 2 width) whose position turns each frequency: int32 [sum of `sections`].

    Args:
        sections: `mrope_section`, frequencies of each axis.
        interleaved: axes take turns while they have frequencies left, the rest is time's (`mrope_interleaved`,
            Qwen3-VL); otherwise one section follows the other (Qwen2-VL).
    """
    if not interleaved:
        return torch.repeat_interleave(torch.arange(len(sections)), torch.tensor(list(sections))).int()
    axes = torch.zeros(sum(sections), dtype=torch.int32)
    for axis, count in enumerate(sections[1:], start=1):
        axes[axis : count * len(sections) : len(sections)] = axis
    return axes


def _default(
    head_dim: int, theta: float, scaling: Scaling, max_positions: int, length: int | None
) -> tuple[torch.Tensor, float]:
    return 1.0 / _powers(head_dim, theta), 1.0


def _linear(
    head_dim: int, theta: float, scaling: Scaling, max_positions: int, length: int | None
) -> tuple[torch.Tensor, float]:
    return 1.0 / _powers(head_dim, theta) / _entry(scaling, "factor"), 1.0


def _dynamic(
    head_dim: int, theta: float, scaling: Scaling, max_positions: int, length: int | None
) -> tuple[torch.Tensor, float]:
    factor = _entry(scaling, "factor")
    length = max(length or 0, max_positions)
    stretch = (factor * length / max_positions) - (factor - 1)
    return 1.0 / _powers(head_dim, theta * stretch ** (head_dim / (head_dim - 2))), 1.0


def _yarn(
    head_dim: int, theta: float, scaling: Scaling, max_positions: int, length: int | None
) -> tuple[torch.Tensor, float]:
    original = _entry(scaling, "original_max_position_embeddings", max_positions)
    factor = _entry(scaling, "factor", max_positions / original)

    def turning(rotations: float) -> float:
        """The index of the frequency that turns so many times within the original length."""
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = turning(_entry(scaling, "beta_fast", 32)), turning(_entry(scaling, "beta_slow", 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp
    kept = 1 - torch.clamp((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low), 0, 1)
    powers = _powers(head_dim, theta)
    frequencies = 1.0 / (factor * powers) * (1 - kept) + 1.0 / powers * kept

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    attention = scaling.get("attention_factor")
    if attention is None:
        numerator, denominator = scaling.get("mscale"), scaling.get("mscale_all_dim")
        attention = (
            magnitude(numerator) / magnitude(denominator) if numerator and denominator else magnitude(1.0)
        )
    return frequencies, float(attention)


def _llama3(
    head_dim: int, theta: float, scaling: Scaling, max_positions: int, length: int | None
) -> tuple[torch.Tensor, float]:
    factor, original = _entry(scaling, "factor"), _entry(scaling, "original_max_position_embeddings")
    low, high = _entry(scaling, "low_freq_factor"), _entry(scaling, "high_freq_factor")
    frequencies = 1.0 / _powers(head_dim, theta)
    wavelengths = 2 * math.pi / frequencies
    stretched = torch.where(wavelengths > original / low, frequencies / factor, frequencies)
    smooth = (original / wavelengths - low) / (high - low)
    between = (1 - smooth) * stretched / factor + smooth * stretched
    medium = (wavelengths >= original / high) & (wavelengths <= original / low)
    return torch.where(medium, between, stretched), 1.0


_Kind = Callable[[int, float, Scaling, int, int | None], tuple[torch.Tensor, float]]
_KINDS: dict[str, _Kind] = {
    "default": _default,
    "mrope": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
}


def _powers(head_dim: int, theta: float) -> torch.Tensor:
    return theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)


def _entry(scaling: Scaling, name: str, default: float | None = None) -> float:
    """A positive number; `default`, where there is one, stands for an entry of None or 0 too, as in transformers."""
    value = scaling.get(name)
    if not value and default is not None:
        return default
    if name not in scaling:
        raise ValueError(f"rope_scaling: expected an entry {name}, got {', '.join(sorted(scaling))}")
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ValueError(f"rope_scaling: expected a positive number for {name}, got {value!r}")
    return value
