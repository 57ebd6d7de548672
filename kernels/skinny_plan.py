"""Which kernel of `skinny_gemm` a shape takes, and how it is launched."""

from dataclasses import dataclass

import triton

from kernels import target
from kernels.skinny_kernels import MAX_SPLIT

COUNTERS = 4096
SCALE_BLOCK = 128


@dataclass(frozen=True)
class Vector:
    """Launch of `vector_kernel`: `tiles` tiles of `block_n` rows a program, `unroll` chunks in flight."""

    block_n: int
    tiles: int
    chunk: int
    unroll: int
    warps: int


@dataclass(frozen=True)
class Matrix:
    """Launch of `matrix_kernel`."""

    block_n: int
    block_k: int
    split: int
    stages: int
    warps: int
    swap: bool
    prefetch: int


def plan_of(rows: int, features: int, width: int, *, fp8: bool, silu: bool, norm: bool) -> Vector | Matrix:
    """The launch for a shape; `features` are out's. Measured on an H200."""
    if rows <= 2 or (rows <= 4 and features <= 16384):
        return _vector_fp8_plan(width, silu) if fp8 else _vector_plan(rows, features, width, silu, norm)
    return _matrix_plan(rows, features, width, fp8, silu)


def _vector_plan(rows: int, features: int, width: int, silu: bool, norm: bool) -> Vector:
    """All of a row in flight where registers hold it, else a divisor of it; then as many rows as they hold."""
    chunks = triton.cdiv(width, 256)
    if chunks > 12:
        return Vector(4, 2 if silu else 1, 256, next((n for n in (8, 7, 6, 5) if chunks % n == 0), 4), 4)
    # The norm's work is shared by a thread's rows: with it, more of them.
    if chunks == 4 and rows == 1 and features <= 16384 and not (silu and norm):
        return Vector(8, 2, 256, chunks, 8)
    return Vector(4, 4 if chunks <= 4 else 2 if chunks <= 8 or silu else 1, 256, chunks, 4)


def _vector_fp8_plan(width: int, silu: bool) -> Vector:
    chunks = triton.cdiv(width, SCALE_BLOCK)
    if chunks <= 8:
        return Vector(16, 2 if silu else 1, SCALE_BLOCK, 8, 4)
    return Vector(16, 2 if silu else 1, SCALE_BLOCK, 4 if silu else 8, 4)


def _matrix_plan(rows: int, features: int, width: int, fp8: bool, silu: bool) -> Matrix:
    few = rows <= 16
    small = target.current().shared_memory < 128 << 10
    if fp8:
        # Dequantizing takes more time than loading: several programs share a multiprocessor.
        block, stages = (32 if small and silu else 64), (3 if silu or small else 4)
        return Matrix(block, 128, _split(features, block, width, 4 if few else 2), stages, 4, False, 512)
    if features > 65536 and not silu:
        if small:
            return Matrix(128, 64, 1, 3, 4, False, 0)
        return Matrix(128, 128, 1, 3, 8, True, 0) if few else Matrix(128, 64, 1, 5, 4, False, 0)
    if few:
        split = 1 if silu and features > 2048 else _split(features, 64, width)
        return Matrix(64, 128, split, 2 if small else 3 if silu else 4, 4, True, 512)
    if silu:
        return Matrix(16, 128, 1, 2 if small else 4, 4, False, 1024)
    if features > 4096:
        return Matrix(64, 128, _split(features, 64, width), 2 if small else 4, 4, False, 512)
    return Matrix(32, 128, _split(features, 32, width), 2 if small else 4, 4, False, 1024)


def _split(features: int, block_n: int, width: int, programs: int = 1) -> int:
    """Parts of the width that give every multiprocessor so many programs, of 256 columns at least."""
    tiles = triton.cdiv(features, block_n)
    wanted = round(programs * target.current().multiprocessors / tiles)
    return max(1, min(MAX_SPLIT.value, wanted, width // 256, COUNTERS // tiles))
