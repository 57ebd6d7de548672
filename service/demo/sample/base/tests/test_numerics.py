import numpy as np

from quire.numerics import SMALLEST_SCALE, quantize_rows, row_scales


def test_a_row_of_zeros_has_a_positive_scale_and_zero_codes():
    rows = np.zeros((1, 8), np.float32)
    codes, scales = quantize_rows(rows)
    assert scales[0] == np.float32(SMALLEST_SCALE)
    assert not codes.any()


def test_codes_times_scale_come_within_half_a_scale_of_the_row():
    rows = np.random.default_rng(0).normal(size=(50, 33)).astype(np.float32)
    codes, scales = quantize_rows(rows)
    assert (np.abs(codes * scales[:, None] - rows) <= scales[:, None] * 0.5001).all()


def test_no_rows_have_no_scales():
    assert row_scales(np.zeros((0, 4), np.float32)).shape == (0,)
