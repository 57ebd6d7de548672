"""The Triton kernels of moe_fp8: grouped products over blocks of pairs that share an expert, see moe_fp8 for the contract.

Weights are the left operand, 128 rows a tile, and the block's pairs the right one: few pairs still fill a wgmma.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels import contract, moe_routing, target
from kernels.launch import launch
from kernels.quantize import quantize_groups

E4M3 = torch.float8_e4m3fn
GROUP = 128

_INTERPRETING = tl.constexpr(contract.INTERPRETING)


def block_of(pairs: int, experts: int) -> int:
    """Pairs a block holds: near the mean an expert gets, so that few rows of a tile are padding."""
    mean = pairs / experts
    return 16 if mean <= 12 else 32


def launch_tiles(
    x: torch.Tensor,
    router_logits: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor | None,
    w2: torch.Tensor,
    w2_scale: torch.Tensor | None,
    top_k: int,
    normalize: bool,
    valid: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """The whole operation in five launches; arguments are checked already, without scales the weights are bf16."""
    tokens, hidden = x.shape
    experts, inter = w13.shape[0], w13.shape[1] // 2
    pairs = tokens * top_k
    block = block_of(pairs, experts)
    blocks = moe_routing.maximum_blocks(pairs, experts, block)
    empty = partial(torch.empty, device=x.device)
    quantized = w13_scale is not None
    ids = empty(tokens, top_k, dtype=torch.int32)
    weights = empty(tokens, top_k, dtype=torch.float32)
    block_experts = empty(blocks, dtype=torch.int32)
    order = empty(blocks * block, dtype=torch.int32)
    h = empty(blocks * block, inter, dtype=w13.dtype)
    y = empty(pairs, hidden, dtype=torch.bfloat16)
    a, a_scale, h_scale = x, None, None
    if quantized:
        a = empty(tokens, hidden, dtype=E4M3)
        a_scale = empty(tokens, hidden // GROUP, dtype=torch.float32)
        h_scale = empty(blocks * block, inter // GROUP, dtype=torch.float32)
        moe_routing.launch_route(
            router_logits, ids, weights, normalize=normalize, valid=valid, x=x, quantized=a, scales=a_scale
        )
    else:
        moe_routing.launch_route(router_logits, ids, weights, normalize=normalize, valid=valid)
    moe_routing.launch_align(ids, block_experts, order, experts, block)
    pdl = "pdl" in target.current().features
    width = GROUP if quantized else GROUP // 2
    options = {"BLOCK": block, "K_STEP": width, "PDL": pdl, "launch_pdl": pdl}
    # With 8 warps the larger tile needs no more registers than there are, where wgmma does not hold operands in memory.
    options["num_warps"] = 4 if block == 16 or "wgmma" in target.current().features else 8
    stage = width * w13.element_size() * GROUP
    gate_up_grid, down_grid = (blocks * (inter // GROUP),), (blocks * (hidden // GROUP),)
    launch(
        _gate_up_kernel, gate_up_grid, a, a_scale, w13, w13_scale, block_experts, order, h, h_scale,
        a.stride(0), 1e-10, HIDDEN=hidden, INTER=inter, TOP_K=top_k, **options,
        num_stages=_stages(2 * stage + stage * block // GROUP),
    )  # fmt: skip
    launch(
        _down_kernel, down_grid, h, h_scale, w2, w2_scale, block_experts, order, y, HIDDEN=hidden, INTER=inter, **options,
        num_stages=_stages(stage + stage * block // GROUP),
    )  # fmt: skip
    launch_combine(y, weights, valid, out)


def launch_combine(
    y: torch.Tensor, weights: torch.Tensor, valid: torch.Tensor | None, out: torch.Tensor
) -> None:
    """out = the weighted sum of each token's rows of `y [tokens * top_k, hidden]`; 0 where the token is padding."""
    tokens, hidden = out.shape
    pdl = "pdl" in target.current().features
    grid = (tokens, triton.cdiv(hidden, 1024))
    launch(
        _combine_kernel, grid, y, weights, valid, out, hidden, TOP_K=weights.shape[1], COLUMNS=1024, PDL=pdl,
        num_warps=4, launch_pdl=pdl,
    )  # fmt: skip


