"""A step's inputs where no graph serves: made on the host from the schedule, as the tensors that the model reads."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from runtime.contract import require_not_capturing
from runtime.kv_cache import NULL_PAGE
from runtime.lanes import FEED
from runtime.request import Request
from runtime.scheduler import Chunk, Decode, StepPlan

Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True)
class StepInputs:
    """One step as the model and the attention backends read it: `batch` lanes, `tokens` new tokens, lane after lane.

    Attributes:
        token_ids: int32 [tokens].
        positions: int32 [tokens], each token's place in its sequence.
        slots: int64 [tokens], page * page_size + offset, where its key and value go.
        query_indptr: int32 [batch + 1], lane b's tokens are query_indptr[b] to query_indptr[b + 1].
        sequence_lengths: int32 [batch], tokens cached before this step.
        kv_lengths: int32 [batch], tokens cached with it; 0 for a padding lane.
        block_tables: int32 [batch, pages of the longest lane], the rest is the null page.
        last_tokens: int64 [batch], the row of each lane's last token; None in a decode, where every row is one.
        max_query_length: most new tokens of a lane.
        host_kv_lengths: int32 [batch], `kv_lengths` in host memory.
        host_query_indptr: int32 [batch + 1], `query_indptr` in host memory; None in a decode, where it counts up by one.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    query_indptr: torch.Tensor
    sequence_lengths: torch.Tensor
    kv_lengths: torch.Tensor
    block_tables: torch.Tensor
    last_tokens: torch.Tensor | None
    max_query_length: int
    is_decode: bool
    host_kv_lengths: Int32s
    host_query_indptr: Int32s | None = None


def to_device(array: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """Copy an array to `device` without waiting for what runs there."""
    tensor = torch.from_numpy(array)
    require_not_capturing("a pinned copy", device)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def chunks_of(plan: StepPlan) -> list[Chunk]:
    """A step as chunks, one a lane."""
    if isinstance(plan, Decode):
        return [Chunk(request, request.computed, 1, samples=True) for request in plan.requests]
    return list(plan.chunks)


def make_inputs(plan: StepPlan, page_size: int, last_ids: torch.Tensor) -> StepInputs:
    """Lay out a schedule's chunks, one lane each, on the device of `last_ids`, which gives tokens not known here."""
    chunks, device = chunks_of(plan), last_ids.device
    starts = np.array([chunk.start for chunk in chunks], np.int32)
    counts = np.array([chunk.count for chunk in chunks], np.int32)
    lanes = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts, dtype=np.int32)
    positions = (starts - (ends - counts))[lanes] + np.arange(ends[-1], dtype=np.int32)
    tables = _tables([chunk.request for chunk in chunks])
    ids = np.concatenate([_ids(chunk) for chunk in chunks])
    token_ids = to_device(ids, device)
    if (ids == FEED).any():
        rows = np.array([chunk.request.row for chunk in chunks], np.int64)[lanes]
        token_ids = torch.where(token_ids == FEED, last_ids[to_device(rows, device)], token_ids)
    sequence_lengths = to_device(starts, device)
    is_decode = isinstance(plan, Decode)
    query_indptr = np.concatenate([[0], ends]).astype(np.int32)
    return StepInputs(
        token_ids=token_ids,
        positions=sequence_lengths if is_decode else to_device(positions, device),
        slots=to_device(
            tables[lanes, positions // page_size] * np.int64(page_size) + positions % page_size, device
        ),
        query_indptr=to_device(query_indptr, device),
        sequence_lengths=sequence_lengths,
        kv_lengths=to_device(starts + counts, device),
        block_tables=to_device(tables, device),
        last_tokens=None if is_decode else to_device(ends.astype(np.int64) - 1, device),
        max_query_length=int(counts.max()),
        is_decode=is_decode,
        host_kv_lengths=starts + counts,
        host_query_indptr=None if is_decode else query_indptr,
    )


def _ids(chunk: Chunk) -> Int32s:
    known = chunk.request.ids(chunk.start, chunk.start + chunk.count)
    return np.array(known + [FEED] * (chunk.count - len(known)), np.int32)


def _tables(requests: list[Request]) -> Int32s:
    tables = np.full((len(requests), max(len(request.pages) for request in requests)), NULL_PAGE, np.int32)
    for row, request in zip(tables, requests, strict=True):
        row[: len(request.pages)] = request.pages
    return tables
