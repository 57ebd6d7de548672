"""How a check tells rounding from an error, where a float32 intermediate rounds to 16 bits.

Counting the values that differ from a float64 reference does not tell them apart. A bfloat16 has 128 significands, so a
row times one float32 factor comes close to a tie for all values of one significand at once: of a row of 1024 none
differ, or eight and more do. Rounding is monotone, though. Where the intermediate is within a relative error of the
exact one, every rounded value lies between what the two ends of that error round to, whatever the numbers.
"""

import torch

FLOAT32_ERROR = 2.0**-19
"""More than the relative error of the intermediates of `rms_norm` and `silu_mul`; 32 of float32's roundings, 2^-24 each.

The norm's factor and its product with x, 27 roundings: sums of 16384 squares at most (those of 16-bit floats are exact)
pass through 41 additions (32 in a thread, 5 in a warp, 4 between warps), the quotient by the width is 4, eps is 1; the
root halves these 46 to 23; the inverse root is 3 (2^-22.9 by its documentation), the product is 1.
The SiLU of |gate| up to 12, 24 roundings: the exponential's argument is 1.25 |gate| = 15, the exponential is 4, its sum
with one is 1, the quotient is 4.
"""


def share_outside(actual: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> float:
    """The share of values, of any one shape, that are not between those of `one` and `other`; NaN is outside."""
    actual, one, other = (tensor.double() for tensor in (actual, one, other))
    inside = (actual >= torch.minimum(one, other)) & (actual <= torch.maximum(one, other))
    return 1 - inside.double().mean().item()
