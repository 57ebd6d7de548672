"""What the tests of fused_copy and of its plans share."""

from __future__ import annotations

import pytest
import torch

from kernels import cuda

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
needs_gpu = pytest.mark.skipif(
    not ON_GPU, reason="needs a GPU: graphs, streams and sizes beyond the interpreter"
)
BACKENDS = [
    pytest.param("triton"),
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not (ON_GPU and cuda.available()), reason="needs a GPU and nvcc")
    ),
]


def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


def random_bytes(size: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, device=generator.device, generator=generator)


def random_lanes(size: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 1 << 30, (size,), dtype=torch.int32, device=generator.device, generator=generator)
