"""Attention by flashinfer, an optional package: pages by index pointers, and a schedule that its host code makes.

flashinfer cuts a step's lanes into work for the GPU on the host, from the lengths, and copies that schedule to the
device: `replan` has it made, before every run, from the host's own copy of the lengths. So nothing is read back from the
device, and the step's pages, which only the device has to know, come from `ragged_pages`, inside a graph as outside.

Of a decode's batch size the launches are the same whatever the lengths are; only the schedule's contents change. All
that a graph reads is allocated once a batch size: pointers, pages, the schedule. A lane of length 0 has no pages, the
schedule gives it one empty piece of work, and its row of the output is 0.

The cache's layout is flashinfer's "HND", one tensor. Its fa2 kernels on tensor cores serve decode too: on an H200 with
groups of 4 they took 48 us for 64 lanes of 512 tokens, those without 59 us, and fa3, made for prefill, 178 us.

Written for flashinfer-python 0.6.1. Attributes of its wrappers that begin with an underscore are what its own
`fast_decode_plan` and every engine that captures it rely on; one that is gone is an AttributeError at the first plan.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from runtime.attention import AttentionBackendError
from runtime.attention.ragged_pages import ragged_pages, require_page_size
from runtime.batch import StepInputs
from runtime.config import ModelConfig
from runtime.contract import GraphContractError

_SCHEDULE_BYTES = 1 << 20
"""Of a decode's schedule: at most 17 bytes for each piece of work, of which there are thousands at most."""


@dataclass(frozen=True)
class Pages:
    """What `ragged_pages` writes.

    Attributes:
        kv_indptr: int32 [batch + 1].
        kv_indices: int32, room for all lanes' pages.
        last_page_lengths: int32 [batch].
    """

    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    last_page_lengths: torch.Tensor

    @classmethod
    def empty(cls, batch: int, pages: int, device: torch.device) -> "Pages":
        sizes = (batch + 1, batch * pages, batch)
        return cls(*(torch.zeros(size, dtype=torch.int32, device=device) for size in sizes))


