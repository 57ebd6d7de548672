"""Inputs and comparisons of the tests of per_token_group_quant_8bit."""

import torch

from kernels import quantize
from kernels.cuda import available as cuda_available

ON_GPU = torch.cuda.is_available()
E4M3, INT8 = quantize.QUANTIZED_DTYPES
BACKENDS = ("cuda", "triton") if ON_GPU and cuda_available() else ("triton",)
POISON = 0x55


def spread(*shape: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """Random values whose magnitudes differ by several powers of ten, as activations' do."""
    x = torch.randn(shape, device=device, generator=generator)
    return (x * torch.exp(2 * torch.randn(shape, device=device, generator=generator))).to(dtype)


def poisoned(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    layout: str,
    groups: int,
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q and scales whose every byte is POISON, which no finite test result is made of throughout."""
    q = torch.full(shape, POISON, dtype=torch.uint8, device=device).view(dtype)
    scales = quantize.allocate_scales(
        shape[-2], groups, layout, device, shape[0] if len(shape) == 3 else None
    )
    words = torch.full(scales.shape, POISON * 0x01010101, dtype=torch.int32, device=device)
    scales.copy_(words.view(scales.dtype))
    return q, scales


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def assert_same_bits(actual: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> None:
    for name, one, other in zip(("q", "scales"), actual, wanted, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        wrong = int((bits(one) != bits(other)).sum())
        assert wrong == 0, f"{wrong} of {bits(one).numel()} bytes of {name} differ"
