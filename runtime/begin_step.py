"""How a captured decode step begins: each lane's token, its new table entry, its embedding; one launch."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels import launch

MAX_BLOCK = 2048


@dataclass(frozen=True)
class LaneStart:
    """What the start of a step reads and writes, on one device.

    Attributes:
        token_ids: int32 [batch]; below 0, the lane's token is last_ids[row].
        rows: int32 [batch].
        last_ids: int32 [rows].
        table_columns: int32 [batch]; below 0, the lane's block table stays as it is.
        table_pages: int32 [batch], written to block_tables[lane, column].
        block_tables: int32 [batch, max_pages], rows contiguous.
    """

    token_ids: torch.Tensor
    rows: torch.Tensor
    last_ids: torch.Tensor
    table_columns: torch.Tensor
    table_pages: torch.Tensor
    block_tables: torch.Tensor


def begin_step(start: LaneStart, embedding: torch.Tensor) -> torch.Tensor:
    """Write the table entries and return the tokens' rows of `embedding` [vocab, hidden]: [batch, hidden]."""
    if embedding.device.type == "cpu":
        return begin_step_reference(start, embedding)
    batch, hidden = start.token_ids.shape[0], embedding.shape[1]
    x = embedding.new_empty(batch, hidden)
    launch.launch(
        _begin_step_kernel,
        (batch,),
        start.token_ids,
        start.rows,
        start.last_ids,
        start.table_columns,
        start.table_pages,
        start.block_tables,
        start.block_tables.stride(0),
        embedding,
        x,
        hidden,
        BLOCK=min(MAX_BLOCK, triton.next_power_of_2(hidden)),
        num_warps=4,
    )
    return x


def begin_step_reference(start: LaneStart, embedding: torch.Tensor) -> torch.Tensor:
    """The same through torch, on any device."""
    lanes = (start.table_columns >= 0).nonzero().flatten()
    start.block_tables[lanes, start.table_columns[lanes].long()] = start.table_pages[lanes]
    fed = start.last_ids[start.rows.clamp(min=0).long()]
    return torch.nn.functional.embedding(torch.where(start.token_ids < 0, fed, start.token_ids), embedding)


@triton.jit
def _begin_step_kernel(
    token_ids,
    rows,
    last_ids,
    table_columns,
    table_pages,
    tables,
    table_stride,
    embedding,
    x,
    hidden,
    BLOCK: tl.constexpr,
):
    lane = tl.program_id(0).to(tl.int64)
    token = tl.load(token_ids + lane)
    if token < 0:
        token = tl.load(last_ids + tl.load(rows + lane))
    column = tl.load(table_columns + lane)
    if column >= 0:
        tl.store(tables + lane * table_stride + column, tl.load(table_pages + lane))
    row = embedding + token.to(tl.int64) * hidden
    for first in range(0, hidden, BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(x + lane * hidden + at, tl.load(row + at, mask=at < hidden, other=0.0), mask=at < hidden)
