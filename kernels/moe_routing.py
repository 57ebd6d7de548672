"""Routing of tokens to experts, and the order in which a grouped GEMM walks them.

`route`: router logits `[tokens, experts]` (float32, bf16 or fp16) -> expert ids int32 and weights float32, both
`[tokens, top_k]`, best first. Probabilities are the float32 softmax over all experts; with `normalize` the chosen ones
are divided by their sum (`norm_topk_prob` of Qwen3-MoE). Experts are ordered by logit, which is the order of the exact
softmax; equal logits: the lower index first. A NaN logit makes its token's weights NaN; its ids are still in range.
Tokens from `valid` on (int32 `[1]` on the device) are padding: ids -1, weights 0, and their logits are not read.

`align`: ids -> blocks of `block` (token, choice) pairs that share an expert, ascending by expert, then by pair: pair
number = token * top_k + choice. Nothing depends on values on the host: there are `maximum_blocks(...)` blocks, and the
device marks the unused ones.

Both are deterministic and write every element of their outputs.

Errors: ValueError naming argument, expected and actual. Source: the routing of Qwen3-MoE as transformers has it; block
aligned grouping as in MegaBlocks (arXiv 2211.15841).
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels import contract, target
from kernels.launch import launch
from kernels.quantize import quantize_groups

LOGIT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAXIMUM_EXPERTS = 1024
MAXIMUM_TOP_K = 32
GROUP = 128
BLOCKS = (16, 32)
EPS = 1e-10

_LOWEST = tl.constexpr(-(1 << 31))


def route(
    router_logits: torch.Tensor, top_k: int, *, normalize: bool = True, valid: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Expert ids and weights of each token, see the module's contract."""
    require_routing(router_logits, top_k, valid)
    tokens = router_logits.shape[0]
    ids = torch.empty(tokens, top_k, dtype=torch.int32, device=router_logits.device)
    weights = torch.empty(tokens, top_k, dtype=torch.float32, device=router_logits.device)
    if tokens:
        launch_route(router_logits, ids, weights, normalize=normalize, valid=valid)
    return ids, weights


