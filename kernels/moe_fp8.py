"""Mixture of experts: route, run each token's experts (gated MLP) and add them up, from router logits to output.

    x              [tokens, hidden]         bf16, contiguous rows
    router_logits  [tokens, experts]        float32, bf16 or fp16
    w13            [experts, 2 * inter, hidden]  gate rows, then up rows; contiguous, 16-byte aligned
    w2             [experts, hidden, inter]      contiguous, 16-byte aligned
    out            [tokens, hidden]         bf16, contiguous

`moe_fp8`: weights e4m3, scales float32 of 128 x 128 blocks: `w13_scale [experts, 2 * inter / 128, hidden / 128]`,
`w2_scale [experts, hidden / 128, inter / 128]`, a weight being its e4m3 value times its block's scale (DeepSeek's
`weight_scale_inv`). hidden and inter are multiples of 128. `moe_bf16`: weights bf16, the same without scales.

For each token and each of its experts (see `moe_routing` for the choice and the weights, float32):

    gate, up = x @ w13[e].T     x quantized to e4m3 by groups of 128; float32 sums
    h = silu(gate) * up         in float32, rounded once to bf16, then quantized by groups of 128
    y = h @ w2[e].T             float32 sums, rounded to bf16
    out = sum of weight * y     in float32, in the order of choice, rounded to bf16

`moe_bf16` is the same without the two quantizations. No float atomics: the same inputs give the same bits, whatever
the other tokens are routed to. Tokens from `valid` on (int32 `[1]` on the device) are padding: their rows of x and of
the logits are not read, their rows of out are 0. Grids follow from the shapes alone, never from the routing.

Up to FEW_TOKENS tokens of e4m3 weights take two CUDA C++ kernels (csrc/moe_fp8.cu, where there is an nvcc), which read
an expert once for each token; all else takes Triton kernels (moe_tiles) that read an expert once for 16 or 32 tokens.

Errors: ValueError naming argument, expected and actual; nothing is launched. No tokens: returns at once.
Sources: Qwen3-MoE as in transformers; DeepSeek-V3's block scaling (arXiv 2412.19437, 3.3).
"""

import ctypes
from collections.abc import Iterator
from functools import partial

import torch

from kernels import contract, cuda, moe_routing, moe_tiles, target
from kernels.launch import BuildCase, meta
from kernels.quantize import dequantize_reference, quantize_reference

E4M3 = torch.float8_e4m3fn
GROUP = 128
FEW_TOKENS = 4


