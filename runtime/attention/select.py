"""Attention backends by name."""

import torch

from runtime.attention import AttentionBackend, AttentionBackendError
from runtime.attention.flashinfer import FlashInferAttention
from runtime.attention.kernels import TableAttention, TritonAttention
from runtime.attention.reference import ReferenceAttention
from runtime.config import ModelConfig

_KINDS = {kind.name: kind for kind in (TritonAttention, TableAttention, FlashInferAttention)}
KINDS = (ReferenceAttention.name, *_KINDS)


def make_attention(
    kind: str, config: ModelConfig, max_batch: int, page_size: int, device: torch.device
) -> AttentionBackend:
    """The backend of that name.

    Args:
        kind: one of `KINDS`; `reference` runs on any device, the others on a GPU.
        max_batch: most lanes of a decode step.
        page_size: of the cache, in tokens.

    Raises:
        AttentionBackendError: no such kind, or its package is not installed, or it does not take this model.
    """
    if kind == ReferenceAttention.name:
        return ReferenceAttention()
    if kind not in _KINDS:
        raise AttentionBackendError(f"attention: expected one of {', '.join(KINDS)}, got {kind}")
    return _KINDS[kind](config, max_batch, page_size, device)