class _Schedule:
    """A wrapper of flashinfer, and when its last schedule had left the host.

    flashinfer writes a schedule to pinned memory and enqueues its copy to the device. The next one may be written only
    when that copy is over, which it is, unless two steps are prepared ahead of the device.
    """

    def __init__(self, wrapper: Any, config: ModelConfig, page_size: int) -> None:
        self.wrapper = wrapper
        self._shape = (config.q_heads, config.kv_heads, config.head_dim, page_size)
        self._options = {
            "q_data_type": config.dtype,
            "kv_data_type": config.dtype,
            "sm_scale": config.head_dim**-0.5,
        }
        self._page_size = page_size
        self._copied = torch.cuda.Event()

    @contextmanager
    def _written(self) -> Iterator[None]:
        self._copied.synchronize()
        yield
        self._copied.record()

    def _lengths(self, inputs: StepInputs) -> tuple[torch.Tensor, torch.Tensor]:
        """Page pointers int32 [batch + 1] and tokens of the last pages int32 [batch], on the host."""
        lengths = inputs.host_kv_lengths
        pages = -(-lengths // self._page_size)
        kv_indptr = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(pages, out=kv_indptr[1:])
        last = np.where(pages > 0, lengths - (pages - 1) * self._page_size, 1).astype(np.int32)
        return torch.from_numpy(kv_indptr), torch.from_numpy(last)


class _DecodeSchedule(_Schedule):
    """Of all decode steps of one batch size, captured and eager: they follow one another on one stream."""

    def __init__(
        self, package: Any, workspace: torch.Tensor, pages: Pages, config: ModelConfig, page_size: int
    ) -> None:
        wrapper = package.BatchDecodeWithPagedKVCacheWrapper(
            workspace,
            "HND",
            use_cuda_graph=True,
            use_tensor_cores=True,
            paged_kv_indptr_buffer=pages.kv_indptr,
            paged_kv_indices_buffer=pages.kv_indices,
            paged_kv_last_page_len_buffer=pages.last_page_lengths,
            backend="fa2",
        )
        super().__init__(wrapper, config, page_size)
        self.pages = pages
        self._replan = package.decode.fast_decode_plan
        wrapper.reset_workspace_buffer(
            workspace, torch.zeros(_SCHEDULE_BYTES, dtype=torch.uint8, device=workspace.device)
        )
        batch = len(pages.last_page_lengths)
        nothing = torch.zeros(batch + 1, dtype=torch.int32)
        with self._written():
            wrapper.plan(nothing, pages.kv_indices[:0], nothing[1:], *self._shape, **self._options)
        self._launch = list(wrapper._plan_info)

    def replan(self, inputs: StepInputs) -> None:
        """Make the schedule of a step.

        Raises:
            GraphContractError: its launches are not those of the batch size's first one, which graphs hold.
        """
        kv_indptr, last = self._lengths(inputs)
        with self._written():
            # Given host tensors, it copies the schedule and nothing else: the pages are the device's to write.
            self._replan(self.wrapper, kv_indptr, self.pages.kv_indices, last, *self._shape, **self._options)
        if list(self.wrapper._plan_info) != self._launch:
            raise GraphContractError(
                f"flashinfer's launches at batch {len(last)}: expected {self._launch},"
                f" got {list(self.wrapper._plan_info)}"
            )


class _PrefillSchedule(_Schedule):
    """Of all prefills: they are eager, one after another on one stream."""

    def __init__(self, package: Any, workspace: torch.Tensor, config: ModelConfig, page_size: int) -> None:
        wrapper = package.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND", backend="fa2")
        super().__init__(wrapper, config, page_size)

    def replan(self, inputs: StepInputs, pages: Pages) -> None:
        """Make the schedule of a step, whose pages will be in `pages` when it runs.

        Raises:
            AttentionBackendError: the step's query pointers are on the device alone; to read them would be to wait.
        """
        if inputs.host_query_indptr is None:
            raise AttentionBackendError(
                "flashinfer: expected a prefill's host_query_indptr, got none; make_inputs gives it"
            )
        kv_indptr, last = self._lengths(inputs)
        query_indptr = torch.from_numpy(inputs.host_query_indptr)
        with self._written():
            self.wrapper.plan(
                query_indptr, kv_indptr, pages.kv_indices, last, *self._shape, causal=True, **self._options
            )


@dataclass(frozen=True)
class DecodeParameters:
    """A decode's step. The wrapper in its schedule is held so that a graph's contract covers the wrapper's buffers."""

    inputs: StepInputs
    schedule: _DecodeSchedule

    @property
    def pages(self) -> Pages:
        return self.schedule.pages

    def replan(self) -> None:
        self.schedule.replan(self.inputs)


@dataclass(frozen=True)
class PrefillParameters:
    """A prefill's step, with pages of its own."""

    inputs: StepInputs
    schedule: _PrefillSchedule
    pages: Pages

    def replan(self) -> None:
        self.schedule.replan(self.inputs, self.pages)


FlashInferParameters = DecodeParameters | PrefillParameters


class FlashInferAttention:
    """Attention by flashinfer's fa2 kernels, over a cache of the model's dtype.

    Args:
        max_batch: most lanes of a decode step.
        page_size: of the cache, in tokens.
        device: a GPU.

    Raises:
        AttentionBackendError: flashinfer is not installed, or takes no such model or device.
    """

    name = "flashinfer"

    def __init__(self, config: ModelConfig, max_batch: int, page_size: int, device: torch.device) -> None:
        package = _package()
        if device.type != "cuda":
            raise AttentionBackendError(f"flashinfer: expected a GPU, got {device}; choose reference")
        if config.dtype not in (torch.bfloat16, torch.float16):
            raise AttentionBackendError(
                f"flashinfer: expected a model in bfloat16 or float16, got {config.dtype}; choose triton or xqa"
            )
        self._config = config
        self._page_size = page_size
        self._pages_a_lane = -(-config.max_length // page_size)
        self._workspace = torch.zeros(
            _workspace_bytes(config, max_batch, device), dtype=torch.uint8, device=device
        )
        self._prefill = _PrefillSchedule(package, self._workspace, config, page_size)
        self._decodes: dict[int, _DecodeSchedule] = {}

    def plan(self, inputs: StepInputs) -> FlashInferParameters:
        batch, width = inputs.block_tables.shape
        if inputs.is_decode:
            return DecodeParameters(inputs, self._decode(batch))
        return PrefillParameters(inputs, self._prefill, Pages.empty(batch, width, self._workspace.device))

    def replan(self, parameters: FlashInferParameters) -> None:
        """Have flashinfer schedule the step; see the module.

        Raises:
            GraphContractError: inside a capture, or the schedule does not fit the launches that graphs hold.
        """
        if torch.cuda.is_current_stream_capturing():
            raise GraphContractError("flashinfer: cannot replan inside a capture; replan before it")
        parameters.replan()

    def refresh(self, parameters: FlashInferParameters) -> None:
        inputs, pages = parameters.inputs, parameters.pages
        ragged_pages(
            inputs.block_tables,
            inputs.kv_lengths,
            self._page_size,
            pages.kv_indptr,
            pages.kv_indices,
            pages.last_page_lengths,
        )

    def run(self, query: torch.Tensor, cache: torch.Tensor, parameters: FlashInferParameters) -> torch.Tensor:
        require_page_size(cache, self._page_size)
        out: torch.Tensor = parameters.schedule.wrapper.run(query, cache)
        return out

    def _decode(self, batch: int) -> _DecodeSchedule:
        if batch not in self._decodes:
            pages = Pages.empty(batch, self._pages_a_lane, self._workspace.device)
            self._decodes[batch] = _DecodeSchedule(
                _package(), self._workspace, pages, self._config, self._page_size
            )
        return self._decodes[batch]


def _package() -> Any:
    try:
        return importlib.import_module("flashinfer")
    except ImportError as error:
        raise AttentionBackendError(
            f"flashinfer: expected to be installed ({error}); pip install flashinfer-python==0.6.1,"
            " or choose triton or xqa"
        ) from error


def _workspace_bytes(config: ModelConfig, max_batch: int, device: torch.device) -> int:
    """Of the float32 partial outputs and sums of lanes that are cut: as many tiles of query rows as flashinfer reserves.

    It cuts lanes until there are two blocks for each multiprocessor; a decode's tile has 16 rows or more, a prefill's at
    most 128.
    """
    group = config.q_heads // config.kv_heads
    blocks = 2 * torch.cuda.get_device_properties(device).multi_processor_count // config.kv_heads
    tile = 16 if group <= 16 else 64 if group <= 64 else 128
    decode_tiles = max(blocks, -(-max_batch * group // tile) + max_batch)
    rows = max(decode_tiles * tile, blocks * 128)
    return config.q_heads * rows * (config.head_dim + 1) * 4 + 1024
