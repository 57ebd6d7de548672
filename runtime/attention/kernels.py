"""Attention by our kernels, in two manners that differ in how pages are found: index pointers, or padded tables."""

from dataclasses import dataclass

import torch

from kernels.paged_decode_attention import DecodePlan, paged_decode_attention, paged_decode_attention_ragged
from kernels.paged_prefill_attention import paged_prefill_attention
from runtime.attention.ragged_pages import ragged_pages, require_page_size
from runtime.batch import StepInputs
from runtime.config import ModelConfig


@dataclass(frozen=True)
class TableParameters:
    """The step's own tensors; the kernels read lengths and pages from them when they run."""

    inputs: StepInputs


@dataclass(frozen=True)
class RaggedParameters:
    """As `TableParameters`, with the index pointers that `refresh` derives; none in a prefill."""

    inputs: StepInputs
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor


class _KernelAttention:
    """What both manners share: the workspace of a decode, and prefill."""

    def __init__(self, config: ModelConfig, max_batch: int, page_size: int, device: torch.device) -> None:
        self._scale = config.head_dim**-0.5
        self._page_size = page_size
        self._workspace = DecodePlan.create(
            max_batch, config.max_length, config.q_heads, config.kv_heads, config.head_dim, device
        )

    def replan(self, parameters: RaggedParameters | TableParameters) -> None:
        """Nothing is made on the host: the kernels' schedule is theirs, from the lengths on the device."""

    def _prefill(self, query: torch.Tensor, cache: torch.Tensor, inputs: StepInputs) -> torch.Tensor:
        return paged_prefill_attention(
            query,
            cache,
            inputs.block_tables,
            inputs.query_indptr,
            inputs.kv_lengths,
            inputs.max_query_length,
            scale=self._scale,
        )


class TritonAttention(_KernelAttention):
    """Pages by index pointers, derived from the tables once a step."""

    name = "triton"

    def plan(self, inputs: StepInputs) -> RaggedParameters:
        tables = inputs.block_tables
        return RaggedParameters(
            inputs, tables.new_empty(tables.shape[0] + 1), tables.new_empty(tables.shape[0] * tables.shape[1])
        )

    def refresh(self, parameters: RaggedParameters) -> None:
        inputs = parameters.inputs
        if inputs.is_decode:
            ragged_pages(
                inputs.block_tables,
                inputs.kv_lengths,
                self._page_size,
                parameters.kv_indptr,
                parameters.kv_indices,
            )

    def run(self, query: torch.Tensor, cache: torch.Tensor, parameters: RaggedParameters) -> torch.Tensor:
        inputs = parameters.inputs
        if not inputs.is_decode:
            return self._prefill(query, cache, inputs)
        require_page_size(cache, self._page_size)
        return paged_decode_attention_ragged(
            query,
            cache,
            parameters.kv_indptr,
            parameters.kv_indices,
            inputs.kv_lengths,
            self._scale,
            plan=self._workspace,
        )


class TableAttention(_KernelAttention):
    """Pages by padded block tables with one length a lane, in the manner of TensorRT-LLM's XQA."""

    name = "xqa"

    def plan(self, inputs: StepInputs) -> TableParameters:
        return TableParameters(inputs)

    def refresh(self, parameters: TableParameters) -> None:
        """Nothing is derived."""

    def run(self, query: torch.Tensor, cache: torch.Tensor, parameters: TableParameters) -> torch.Tensor:
        inputs = parameters.inputs
        if not inputs.is_decode:
            return self._prefill(query, cache, inputs)
        return paged_decode_attention(
            query, cache, inputs.block_tables, inputs.kv_lengths, self._scale, plan=self._workspace
        )