def align(ids: torch.Tensor, experts: int, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs grouped by expert: `(block_experts [blocks], pairs [blocks * block])`, int32, -1 where unused."""
    contract.require("ids", ids, dtype=torch.int32, shape=[None, None], contiguous=True)
    contract.require_value("block", block, BLOCKS)
    blocks = maximum_blocks(ids.numel(), experts, block)
    block_experts = torch.empty(blocks, dtype=torch.int32, device=ids.device)
    pairs = torch.empty(blocks * block, dtype=torch.int32, device=ids.device)
    if blocks:
        launch_align(ids, block_experts, pairs, experts, block)
    return block_experts, pairs


def maximum_blocks(pairs: int, experts: int, block: int) -> int:
    """The most blocks that any routing of `pairs` pairs fills: as many experts as can be are hit, one takes the rest."""
    hit = min(experts, pairs)
    return hit + (pairs - hit) // block


def route_reference(
    router_logits: torch.Tensor, top_k: int, *, normalize: bool = True, valid: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """`route` with torch, in float64."""
    logits = router_logits.double()
    # No number is below -inf: a stable sort by logit, then by whether it is a number, puts NaN last.
    by_logit = torch.sort(
        logits.nan_to_num(-torch.inf, torch.inf, -torch.inf), dim=1, descending=True, stable=True
    )
    last = logits.isnan().gather(1, by_logit.indices).int()
    order = torch.sort(last, dim=1, stable=True).indices
    ids = by_logit.indices.gather(1, order)[:, :top_k]
    weights = torch.softmax(logits, 1).gather(1, ids)
    if normalize:
        weights = weights / weights.sum(1, keepdim=True)
    live = torch.arange(len(logits), device=logits.device) < (len(logits) if valid is None else valid)
    return torch.where(live[:, None], ids, -1).int(), torch.where(live[:, None], weights, 0).float()


def require_routing(router_logits: torch.Tensor, top_k: int, valid: torch.Tensor | None) -> None:
    """Check what routing needs of its arguments."""
    contract.require(
        "router_logits", router_logits, dtype=LOGIT_DTYPES, shape=[None, None], rows_contiguous=True
    )
    experts = router_logits.shape[1]
    if not 1 <= experts <= MAXIMUM_EXPERTS:
        raise ValueError(f"router_logits: expected 1 to {MAXIMUM_EXPERTS} experts, got {experts}")
    if not 1 <= top_k <= min(experts, MAXIMUM_TOP_K):
        raise ValueError(f"top_k: expected 1 to {min(experts, MAXIMUM_TOP_K)}, got {top_k}")
    if valid is not None:
        contract.require("valid", valid, dtype=torch.int32, shape=[1], device=router_logits.device)


def launch_route(
    router_logits: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    *,
    normalize: bool,
    valid: torch.Tensor | None,
    x: torch.Tensor | None = None,
    quantized: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
) -> None:
    """Route, and in the same launch quantize `x` into `quantized` and row-major `scales` where it is given."""
    tokens, top_k = ids.shape
    groups = x.shape[1] // GROUP if x is not None else 1
    pdl = "pdl" in target.current().features
    launch(
        _route_kernel,
        (tokens,),
        router_logits,
        x,
        valid,
        ids,
        weights,
        quantized,
        scales,
        router_logits.stride(0),
        x.stride(0) if x is not None else 0,
        router_logits.shape[1],
        groups,
        EPS,
        TOP_K=top_k,
        CHOICES=triton.next_power_of_2(top_k),
        EXPERTS=triton.next_power_of_2(router_logits.shape[1]),
        GROUPS=triton.next_power_of_2(groups),
        NORMALIZE=normalize,
        PDL=pdl,
        num_warps=4,
        launch_pdl=pdl,
    )


def launch_align(
    ids: torch.Tensor, block_experts: torch.Tensor, pairs: torch.Tensor, experts: int, block: int
) -> None:
    """Group the pairs of `ids`; one program an expert, each of which reads all ids."""
    chunk = 512 if block == 16 else 2048  # larger blocks come with more pairs
    pdl = "pdl" in target.current().features
    launch(
        _align_kernel,
        (experts,),
        ids,
        block_experts,
        pairs,
        ids.numel(),
        block_experts.numel(),
        experts,
        EXPERTS=triton.next_power_of_2(experts + 1),
        BLOCK=block,
        CHUNK=chunk,
        PDL=pdl,
        num_warps=4 if block == 16 else 8,
        launch_pdl=pdl,
    )


@triton.jit(do_not_specialize_on_alignment=["valid_ptr"])
def _route_kernel(
    logits_ptr,
    x_ptr,
    valid_ptr,
    ids_ptr,
    weights_ptr,
    quantized_ptr,
    scales_ptr,
    logits_stride,
    x_stride,
    experts,
    groups,
    eps,
    TOP_K: tl.constexpr,
    CHOICES: tl.constexpr,
    EXPERTS: tl.constexpr,
    GROUPS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    choice = tl.arange(0, CHOICES)
    live = True
    if valid_ptr is not None:
        live = token < tl.load(valid_ptr)
    expert = tl.arange(0, EXPERTS)
    logits = tl.load(
        logits_ptr + token * logits_stride + expert, mask=(expert < experts) & live, other=-float("inf")
    ).to(tl.float32)
    logits = tl.where(logits == 0.0, 0.0, logits)  # -0 ties with 0
    # Integers in the order of the floats; NaN comes after every number, what cannot be chosen (again) last.
    bits = logits.to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    key = tl.where(logits == logits, key, _LOWEST + 1)
    key = tl.where(expert < experts, key, _LOWEST)
    best = tl.max(logits, 0)
    chosen = tl.zeros([CHOICES], tl.int32)
    values = tl.zeros([CHOICES], tl.int32)
    for index in tl.static_range(TOP_K):
        highest = tl.max(key, 0)
        first = tl.min(tl.where(key == highest, expert, EXPERTS), 0)
        chosen = tl.where(choice == index, first, chosen)
        values = tl.where(choice == index, highest, values)
        key = tl.where(expert == first, _LOWEST, key)
    logit = tl.where(values < 0, values ^ 0x7FFFFFFF, values).to(tl.float32, bitcast=True)
    total = tl.sum(tl.where(expert < experts, tl.exp(logits - best), 0.0), 0)
    weight = tl.where(choice < TOP_K, tl.exp(logit - best) / total, 0.0)
    if NORMALIZE:
        weight = weight / tl.sum(weight, 0)
    slot = token * TOP_K + choice
    tl.store(ids_ptr + slot, tl.where(live, chosen, -1), mask=choice < TOP_K)
    tl.store(weights_ptr + slot, tl.where(live, weight, 0.0), mask=choice < TOP_K)
    if quantized_ptr is not None:
        group = tl.arange(0, GROUPS)
        offset = group[:, None] * 128 + tl.arange(0, 128)[None, :]
        inside = (group[:, None] < groups) & live
        row = tl.load(x_ptr + token * x_stride + offset, mask=inside, other=0.0).to(tl.float32)
        q, scale = quantize_groups(row, eps, quantized_ptr.dtype.element_ty, False)
        tl.store(quantized_ptr + token * groups * 128 + offset, q, mask=inside)
        tl.store(scales_ptr + token * groups + group, scale, mask=(group < groups) & live)


@triton.jit(do_not_specialize=["pairs", "blocks"])
def _align_kernel(
    ids_ptr,
    block_experts_ptr,
    pairs_ptr,
    pairs,
    blocks,
    experts,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    mine = tl.program_id(0)
    expert = tl.arange(0, EXPERTS)
    lane = tl.arange(0, CHUNK)
    counts = tl.zeros([EXPERTS], tl.int32)
    start = 0
    while start < pairs:
        ids = tl.load(ids_ptr + start + lane, mask=start + lane < pairs, other=-1)
        counts += tl.histogram(tl.where(ids < 0, EXPERTS - 1, ids), EXPERTS)  # the last bin is no expert's
        start += CHUNK
    counts = tl.where(expert < experts, counts, 0)
    held = (counts + BLOCK - 1) // BLOCK
    before = tl.sum(tl.where(expert < mine, held, 0), 0)
    own = tl.sum(tl.where(expert == mine, held, 0), 0)
    used = tl.sum(held, 0)
    first = before.to(tl.int64) * BLOCK
    unused = tl.full([BLOCK], -1, tl.int32)
    if own > 0:
        seen = 0
        start = 0
        while start < pairs:
            ids = tl.load(ids_ptr + start + lane, mask=start + lane < pairs, other=-1)
            match = (ids == mine).to(tl.int32)
            rank = seen + tl.cumsum(match, 0) - 1
            tl.store(pairs_ptr + first + rank, start + lane, mask=match == 1)
            seen += tl.sum(match, 0)
            start += CHUNK
        fill = seen + tl.arange(0, BLOCK)
        tl.store(pairs_ptr + first + fill, unused, mask=fill < own * BLOCK)
    block = before
    while block < before + own:
        tl.store(block_experts_ptr + block, mine)
        block += 1
    block = used + mine
    while block < blocks:
        tl.store(block_experts_ptr + block, -1)
        tl.store(pairs_ptr + block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK), unused)
        block += experts
