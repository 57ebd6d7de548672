import numpy as np
import pytest

from quire import kernels, numerics

if not kernels.available():
    pytest.skip("needs torch, Triton and a GPU", allow_module_level=True)

import torch

from quire.kernels.quantize import quantize_rows, scatter_rows
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


@pytest.mark.parametrize("width", [1, 80, 128])
def test_scatter_rows_fills_the_slots_it_is_given_and_no_other(width):
    x = torch.randn(3, width, device="cuda")
    codes = torch.zeros(2, 4, width, dtype=torch.int8, device="cuda")
    scales = torch.ones(2, 4, device="cuda")
    scatter_rows(x, torch.tensor([1, 6, 7], dtype=torch.int32, device="cuda"), codes, scales)
    expected, expected_scales = quantize_rows(x)
    assert torch.equal(codes.view(8, width)[[1, 6, 7]], expected)
    assert torch.equal(scales.view(8)[[1, 6, 7]], expected_scales)
    assert not codes.view(8, width)[[0, 2, 3, 4, 5]].any()
