"""A layer's operations by the kernels, on a GPU: few launches for few tokens, library products for many."""

import torch

from kernels.fp8_block_gemm import fp8_block_gemm
from kernels.moe_fp8 import moe_bf16, moe_fp8
from kernels.per_token_group_quant import per_token_group_quant_8bit
from kernels.rms_norm import rms_norm
from kernels.rope_kv_write import rope_kv_write
from kernels.silu_mul import silu_mul as silu_mul_kernel
from kernels.skinny_gemm import MAX_ROWS, make_workspace, skinny_gemm
from runtime.config import ExpertsConfig
from runtime.weights import Attention, Experts, Linear


class KernelOps:
    """`Ops` on one GPU and one stream.

    Up to 64 tokens, e4m3 weights are dequantized and activations stay bf16; above, activations are quantized in groups
    of 128 and the product is e4m3. The former is the more exact of the two.
    """

    def __init__(self, device: torch.device) -> None:
        self._workspace = make_workspace(device)

    def linear(self, x: torch.Tensor, linear: Linear, residual: torch.Tensor | None) -> torch.Tensor:
        if x.shape[0] <= MAX_ROWS:
            return skinny_gemm(
                x, linear.weight, weight_scale=linear.scale, residual=residual, workspace=self._workspace
            )
        product = _product(x, linear)
        return product if residual is None else product.add_(residual)

    def norm_linear(
        self, x: torch.Tensor, norm: torch.Tensor, eps: float, linear: Linear, *, silu_mul: bool = False
    ) -> torch.Tensor:
        if x.shape[0] <= MAX_ROWS:
            return skinny_gemm(
                x,
                linear.weight,
                weight_scale=linear.scale,
                norm_weight=norm,
                eps=eps,
                silu_mul=silu_mul,
                out=_aligned_rows(x, linear, silu_mul),
                workspace=self._workspace,
            )
        product = _product(rms_norm(x, norm, eps), linear)
        return silu_mul_kernel(product) if silu_mul else product

    def rope_kv_write(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        cache: torch.Tensor,
        cos_sin: torch.Tensor,
        attention: Attention,
        eps: float,
    ) -> torch.Tensor:
        kv_heads, head_dim = cache.shape[2], cache.shape[4]
        return rope_kv_write(
            qkv,
            positions,
            slots,
            cache,
            cos_sin,
            query_heads=qkv.shape[1] // head_dim - 2 * kv_heads,
            query_norm=attention.q_norm,
            key_norm=attention.k_norm,
            epsilon=eps,
        )

    def experts(
        self,
        x: torch.Tensor,
        norm: torch.Tensor,
        eps: float,
        experts: Experts,
        config: ExpertsConfig,
        *,
        live: torch.Tensor | None = None,
        residual: bool = True,
    ) -> torch.Tensor:
        normed = rms_norm(x, norm, eps)
        router_logits = torch.nn.functional.linear(normed, experts.router)
        routing = {"top_k": config.per_token, "normalize": config.normalize, "valid": live}
        up, down = experts.gate_up, experts.down
        if up.scale is not None and down.scale is not None:
            mixed = moe_fp8(normed, router_logits, up.weight, up.scale, down.weight, down.scale, **routing)
        else:
            mixed = moe_bf16(normed, router_logits, up.weight, down.weight, **routing)
        return mixed.add_(x) if residual else mixed

    def logits(
        self,
        x: torch.Tensor,
        norm: torch.Tensor,
        eps: float,
        head: torch.Tensor,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if out is None:
            out = _aligned_rows(x, Linear(head), silu_mul=False)
        if x.shape[0] <= MAX_ROWS:
            return skinny_gemm(x, head, norm_weight=norm, eps=eps, out=out, workspace=self._workspace)
        return torch.mm(rms_norm(x, norm, eps), head.t(), out=out)


def _aligned_rows(x: torch.Tensor, linear: Linear, silu_mul: bool) -> torch.Tensor:
    """Output rows that each start on 16 bytes, as sampling reads logits, whatever the vocabulary's size."""
    features = linear.weight.shape[0] // (2 if silu_mul else 1)
    return x.new_empty(x.shape[0], -(-features // 8) * 8)[:, :features]


def _product(x: torch.Tensor, linear: Linear) -> torch.Tensor:
    if linear.scale is None:
        return torch.mm(x, linear.weight.t(), out=_aligned_rows(x, linear, silu_mul=False))
    quantized, scale = per_token_group_quant_8bit(x, scale_layout="column_major")
    return fp8_block_gemm(quantized, scale, linear.weight, linear.scale)