def _stages(bytes_a_stage: int) -> int:
    """As deep as shared memory allows two blocks a multiprocessor, at least 2 and at most 5."""
    return max(2, min(5, (target.current().shared_memory - 4096) // (2 * bytes_a_stage) + 1))


@triton.jit
def _to_bf16(x):
    if _INTERPRETING:  # it cuts off; NaN is not met in its tests
        bits = x.to(tl.int32, bitcast=True)
        x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
    return x.to(tl.bfloat16)


@triton.jit
def _dot(left, right):
    if _INTERPRETING:  # it has no product of bf16
        return tl.dot(left.to(tl.float32), right.to(tl.float32))
    return tl.dot(left, right)


@triton.jit
def _product(
    w_ptrs,
    w_scale_ptrs,
    a_ptrs,
    a_scale_ptrs,
    used,
    BLOCK: tl.constexpr,
    K_STEP: tl.constexpr,
    K: tl.constexpr,
):
    """128 rows of weights times the pairs of `a_ptrs`; scaled every 128 of K where there are scales."""
    total = tl.zeros([128, BLOCK], tl.float32)
    for step in range(K // K_STEP):
        a = tl.load(a_ptrs, mask=used[None, :], other=0.0)
        if a_scale_ptrs is not None:
            a_scale = tl.load(a_scale_ptrs + step, mask=used, other=0.0)
            total += tl.dot(tl.load(w_ptrs), a) * (a_scale * tl.load(w_scale_ptrs + step))[None, :]
        else:
            total += _dot(tl.load(w_ptrs), a)
        a_ptrs += K_STEP
        w_ptrs += K_STEP
    return total


@triton.jit
def _products(
    gate_ptrs,
    up_ptrs,
    gate_scale_ptrs,
    up_scale_ptrs,
    a_ptrs,
    a_scale_ptrs,
    used,
    BLOCK: tl.constexpr,
    K_STEP: tl.constexpr,
    K: tl.constexpr,
):
    """Two products with the same pairs in one loop."""
    gate = tl.zeros([128, BLOCK], tl.float32)
    up = tl.zeros([128, BLOCK], tl.float32)
    for step in range(K // K_STEP):
        a = tl.load(a_ptrs, mask=used[None, :], other=0.0)
        if a_scale_ptrs is not None:
            a_scale = tl.load(a_scale_ptrs + step, mask=used, other=0.0)
            gate += tl.dot(tl.load(gate_ptrs), a) * (a_scale * tl.load(gate_scale_ptrs + step))[None, :]
            up += tl.dot(tl.load(up_ptrs), a) * (a_scale * tl.load(up_scale_ptrs + step))[None, :]
        else:
            gate += _dot(tl.load(gate_ptrs), a)
            up += _dot(tl.load(up_ptrs), a)
        a_ptrs += K_STEP
        gate_ptrs += K_STEP
        up_ptrs += K_STEP
    return gate, up


@triton.jit
def _gate_up_kernel(
    x_ptr,
    x_scale_ptr,
    w_ptr,
    w_scale_ptr,
    block_experts_ptr,
    order_ptr,
    h_ptr,
    h_scale_ptr,
    x_stride,
    eps,
    HIDDEN: tl.constexpr,
    INTER: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
    K_STEP: tl.constexpr,
    PDL: tl.constexpr,
):
    """128 rows of h, for one block of pairs: weights are the left operand, so that few pairs still fill a wgmma."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    tiles: tl.constexpr = INTER // 128
    block = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    expert = tl.load(block_experts_ptr + block).to(tl.int64)
    if expert < 0:
        return
    place = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    pair = tl.load(order_ptr + place)
    used = pair >= 0
    token = tl.where(used, pair // TOP_K, 0).to(tl.int64)
    row = tl.arange(0, 128)
    k = tl.arange(0, K_STEP)
    x_ptrs = x_ptr + token[None, :] * x_stride + k[:, None]
    gate_ptrs = w_ptr + (expert * 2 * INTER + tile * 128 + row)[:, None] * HIDDEN + k[None, :]
    up_ptrs = gate_ptrs + INTER * HIDDEN
    gate_scale_ptrs, up_scale_ptrs, x_scale_ptrs = w_scale_ptr, w_scale_ptr, x_scale_ptr
    if x_scale_ptr is not None:
        x_scale_ptrs = x_scale_ptr + token * (HIDDEN // 128)
        gate_scale_ptrs = w_scale_ptr + (expert * 2 * tiles + tile) * (HIDDEN // 128)
        up_scale_ptrs = gate_scale_ptrs + tiles * (HIDDEN // 128)
    gate, up = _products(
        gate_ptrs, up_ptrs, gate_scale_ptrs, up_scale_ptrs, x_ptrs, x_scale_ptrs, used, BLOCK, K_STEP, HIDDEN
    )
    h = tl.trans(_to_bf16(gate / (1.0 + tl.exp(-gate)) * up))
    column = tile * 128 + row
    h_ptrs = h_ptr + place[:, None] * INTER + column[None, :]
    if h_scale_ptr is not None:
        q, scale = quantize_groups(h.to(tl.float32), eps, h_ptr.dtype.element_ty, False)
        tl.store(h_ptrs, q, mask=used[:, None])
        tl.store(h_scale_ptr + place * tiles + tile, scale, mask=used)
    else:
        tl.store(h_ptrs, h, mask=used[:, None])


@triton.jit
def _down_kernel(
    h_ptr,
    h_scale_ptr,
    w_ptr,
    w_scale_ptr,
    block_experts_ptr,
    order_ptr,
    y_ptr,
    HIDDEN: tl.constexpr,
    INTER: tl.constexpr,
    BLOCK: tl.constexpr,
    K_STEP: tl.constexpr,
    PDL: tl.constexpr,
):
    """128 columns of y, for one block of pairs."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    tiles: tl.constexpr = HIDDEN // 128
    block = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    expert = tl.load(block_experts_ptr + block).to(tl.int64)
    if expert < 0:
        return
    place = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    pair = tl.load(order_ptr + place)
    used = pair >= 0
    row = tl.arange(0, 128)
    k = tl.arange(0, K_STEP)
    h_ptrs = h_ptr + place[None, :] * INTER + k[:, None]
    w_ptrs = w_ptr + (expert * HIDDEN + tile * 128 + row)[:, None] * INTER + k[None, :]
    h_scale_ptrs, w_scale_ptrs = h_scale_ptr, w_scale_ptr
    if h_scale_ptr is not None:
        h_scale_ptrs = h_scale_ptr + place * (INTER // 128)
        w_scale_ptrs = w_scale_ptr + (expert * tiles + tile) * (INTER // 128)
    y = _product(w_ptrs, w_scale_ptrs, h_ptrs, h_scale_ptrs, used, BLOCK, K_STEP, INTER)
    y_ptrs = y_ptr + pair.to(tl.int64)[:, None] * HIDDEN + (tile * 128 + row)[None, :]
    tl.store(y_ptrs, tl.trans(_to_bf16(y)), mask=used[:, None])


@triton.jit(do_not_specialize_on_alignment=["valid_ptr"])
def _combine_kernel(
    y_ptr,
    weights_ptr,
    valid_ptr,
    out_ptr,
    hidden,
    TOP_K: tl.constexpr,
    COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    live = True
    if valid_ptr is not None:
        live = token < tl.load(valid_ptr)
    mask = (column < hidden) & live
    total = tl.zeros([COLUMNS], tl.float32)
    for choice in tl.static_range(TOP_K):
        weight = tl.load(weights_ptr + token * TOP_K + choice)
        y = tl.load(y_ptr + (token * TOP_K + choice) * hidden + column, mask=mask, other=0.0)
        total += weight * y.to(tl.float32)
    tl.store(out_ptr + token * hidden + column, _to_bf16(total), mask=column < hidden)
