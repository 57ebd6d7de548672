"""What a layer is made of, on a device: the kernels on a GPU, their references on a CPU.

Both round where Hugging Face's modules round, so that either equals transformers within its dtype.
"""

from typing import Protocol

import torch

from kernels.moe_fp8 import moe_reference
from kernels.rms_norm import rms_norm_reference
from kernels.rope_kv_write import rope_kv_write_reference
from kernels.skinny_gemm import skinny_gemm_reference
from runtime.config import ExpertsConfig
from runtime.weights import Attention, Experts, Linear


class Ops(Protocol):
    """The operations of a decoder layer; activations are `[tokens, features]`."""

    def linear(self, x: torch.Tensor, linear: Linear, residual: torch.Tensor | None) -> torch.Tensor:
        """residual, where there is one, + x @ weight^T."""
        ...

    def norm_linear(
        self, x: torch.Tensor, norm: torch.Tensor, eps: float, linear: Linear, *, silu_mul: bool = False
    ) -> torch.Tensor:
        """RMS norm of x, then the projection; with `silu_mul` the weight packs gate and up, and silu(gate) * up is given."""
        ...

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
        """Norm and rotate queries and keys, write keys and values to the cache -> queries [tokens, q_heads, head_dim]."""
        ...

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
        """x, unless there is no residual, + the mixture of experts of x's RMS norm.

        Args:
            live: int32 [1] on the device; tokens from there on are padding, which no expert is run for. None: there is none.
        """
        ...

    def logits(
        self,
        x: torch.Tensor,
        norm: torch.Tensor,
        eps: float,
        head: torch.Tensor,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """RMS norm of x, then the head [vocab, hidden], of which there may be a part here: all of [tokens, vocab].

        They go to `out` where it is given: rows that start on 16 bytes.
        """
        ...


class ReferenceOps:
    """The kernels' torch references: for a CPU, and to compare with."""

    def linear(self, x: torch.Tensor, linear: Linear, residual: torch.Tensor | None) -> torch.Tensor:
        return skinny_gemm_reference(x, linear.weight, weight_scale=linear.scale, residual=residual)

    def norm_linear(
        self, x: torch.Tensor, norm: torch.Tensor, eps: float, linear: Linear, *, silu_mul: bool = False
    ) -> torch.Tensor:
        return skinny_gemm_reference(
            x, linear.weight, weight_scale=linear.scale, norm_weight=norm, eps=eps, silu_mul=silu_mul
        )

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
        return rope_kv_write_reference(
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
        normed = rms_norm_reference(x, norm, eps)
        mixed = moe_reference(
            normed,
            normed @ experts.router.T,
            experts.gate_up.weight,
            experts.gate_up.scale,
            experts.down.weight,
            experts.down.scale,
            top_k=config.per_token,
            normalize=config.normalize,
            valid=None if live is None else int(live),
        )
        return x + mixed if residual else mixed

    def logits(
        self,
        x: torch.Tensor,
        norm: torch.Tensor,
        eps: float,
        head: torch.Tensor,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        made = self.norm_linear(x, norm, eps, Linear(head))
        return made if out is None else out.copy_(made)
