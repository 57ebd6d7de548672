"""Matrix product of e4m3 activations and e4m3 weights, with scales for 1 x 128 and 128 x 128 blocks.

Contract, with N and K multiples of 128 and any M (M = 0 returns at once)
    a        [M, K] e4m3, rows contiguous
    a_scale  [M, K / 128] float32, any strides: row-major, column-major, column-major with padded columns
    b        [N, K] e4m3, rows contiguous: the weight as `torch.nn.Linear` holds it
    b_scale  [N / 128, K / 128] float32, any strides
    out      [M, N] bf16, rows contiguous
Rows of a, b and out begin on 16 bytes.

    out[m, n] = sum over blocks k of a_scale[m, k] * b_scale[n / 128, k] * (a[m, block k] . b[n, block k])

The tensor cores sum one block; the scaled blocks are summed in float32, because the sum inside the tensor cores keeps
only about 14 bits for e4m3 (DeepSeek-V3, arXiv 2412.19437, 3.3.2). The order of the sums is fixed: the same inputs
give the same bits.

Three ways, chosen by M and the machine: `cuda`, our own kernel for few tokens on Hopper, where the time is that of
reading the weights; `scaled_mm`, torch's call into cuBLAS, for many tokens on Hopper (the last one to three of a number that four does not divide go the other ways); `triton`,
everywhere.

Errors: ValueError naming argument, expected and actual.
"""

import ctypes
from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import product
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels import contract, cuda, launch, target

BLOCK = 128
BACKENDS = ("cuda", "scaled_mm", "triton")
MAX_CUDA_TOKENS = 128
"""The tokens that a block of `cuda` holds."""
VERY_FEW_TOKENS = 16
"""Up to here `triton` is the fastest."""
FEW_TOKENS = 64
"""Up to here `cuda` is faster than cuBLAS; it takes twice the tokens in more than the time."""
SCALED_MM_TOKENS = 4
"""cuBLAS wants a multiple of this: 16 bytes of the tokens' scales."""

_FEW_TOKENS = cuda.Library(
    "fp8_block_gemm.cu",
    {
        "fp8_block_gemm_few_tokens": [
            *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64),  # a, a_scale
            *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64),  # b, b_scale
            *(ctypes.c_void_p, ctypes.c_int64),  # out
            *(ctypes.c_int,) * 5,  # tokens, columns, blocks of K, columns of a block, blocks of a cluster
        ]
    },
)
_CUDA_COLUMNS = (16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128)
_CUDA_CLUSTER = 2
"""Blocks that share a read of the tokens; clusters of four do not fill an H200, whose parts hold 16 or 18 blocks."""


class Tiles(NamedTuple):
    """How a Triton launch is cut: tokens and columns of a tile, parts of K, warps, blocks of K in flight."""

    tokens: int
    columns: int
    splits: int
    warps: int
    stages: int


def fp8_block_gemm(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    backend: str | None = None,
) -> torch.Tensor:
    """Scaled product of `a` and the transpose of `b` (see the module for shapes).

    Args:
        out: where to write, by default a new tensor.
        backend: one of `BACKENDS`, by default the fastest that can take the arguments.

    Returns:
        `out`.

    Raises:
        ValueError: an argument breaks the contract, or `backend` cannot take the arguments.
    """
    _check(a, a_scale, b, b_scale, out)
    able = _able(a, b, b_scale, out)
    if backend is not None:
        contract.require_value("backend", backend, BACKENDS)
        if backend not in able:
            raise ValueError(f"backend: expected one of {', '.join(able)} for these arguments, got {backend}")
    if out is None:
        out = torch.empty(a.shape[0], b.shape[0], dtype=torch.bfloat16, device=a.device)
    if a.shape[0] == 0:
        return out
    match backend or able[0]:
        case "cuda":
            _launch_cuda(a, a_scale, b, b_scale, out)
        case "scaled_mm":
            _call_scaled_mm(a, a_scale, b, b_scale, out)
        case _:
            _launch_triton(a, a_scale, b, b_scale, out)
    return out