def moe_fp8(
    x: torch.Tensor,
    router_logits: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
    *,
    top_k: int,
    normalize: bool = True,
    valid: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mixture of experts with e4m3 weights, see the module's contract; returns `out`."""
    experts, rows, hidden = _require_weights(x, router_logits, w13, w2, E4M3)
    groups = (rows // GROUP, hidden // GROUP)
    scale = {"dtype": torch.float32, "device": x.device, "contiguous": True}
    contract.require("w13_scale", w13_scale, shape=[experts, *groups], **scale)
    contract.require("w2_scale", w2_scale, shape=[experts, groups[1], groups[0] // 2], **scale)
    return _moe(x, router_logits, w13, w13_scale, w2, w2_scale, top_k, normalize, valid, out)


def moe_bf16(
    x: torch.Tensor,
    router_logits: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    *,
    top_k: int,
    normalize: bool = True,
    valid: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mixture of experts with bf16 weights, see the module's contract; returns `out`."""
    _require_weights(x, router_logits, w13, w2, torch.bfloat16)
    return _moe(x, router_logits, w13, None, w2, None, top_k, normalize, valid, out)


def moe_reference(
    x: torch.Tensor,
    router_logits: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor | None,
    w2: torch.Tensor,
    w2_scale: torch.Tensor | None,
    *,
    top_k: int,
    normalize: bool = True,
    valid: int | None = None,
) -> torch.Tensor:
    """The contract in float64 with the same rounding points, to x's type where the kernels round to bf16.

    Without scales `moe_bf16`.
    """
    ids, weights = moe_routing.route_reference(router_logits, top_k, normalize=normalize, valid=valid)
    live = len(x) if valid is None else valid
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    rows = _rounded(x[:live], w13_scale is not None)
    for expert in ids[:live].unique().tolist():
        token, choice = (ids[:live] == expert).nonzero(as_tuple=True)
        gate, up = (rows[token] @ _weight(w13, w13_scale, expert).T).chunk(2, 1)
        h = (torch.nn.functional.silu(gate) * up).to(x.dtype)
        y = _rounded(h, w2_scale is not None) @ _weight(w2, w2_scale, expert).T
        out.index_add_(0, token, weights[token, choice].double()[:, None] * y.to(x.dtype).double())
    return out.to(x.dtype)


def _rounded(x: torch.Tensor, quantized: bool) -> torch.Tensor:
    return (
        dequantize_reference(*quantize_reference(x, GROUP, E4M3), GROUP).double() if quantized else x.double()
    )


def _weight(weight: torch.Tensor, scale: torch.Tensor | None, expert: int) -> torch.Tensor:
    if scale is None:
        return weight[expert].double()
    blocks = scale[expert].double().repeat_interleave(GROUP, 0).repeat_interleave(GROUP, 1)
    return weight[expert].double() * blocks


_CHECKED = {"hidden": 512, "inter": 128, "experts": 16, "top_k": 8}


def build_cases() -> Iterator[BuildCase]:
    """Qwen3-30B-A3B: few tokens, then every tile that a token count reaches; and what `check` runs."""
    qwen3 = {"hidden": 2048, "inter": 768, "experts": 128, "top_k": 8}

    def call(tokens: int, dtype: torch.dtype, hidden: int, inter: int, experts: int, top_k: int) -> None:
        x = meta(tokens, hidden, dtype=torch.bfloat16)
        logits = meta(tokens, experts, dtype=torch.bfloat16)
        w13, w2 = meta(experts, 2 * inter, hidden, dtype=dtype), meta(experts, hidden, inter, dtype=dtype)
        options = {"top_k": top_k, "valid": meta(1, dtype=torch.int32)}
        if dtype is torch.bfloat16:
            moe_bf16(x, logits, w13, w2, **options)
        else:
            w13_scale = meta(experts, 2 * inter // GROUP, hidden // GROUP, dtype=torch.float32)
            w2_scale = meta(experts, hidden // GROUP, inter // GROUP, dtype=torch.float32)
            moe_fp8(x, logits, w13, w13_scale, w2, w2_scale, **options)

    fp8 = frozenset({"fp8"})
    for tokens in (1, 64, 512):
        yield BuildCase(f"moe_fp8/{tokens}", partial(call, tokens, E4M3, **qwen3), fp8)
    yield BuildCase("moe_fp8/check", partial(call, FEW_TOKENS + 1, E4M3, **_CHECKED), fp8)
    for tokens in (64, 512):
        yield BuildCase(f"moe_fp8/bf16-{tokens}", partial(call, tokens, torch.bfloat16, **qwen3))


def check(device: torch.device) -> tuple[float, float]:
    """A tiny pass against the reference: relative error (Frobenius) and its bound."""
    generator = torch.Generator(device).manual_seed(1)
    hidden, inter, experts, top_k = _CHECKED.values()
    random = partial(torch.randn, generator=generator, device=device)
    w13, w2 = random(experts, 2 * inter, hidden).to(E4M3), random(experts, hidden, inter).to(E4M3)
    s13 = random(experts, 2 * inter // GROUP, hidden // GROUP).abs() * 0.01
    s2 = random(experts, hidden // GROUP, inter // GROUP).abs() * 0.01
    errors = []
    for tokens in (FEW_TOKENS, FEW_TOKENS + 1):
        x, logits = random(tokens, hidden).bfloat16(), random(tokens, experts).bfloat16()
        valid = torch.tensor([tokens], dtype=torch.int32, device=device)
        wanted = moe_reference(x, logits, w13, s13, w2, s2, top_k=top_k).double()
        actual = moe_fp8(x, logits, w13, s13, w2, s2, top_k=top_k, valid=valid).double()
        errors.append(float((actual - wanted).norm() / wanted.norm()))
    return max(errors), RELATIVE_ERROR


RELATIVE_ERROR = 2.0**-5
"""Of the output in the Frobenius norm, on tensor cores. Hopper's e4m3 product keeps 13 bits below the largest term, so a
few h are rounded to the neighbouring e4m3 value, 2^-3 of the element away; where sums of few terms let one element weigh
most, that alone is 1 % of the output (emulated: 0.1 to 1.1 %; measured at Qwen3's sizes: 0.5 %)."""


def _require_weights(
    x: torch.Tensor, router_logits: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, dtype: torch.dtype
) -> tuple[int, int, int]:
    contract.require("x", x, dtype=torch.bfloat16, shape=[None, None], rows_contiguous=True, aligned=16)
    hidden = x.shape[1]
    contract.require("router_logits", router_logits, shape=[len(x), None], device=x.device)
    weight = {"dtype": dtype, "device": x.device, "contiguous": True, "aligned": 16}
    experts = router_logits.shape[1]
    contract.require("w13", w13, shape=[experts, None, hidden], **weight)
    rows = w13.shape[1]
    if rows == 0 or rows % (2 * GROUP):
        raise ValueError(f"w13: expected a multiple of {2 * GROUP} rows an expert, got {rows}")
    if hidden == 0 or hidden % GROUP:
        raise ValueError(f"x: expected a multiple of {GROUP} columns, got {hidden}")
    if x.stride(0) % 8 and len(x) > 1:
        raise ValueError(f"x: expected a row stride that is a multiple of 8, got {x.stride(0)}")
    contract.require("w2", w2, shape=[experts, hidden, rows // 2], **weight)
    return experts, rows, hidden


def _moe(
    x: torch.Tensor,
    router_logits: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor | None,
    w2: torch.Tensor,
    w2_scale: torch.Tensor | None,
    top_k: int,
    normalize: bool,
    valid: torch.Tensor | None,
    out: torch.Tensor | None,
) -> torch.Tensor:
    moe_routing.require_routing(router_logits, top_k, valid)
    if out is None:
        out = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
    contract.require("out", out, dtype=torch.bfloat16, shape=x.shape, device=x.device, contiguous=True)
    if len(x):
        given = (x, router_logits, w13, w13_scale, w2, w2_scale, top_k, normalize, valid, out)
        (_launch_few if _are_few(x, w13, top_k) else moe_tiles.launch_tiles)(*given)
    return out


def _are_few(x: torch.Tensor, w13: torch.Tensor, top_k: int) -> bool:
    """Whether csrc/moe_fp8.cu takes it (8 choices and 256 experts are its limits) and is the faster one."""
    here = target.current()
    fits = len(x) <= FEW_TOKENS and top_k <= 8 and len(w13) <= 256
    # A ring holds no more than a matrix and the next one; x, or a row of h a warp, lies beside the rings.
    fits = fits and 512 <= x.shape[1] <= 4096 and w13.shape[1] // 2 <= 2048
    on_gpu = here.capability >= 89 and not contract.INTERPRETING
    return fits and on_gpu and w13.dtype is E4M3 and cuda.available()


def _launch_few(
    x: torch.Tensor,
    router_logits: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
    top_k: int,
    normalize: bool,
    valid: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """The whole operation in two launches of csrc/moe_fp8.cu."""
    tokens, hidden = x.shape
    experts, inter = w13.shape[0], w13.shape[1] // 2
    h = torch.empty(tokens * top_k, inter, dtype=torch.bfloat16, device=x.device)
    blocks = target.current().multiprocessors
    _FEW(
        "moe_few_tokens", x.data_ptr(), router_logits.data_ptr(), valid.data_ptr() if valid is not None else None,
        w13.data_ptr(), w13_scale.data_ptr(), w2.data_ptr(), w2_scale.data_ptr(), h.data_ptr(), out.data_ptr(),
        x.stride(0), router_logits.stride(0), tokens, top_k, experts, hidden, inter, normalize,
        moe_routing.LOGIT_DTYPES.index(router_logits.dtype), blocks,
    )  # fmt: skip


_FEW = cuda.Library(
    "moe_fp8.cu",
    {"moe_few_tokens": [ctypes.c_void_p] * 9 + [ctypes.c_int64] * 2 + [ctypes.c_int] * 8},
)
