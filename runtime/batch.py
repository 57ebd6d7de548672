"""A step's inputs: made on the host from the schedule, as the tensors that the model reads."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from runtime.kv_cache import NULL_PAGE
from runtime.scheduler import StepPlan

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class HostStep:
    """One step in host memory. `batch` lanes, one a request; `tokens` new tokens, lane after lane.

    Attributes:
        token_ids: int32 [tokens].
        positions: int32 [tokens], each token's place in its sequence.
        slots: int64 [tokens], page * page_size + offset, where its key and value go.
        query_indptr: int32 [batch + 1], lane b's tokens are query_indptr[b] to query_indptr[b + 1].
        sequence_lengths: int32 [batch], tokens cached before this step.
        kv_lengths: int32 [batch], tokens cached with it.
        block_tables: int32 [batch, pages of the longest lane], the rest is the null page.
        samples: bool [batch], whether a lane's last logits choose its next token.
    """

    token_ids: Int32s
    positions: Int32s
    slots: Int64s
    query_indptr: Int32s
    sequence_lengths: Int32s
    kv_lengths: Int32s
    block_tables: Int32s
    samples: npt.NDArray[np.bool_]
    is_decode: bool

    @property
    def batch(self) -> int:
        return len(self.kv_lengths)


@dataclass(frozen=True)
class StepInputs:
    """`HostStep` on the device, as the model and the attention backends read it.

    Attributes:
        last_tokens: int64 [batch], the row of each lane's last token; None in a decode, where every row is one.
        max_query_length: most new tokens of a lane.
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


def host_step(plan: StepPlan, page_size: int) -> HostStep:
    """Lay out a schedule's chunks, one lane each."""
    starts = np.array([chunk.start for chunk in plan.chunks], np.int32)
    counts = np.array([chunk.count for chunk in plan.chunks], np.int32)
    positions = np.concatenate(
        [np.arange(s, s + c, dtype=np.int32) for s, c in zip(starts, counts, strict=True)]
    )
    lanes = np.repeat(np.arange(len(counts)), counts)
    tables = _tables([chunk.request.pages for chunk in plan.chunks])
    return HostStep(
        token_ids=np.concatenate(
            [_ids(chunk.request.ids, chunk.start, chunk.count) for chunk in plan.chunks]
        ),
        positions=positions,
        slots=tables[lanes, positions // page_size].astype(np.int64) * page_size + positions % page_size,
        query_indptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        sequence_lengths=starts,
        kv_lengths=starts + counts,
        block_tables=tables,
        samples=np.array([chunk.samples for chunk in plan.chunks]),
        is_decode=plan.is_decode,
    )


def to_device(step: HostStep, device: torch.device) -> StepInputs:
    """Copy a step to `device` into new tensors; graphs use `buffers` instead."""

    def put(array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    last_tokens = None if step.is_decode else put(step.query_indptr[1:].astype(np.int64) - 1)
    return StepInputs(
        put(step.token_ids),
        put(step.positions),
        put(step.slots),
        put(step.query_indptr),
        put(step.sequence_lengths),
        put(step.kv_lengths),
        put(step.block_tables),
        last_tokens,
        int(np.diff(step.query_indptr).max()),
        step.is_decode,
    )


def _ids(ids: Sequence[int], start: int, count: int) -> Int32s:
    return np.array(ids[start : start + count], np.int32)


def _tables(pages: Sequence[Sequence[int]]) -> Int32s:
    tables = np.full((len(pages), max(len(held) for held in pages)), NULL_PAGE, np.int32)
    for row, held in zip(tables, pages, strict=True):
        row[: len(held)] = held
    return tables
