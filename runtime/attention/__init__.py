"""Attention over the paged cache: `plan` binds a step's tensors, `refresh` once a step, `run` once a layer.

A captured step is planned once, at its capture, and refreshed and run at every replay. One backend a module.
"""

from typing import Protocol

import torch

from runtime.batch import StepInputs


class AttentionParameters(Protocol):
    """What a backend keeps of one step's plan."""


class AttentionBackend(Protocol):
    """Attention of a step's queries over the cache, which already holds the step's own keys and values."""

    name: str

    def plan(self, inputs: StepInputs) -> AttentionParameters:
        """Bind what all layers of a step share to the step's tensors."""
        ...

    def refresh(self, parameters: AttentionParameters) -> None:
        """Derive, on the device, what the parameters keep of the step's lengths and pages; a graph holds this call."""
        ...

    def run(self, query: torch.Tensor, cache: torch.Tensor, parameters: AttentionParameters) -> torch.Tensor:
        """`query` [tokens, q_heads, head_dim] over one layer's `cache` -> the same shape."""
        ...
