"""Attention over the paged cache: `plan` binds a step's tensors, `replan` and `refresh` follow it, `run` attends.

A captured step is planned once, at its capture. Before every run, eager or replayed, `replan` makes on the host what a
backend needs of the step's lengths there; `refresh`, once a step, derives on the device what is derived there; `run`
comes once a layer. A graph holds `refresh` and `run`. One backend a module; `select` makes them by name.
"""

from typing import Protocol

import torch

from runtime.batch import StepInputs


class AttentionBackendError(ValueError):
    """An attention backend that there is not, or not here; says what to install or to choose instead."""


class AttentionParameters(Protocol):
    """What a backend keeps of one step's plan."""


class AttentionBackend(Protocol):
    """Attention of a step's queries over the cache, which already holds the step's own keys and values."""

    name: str

    def plan(self, inputs: StepInputs) -> AttentionParameters:
        """Bind what all layers of a step share to the step's tensors."""
        ...

    def replan(self, parameters: AttentionParameters) -> None:
        """Make the host's part of a step from its `host_kv_lengths` and `host_query_indptr`; called through `runtime.attention.replanning`.

        It may enqueue copies into memory of its own. It may not wait for the device, move any tensor that the parameters
        hold, or write to the step's inputs.
        """
        ...

    def refresh(self, parameters: AttentionParameters) -> None:
        """Derive, on the device, what the parameters keep of the step's lengths and pages; a graph holds this call."""
        ...

    def run(self, query: torch.Tensor, cache: torch.Tensor, parameters: AttentionParameters) -> torch.Tensor:
        """`query` [tokens, q_heads, head_dim] over one layer's `cache` -> the same shape."""
        ...
