"""Page lists one after another, from padded block tables: the metadata of attention by index pointers."""

import torch
import triton
import triton.language as tl

from kernels import launch

BLOCK_PAGES = 256


def ragged_pages(
    block_tables: torch.Tensor,
    kv_lengths: torch.Tensor,
    page_size: int,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    last_page_lengths: torch.Tensor | None = None,
) -> None:
    """Write `kv_indptr` int32 [batch + 1] and the live entries of `kv_indices` int32 [batch * max_pages].

    Lane b's pages are kv_indices[kv_indptr[b] : kv_indptr[b + 1]], those that hold kv_lengths[b] tokens; pointers after
    the last live lane repeat the last value. `block_tables` int32 [batch, max_pages], rows contiguous; all on one device.
    `last_page_lengths` int32 [batch], where given, gets the tokens of each lane's last page: 1 to page_size, and 1 for a
    lane without pages.
    """
    batch, width = block_tables.shape
    if block_tables.device.type == "cpu":
        _on_host(block_tables, kv_lengths, page_size, kv_indptr, kv_indices, last_page_lengths)
        return
    launch.launch(
        _ragged_pages_kernel,
        (batch,),
        block_tables,
        block_tables.stride(0),
        kv_lengths,
        kv_indptr,
        kv_indices,
        last_page_lengths,
        batch,
        page_size,
        LANES=triton.next_power_of_2(batch),
        BLOCK=min(BLOCK_PAGES, triton.next_power_of_2(width)),
        num_warps=4,
    )


def require_page_size(cache: torch.Tensor, page_size: int) -> None:
    """Check that a cache's pages are those that the lists were made for.

    Raises:
        ValueError: they hold more or fewer tokens.
    """
    if cache.shape[3] != page_size:
        raise ValueError(
            f"cache: expected pages of {page_size} tokens, as the backend's, got {cache.shape[3]}"
        )


def _on_host(
    block_tables: torch.Tensor,
    kv_lengths: torch.Tensor,
    page_size: int,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    last_page_lengths: torch.Tensor | None,
) -> None:
    pages = -(-kv_lengths // page_size)
    kv_indptr[0] = 0
    torch.cumsum(pages, 0, dtype=torch.int32, out=kv_indptr[1:])
    live = torch.arange(block_tables.shape[1]) < pages[:, None]
    kept = block_tables[live]
    kv_indices[: len(kept)] = kept
    if last_page_lengths is not None:
        last_page_lengths.copy_(torch.where(pages > 0, kv_lengths - (pages - 1) * page_size, 1))


@triton.jit
def _ragged_pages_kernel(
    tables,
    table_stride,
    kv_lengths,
    kv_indptr,
    kv_indices,
    last_page_lengths,
    batch,
    page_size,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lane = tl.program_id(0)
    lanes = tl.arange(0, LANES)
    lengths = tl.load(kv_lengths + lanes, mask=lanes < batch, other=0)
    pages = tl.cdiv(lengths, page_size)
    start = tl.sum(tl.where(lanes < lane, pages, 0))
    count = tl.sum(tl.where(lanes == lane, pages, 0))
    tl.store(kv_indptr + lane, start)
    tl.store(kv_indptr + batch, start + count, mask=lane == batch - 1)
    if last_page_lengths is not None:
        length = tl.sum(tl.where(lanes == lane, lengths, 0))
        tl.store(last_page_lengths + lane, tl.where(count > 0, length - (count - 1) * page_size, 1))
    row = tables + lane.to(tl.int64) * table_stride
    for first in range(0, count, BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(kv_indices + start + at, tl.load(row + at, mask=at < count, other=0), mask=at < count)