def fp8_block_gemm_reference(
    a: torch.Tensor, a_scale: torch.Tensor, b: torch.Tensor, b_scale: torch.Tensor
) -> torch.Tensor:
    """The product of the dequantized matrices in float64, [M, N]; any device."""
    weights = b_scale.double().repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1) * b.double()
    return (a_scale.double().repeat_interleave(BLOCK, 1) * a.double()) @ weights.mT


def build_cases() -> Iterator[launch.BuildCase]:
    """The library for few tokens; each tile of Triton's, split over K (few columns) and whole (many)."""
    fp8 = frozenset({"fp8"})
    yield launch.BuildCase(
        "fp8_block_gemm/cuda", partial(_build, 64, 7168, "cuda"), fp8 | frozenset({"wgmma"})
    )
    for tokens, columns in product((16, 64, 128), (1024, 65536)):
        yield launch.BuildCase(
            f"fp8_block_gemm/tokens={tokens},columns={columns}",
            partial(_build, tokens, columns, "triton"),
            fp8,
        )


def _build(tokens: int, columns: int, backend: str) -> None:
    fp8_block_gemm(
        launch.meta(tokens, 4096, dtype=torch.float8_e4m3fn),
        launch.meta(tokens, 4096 // BLOCK, dtype=torch.float32),
        launch.meta(columns, 4096, dtype=torch.float8_e4m3fn),
        launch.meta(columns // BLOCK, 4096 // BLOCK, dtype=torch.float32),
        backend=backend,
    )


def check(device: torch.device) -> tuple[float, float]:
    """One small pass against the reference: the largest error over the sum of magnitudes, and its bound."""
    generator = torch.Generator(device).manual_seed(1)
    a = torch.randn(20, 256, generator=generator, device=device).to(torch.float8_e4m3fn)
    b = torch.randn(128, 256, generator=generator, device=device).to(torch.float8_e4m3fn)
    a_scale = torch.rand(20, 2, generator=generator, device=device) + 0.5
    b_scale = torch.rand(1, 2, generator=generator, device=device) + 0.5
    out = fp8_block_gemm(a, a_scale, b, b_scale)
    magnitude = fp8_block_gemm_reference(a.float().abs(), a_scale, b.float().abs(), b_scale)
    error = (out - fp8_block_gemm_reference(a, a_scale, b, b_scale)).abs() / magnitude
    # Half a unit of bf16, and what the tensor cores' short sums lose (see the tests).
    return error.max().item(), 2.0**-8 + 2.0**-11


def _check(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    out: torch.Tensor | None,
) -> None:
    if "fp8" not in target.current().features:
        raise ValueError(
            f"device: expected one with fp8, got {target.current().arch}: {target.REASONS['fp8']}"
        )
    fp8, scales = torch.float8_e4m3fn, torch.float32
    contract.require(
        "a", a, dtype=fp8, shape=(None, None), rows_contiguous=True, aligned=contract.VECTOR_BYTES
    )
    tokens, k = a.shape
    device = a.device
    if k % BLOCK or not k:
        raise ValueError(f"a: expected K a multiple of {BLOCK}, got {k}")
    contract.require("a_scale", a_scale, dtype=scales, shape=(tokens, k // BLOCK), device=device)
    contract.require(
        "b", b, dtype=fp8, shape=(None, k), device=device, rows_contiguous=True, aligned=contract.VECTOR_BYTES
    )
    columns = b.shape[0]
    if columns % BLOCK or not columns:
        raise ValueError(f"b: expected N a multiple of {BLOCK}, got {columns}")
    contract.require("b_scale", b_scale, dtype=scales, shape=(columns // BLOCK, k // BLOCK), device=device)
    if out is not None:
        contract.require(
            "out",
            out,
            dtype=torch.bfloat16,
            shape=(tokens, columns),
            device=device,
            rows_contiguous=True,
            aligned=contract.VECTOR_BYTES,
        )
    for name, tensor in (("a", a), ("b", b), ("out", out)):
        if tensor is not None and tensor.stride(0) * tensor.element_size() % contract.VECTOR_BYTES:
            raise ValueError(f"{name}: expected rows on 16 bytes, got a stride of {tensor.stride(0)}")


def _able(a: torch.Tensor, b: torch.Tensor, b_scale: torch.Tensor, out: torch.Tensor | None) -> list[str]:
    """The backends that can take these arguments, the fastest first."""
    if "wgmma" not in target.current().features:
        return ["triton"]
    (tokens, k), columns = a.shape, b.shape[0]
    able = {
        "triton": True,
        # The kernel holds all scales of a block's tokens in shared memory, beside four stages at least.
        "cuda": tokens <= MAX_CUDA_TOKENS
        and k <= (32768 if tokens <= FEW_TOKENS else 16384)
        and (cuda.available() or launch.is_building()),
        # cuBLAS reads the weight's scales in rows padded to four.
        "scaled_mm": tokens >= SCALED_MM_TOKENS
        and k % (4 * BLOCK) == 0
        and b_scale.is_contiguous()
        and (out is None or out.stride(0) == columns)
        and _cuda_version() >= (12, 9),
    }
    if tokens <= VERY_FEW_TOKENS:
        order = ("triton", "cuda", "scaled_mm")
    elif tokens <= FEW_TOKENS:
        order = ("cuda", "triton", "scaled_mm")
    else:
        order = ("scaled_mm", "cuda", "triton")
    return [backend for backend in order if able[backend]]


@lru_cache
def _cuda_version() -> tuple[int, ...]:
    """Of torch; empty without CUDA."""
    return tuple(int(part) for part in (torch.version.cuda or "").split(".") if part)


def _call_scaled_mm(
    a: torch.Tensor, a_scale: torch.Tensor, b: torch.Tensor, b_scale: torch.Tensor, out: torch.Tensor
) -> None:
    tokens = a.shape[0]
    whole = tokens - tokens % SCALED_MM_TOKENS
    scale = a_scale[:whole]
    if scale.stride() != (1, whole):
        scale = scale.mT.contiguous().mT
    torch._scaled_mm(a[:whole], b.mT, scale, b_scale.mT, out_dtype=torch.bfloat16, out=out[:whole])
    if whole < tokens:
        fp8_block_gemm(a[whole:], a_scale[whole:], b, b_scale, out=out[whole:])


def _launch_cuda(
    a: torch.Tensor, a_scale: torch.Tensor, b: torch.Tensor, b_scale: torch.Tensor, out: torch.Tensor
) -> None:
    tokens, k = a.shape
    columns = b.shape[0]
    tile = _cuda_columns(columns, target.current().multiprocessors)
    _FEW_TOKENS(
        "fp8_block_gemm_few_tokens",
        *(a.data_ptr(), a.stride(0), a_scale.data_ptr(), *a_scale.stride()),
        *(b.data_ptr(), b.stride(0), b_scale.data_ptr(), *b_scale.stride()),
        *(out.data_ptr(), out.stride(0)),
        *(tokens, columns, k // BLOCK, tile, _CUDA_CLUSTER),
    )


@lru_cache
def _cuda_columns(columns: int, multiprocessors: int) -> int:
    """Columns of a block such that the waves of blocks are few and full."""
    places = multiprocessors // _CUDA_CLUSTER * _CUDA_CLUSTER
    return min(_CUDA_COLUMNS, key=lambda tile: (-(-columns // tile // places) * tile, -tile))


def _launch_triton(
    a: torch.Tensor, a_scale: torch.Tensor, b: torch.Tensor, b_scale: torch.Tensor, out: torch.Tensor
) -> None:
    tokens, k = a.shape
    columns = b.shape[0]
    tiles = _tiles(tokens, columns, k)
    partial_sums = None
    if tiles.splits > 1:
        partial_sums = torch.empty(tiles.splits, tokens, columns, dtype=torch.float32, device=a.device)
    grid = (columns // tiles.columns * tiles.splits * triton.cdiv(tokens, tiles.tokens),)
    launch.launch(
        _block_gemm_kernel,
        grid,
        *(a, a_scale, b, b_scale, out, partial_sums),
        *(tokens, columns, k, a.stride(0), a_scale.stride(0), a_scale.stride(1)),
        *(b.stride(0), b_scale.stride(0), b_scale.stride(1), out.stride(0), tiles.splits),
        TOKENS=tiles.tokens,
        COLUMNS=tiles.columns,
        STAGES=tiles.stages,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    if partial_sums is not None:
        launch.launch(
            _sum_kernel,
            (triton.cdiv(tokens * columns, 1024),),
            *(partial_sums, out, tokens, columns, out.stride(0), tiles.splits),
            BLOCK_SIZE=1024,
            num_warps=4,
        )


def _tiles(tokens: int, columns: int, k: int) -> Tiles:
    if tokens <= 16:
        tiles = Tiles(16, 128, 1, 4, 6)
    elif tokens <= 64:
        # Four warps are faster with warp-group products, and spill registers with others.
        tiles = Tiles(64, 128, 1, 4 if "wgmma" in target.current().features else 8, 4)
    else:
        tiles = Tiles(128, 64, 1, 4, 4)
    # Parts of K fill the multiprocessors twice where the tiles alone do not, each four blocks long at least.
    programs = columns // tiles.columns * triton.cdiv(tokens, tiles.tokens)
    splits = min(2 * target.current().multiprocessors // programs, k // BLOCK // 4, 8)
    return tiles._replace(splits=max(1, splits))


@triton.jit(
    do_not_specialize=[
        "tokens", "a_scale_row", "a_scale_block", "b_scale_row", "b_scale_block", "splits",
    ]
)  # fmt: skip
def _block_gemm_kernel(
    a,
    a_scale,
    b,
    b_scale,
    out,
    partial_sums,
    tokens,
    columns,
    k,
    a_row,
    a_scale_row,
    a_scale_block,
    b_row,
    b_scale_row,
    b_scale_block,
    out_row,
    splits,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    program = tl.program_id(0)
    split = program % splits
    blocks = k // 128
    begin = split * tl.cdiv(blocks, splits)
    end = tl.minimum(begin + tl.cdiv(blocks, splits), blocks)
    token_tiles = tl.cdiv(tokens, TOKENS)
    first_column = program // splits // token_tiles * COLUMNS
    token = (program // splits % token_tiles * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    column = (first_column + tl.arange(0, COLUMNS)).to(tl.int64)
    live = token < tokens
    element = tl.arange(0, 128)
    a_at = a + (token * a_row)[:, None] + element[None, :]
    b_at = b + (column * b_row)[:, None] + element[None, :]
    a_scale_at = a_scale + token * a_scale_row
    b_scale_at = b_scale + (first_column // 128).to(tl.int64) * b_scale_row
    # The weights are the left operand: it is the one whose tile must have 64 rows or more.
    total = tl.zeros([COLUMNS, TOKENS], tl.float32)
    for block in tl.range(begin, end, num_stages=STAGES):
        weight = tl.load(b_at + block * 128)
        activation = tl.load(a_at + block * 128, mask=live[:, None], other=0.0)
        scale = tl.load(a_scale_at + block * a_scale_block.to(tl.int64), mask=live, other=0.0)
        scale *= tl.load(b_scale_at + block * b_scale_block.to(tl.int64))
        total += tl.dot(weight, tl.trans(activation)) * scale[None, :]
    total = tl.trans(total)
    if partial_sums is None:
        tl.store(
            out + (token * out_row)[:, None] + column[None, :],
            total.to(out.dtype.element_ty),
            mask=live[:, None],
        )
    else:
        row = split.to(tl.int64) * tokens + token
        tl.store(partial_sums + (row * columns)[:, None] + column[None, :], total, mask=live[:, None])


@triton.jit(do_not_specialize=["tokens", "splits"])
def _sum_kernel(partial_sums, out, tokens, columns, out_row, splits, BLOCK_SIZE: tl.constexpr):
    """Adds the parts, always in the same order."""
    at = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    size = tokens.to(tl.int64) * columns
    total = tl.zeros([BLOCK_SIZE], tl.float32)
    for split in range(splits):
        total += tl.load(partial_sums + split * size + at, mask=at < size, other=0.0)
    tl.store(out + at // columns * out_row + at % columns, total.to(out.dtype.element_ty), mask=at < size)
