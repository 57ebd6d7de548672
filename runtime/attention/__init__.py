"""Attention over the paged cache, in two parts: `plan` once a step, `run` once a layer. One backend a module."""

from typing import Protocol

import torch

from runtime.batch import StepInputs


class AttentionParameters(Protocol):
    """What a backend keeps of one step's plan."""


class AttentionBackend(Protocol):
    """Attention of a step's queries over the cache, which already holds the step's own keys and values."""

    name: str

    def plan(self, inputs: StepInputs) -> AttentionParameters:
        """Prepare what all layers of the step share."""
        ...

    def run(self, query: torch.Tensor, cache: torch.Tensor, parameters: AttentionParameters) -> torch.Tensor:
        """`query` [tokens, q_heads, head_dim] over one layer's `cache` -> the same shape."""
        ...
