"""What the tests of the norms and of SiLU share: random rows, poison, and comparisons of 16-bit floats."""

from collections.abc import Callable

import pytest
import torch

from kernels.rounding import FLOAT32_ERROR, share_outside

GPU = torch.cuda.is_available()
DTYPES = [torch.bfloat16, torch.float16]
BACKENDS = [
    "triton",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not GPU, reason="needs a GPU: CUDA C++ is not interpreted")
    ),
]

# How often a value may round to its neighbour, where what float32 gave before the rounding is not at hand, and by how
# many steps. With a relative error of 2^-20 a value that rounds to p bits lands on the other side in 2^(p - 20) of cases,
# twice that for two float32 results, and again for what values of one significand in a row do together (see
# `kernels.rounding`). A flip, times a second factor, is 2 steps at most.
FLIPS = {torch.bfloat16: 2.0**-10, torch.float16: 2.0**-7}
STEPS = 2


def normal(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=generator, device=generator.device).to(dtype)


def poisoned(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return (
        torch.full((*shape, dtype.itemsize), 0x7F, dtype=torch.uint8, device=device).view(dtype).squeeze(-1)
    )


def assert_rounds_alike(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for a few values, which are neighbours: both are 16-bit floats, whose steps are their bit patterns."""
    assert actual.dtype == expected.dtype
    order = [t.view(torch.int16).int() for t in (actual.contiguous(), expected.contiguous())]
    order = [torch.where(bits < 0, -32768 - bits, bits) for bits in order]
    steps = (order[0] - order[1]).abs()
    assert actual.isfinite().all()
    assert steps.max() <= STEPS
    assert (steps > 0).sum() <= 3 + FLIPS[actual.dtype] * actual.numel()


def assert_rounds_between(
    actual: torch.Tensor, reference: Callable[..., torch.Tensor], *arguments: object
) -> None:
    """Every value is one that float32's rounding explains: see `kernels.rounding`."""
    ends = [reference(*arguments, error=error) for error in (-FLOAT32_ERROR, FLOAT32_ERROR)]
    assert actual.dtype == ends[0].dtype
    assert share_outside(actual, *ends) == 0


def bits(tensor: torch.Tensor) -> torch.Tensor:
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.dtype.itemsize]
    return tensor.contiguous().view(kind)
