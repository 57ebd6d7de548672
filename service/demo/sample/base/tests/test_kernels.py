import numpy as np
import pytest

from quire import kernels, numerics

if not kernels.available():
    pytest.skip("needs torch, Triton and a GPU", allow_module_level=True)

import torch

from quire.kernels.quantize import quantize_rows
from quire.kernels.softmax import softmax


@pytest.mark.parametrize("width", [1, 80, 128])
def test_softmax_matches_torch(width):
    x = torch.randn(7, width, device="cuda")
    torch.testing.assert_close(softmax(x), torch.softmax(x, dim=1))


@pytest.mark.parametrize("width", [1, 80, 128])
def test_quantize_rows_matches_the_reference(width):
    x = torch.randn(7, width, device="cuda")
    codes, scales = numerics.quantize_rows(x.cpu().numpy())
    ours = quantize_rows(x)
    np.testing.assert_allclose(ours[1].cpu().numpy(), scales, rtol=1e-6)
    assert np.abs(ours[0].cpu().numpy().astype(int) - codes).max() <= 1
