"""Attention by the kernels' float64 reference: any device, any floating dtype, and slow."""

from dataclasses import dataclass

import torch

from kernels.paged_prefill_attention import paged_prefill_attention_reference
from runtime.batch import StepInputs


@dataclass(frozen=True)
class ReferenceParameters:
    """The step's tensors themselves: a decode is a prefill of one token a lane."""

    inputs: StepInputs


class ReferenceAttention:
    name = "reference"

    def plan(self, inputs: StepInputs) -> ReferenceParameters:
        return ReferenceParameters(inputs)

    def replan(self, parameters: ReferenceParameters) -> None:
        """Nothing is made on the host."""

    def refresh(self, parameters: ReferenceParameters) -> None:
        """Nothing is derived."""

    def run(self, query: torch.Tensor, cache: torch.Tensor, parameters: ReferenceParameters) -> torch.Tensor:
        inputs = parameters.inputs
        out, _ = paged_prefill_attention_reference(
            query, cache, inputs.block_tables, inputs.query_indptr, inputs.kv_lengths
        )
        return out.to(query.dtype)
