"""Rounding rules that the CPU and the GPU share, so that they give the same codes."""

from __future__ import annotations

import numpy as np

# The scale of a row of zeros. Any positive number serves: 0 divided by it is 0 again.
SMALLEST_SCALE = 1e-8


def row_scales(rows: np.ndarray) -> np.ndarray:
    """One positive scale a row, such that the row divided by it lies in [-127, 127].

    rows: float32 [n, width]. Returns float32 [n].
    """
    largest = np.abs(rows).max(axis=1, initial=0.0)
    return np.maximum(largest / 127.0, SMALLEST_SCALE).astype(np.float32)


def round_half_up(x: np.ndarray) -> np.ndarray:
    """Nearest integer, halves upwards: what `tl.floor(x + 0.5)` gives on the GPU."""
    return np.floor(x + 0.5)


def quantize_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int8 codes [n, width] and float32 scales [n], with codes * scale close to rows."""
    scales = row_scales(rows)
    return round_half_up(rows / scales[:, None]).astype(np.int8), scales
