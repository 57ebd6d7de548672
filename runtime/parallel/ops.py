"""A layer's operations of one rank: those of a whole model on the rank's part, and the sums that make them whole again."""

import torch

from runtime.config import ExpertsConfig
from runtime.ops import Ops
from runtime.parallel.group import Group
from runtime.weights import Attention, Experts, Linear


class ShardedOps:
    """`Ops` over a rank's weights; activations between layers are whole, and the same bits on every rank.

    The residual is one rank's to add, before the sum: so it costs no launch, and is rounded once more than without ranks.

    Args:
        vocab_size: of the whole head; a rank's part may end in rows of filling.
    """

    def __init__(self, ops: Ops, group: Group, vocab_size: int) -> None:
        self._ops = ops
        self._group = group
        self._vocab_size = vocab_size
        self._adds_residual = group.rank == 0

    def linear(self, x: torch.Tensor, linear: Linear, residual: torch.Tensor | None) -> torch.Tensor:
        own = self._ops.linear(x, linear, residual if self._adds_residual else None)
        return self._group.all_reduce(own)

    def norm_linear(
        self, x: torch.Tensor, norm: torch.Tensor, eps: float, linear: Linear, *, silu_mul: bool = False
    ) -> torch.Tensor:
        return self._ops.norm_linear(x, norm, eps, linear, silu_mul=silu_mul)

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
        return self._ops.rope_kv_write(qkv, positions, slots, cache, cos_sin, attention, eps)

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
        residual = residual and self._adds_residual
        return self._group.all_reduce(
            self._ops.experts(x, norm, eps, experts, config, live=live, residual=residual)
        )

    def logits(
        self,
        x: torch.Tensor,
        norm: torch.Tensor,
        eps: float,
        head: torch.Tensor,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        own = self._ops.logits(x, norm, eps, head)
        made = self._group.all_gather(own)[:, : self._vocab_size]
        return made if out is None else out.copy_(made)
