"""Kernels with planted faults: operations that a build must refuse, and memory errors that a sanitizer must find.

`python -m tests.kernels.planted FAULT` runs one on a GPU.
"""

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch
import triton
import triton.language as tl

from kernels import cuda, registry
from kernels.launch import BuildCase, launch, meta


@triton.jit
def copy_kernel(source, destination, count, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(destination + index, tl.load(source + index, mask=index < count), mask=index < count)


@triton.jit
def to_fp8_kernel(source, destination, count, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(source + index, mask=index < count, other=0.0)
    tl.store(destination + index, values.to(tl.float8e4nv), mask=index < count)


@triton.jit
def product_kernel(left, right, out, BLOCK: tl.constexpr):
    rows, columns = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    product = tl.dot(tl.load(left + rows * BLOCK + columns), tl.load(right + rows * BLOCK + columns))
    tl.store(out + rows * BLOCK + columns, product)


def _plain() -> None:
    launch(copy_kernel, (1,), meta(64, dtype=torch.float32), meta(64, dtype=torch.float32), 64, BLOCK=64)


def _fp8() -> None:
    launch(
        to_fp8_kernel, (1,), meta(64, dtype=torch.float32), meta(64, dtype=torch.float8_e4m3fn), 64, BLOCK=64
    )


def _spilling() -> None:
    # 64 x 64 float32 accumulators in one warp: 128 registers a thread for them, and as many again for the operands.
    _product(128, num_warps=1)


def _too_much_shared() -> None:
    # Two float32 operands of 256 x 256 are 512 KiB, more than any block has.
    _product(256, num_warps=8)


def _product(block: int, num_warps: int) -> None:
    tensors = [meta(block, block, dtype=torch.float32) for _ in range(3)]
    launch(product_kernel, (1,), *tensors, BLOCK=block, num_warps=num_warps)


def _broken() -> None:
    raise ValueError("rows: expected 4, got 3")


CASES = {
    "plain": BuildCase("planted/plain", _plain),
    "fp8": BuildCase("planted/fp8", _fp8, needs=frozenset({"fp8"})),
    "undeclared_fp8": BuildCase("planted/undeclared_fp8", _fp8),
    "spilling": BuildCase("planted/spilling", _spilling),
    "too_much_shared": BuildCase("planted/too_much_shared", _too_much_shared),
    "broken": BuildCase("planted/broken", _broken),
    "silent": BuildCase("planted/silent", lambda: None),
}


def install(*names: str) -> None:
    """Make `kernels.planted` an operation of the registry with the named cases, and the only one."""
    module = ModuleType("kernels.planted")

    def build_cases() -> Iterator[BuildCase]:
        return iter([CASES[name] for name in names])

    module.__dict__["build_cases"] = build_cases
    sys.modules["kernels.planted"] = module
    registry.OPERATIONS = ("planted",)


def write_out_of_bounds() -> None:
    """Write 64 floats past an allocation of 64."""
    source = torch.randn(128, device="cuda")
    destination = torch.empty(64, device="cuda")
    copy_kernel[(2,)](source, destination, 128, BLOCK=64)
    torch.cuda.synchronize()


def race() -> None:
    """Two warps of a block write and read one word of shared memory with no barrier between."""
    library = cuda.Library(str(Path(__file__).parent / "planted.cu"), {"planted_race": (ctypes.c_void_p,)})
    out = torch.zeros(64, device="cuda")
    library("planted_race", out.data_ptr())
    torch.cuda.synchronize()


if __name__ == "__main__":
    {"out_of_bounds": write_out_of_bounds, "race": race}[sys.argv[1]]()
