"""The keys and values of every running request, kept in pages of equal size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quire.allocator import PageAllocator
from quire.numerics import quantize_rows


@dataclass(frozen=True, slots=True)
class Write:
    """New tokens of one request. keys, values: float32 [n, width]."""

    request_id: str
    keys: np.ndarray
    values: np.ndarray


class PagedCache:
    """A pool of pages, and the block table that says which request's tokens lie where.

    keys, values: float32 or int8 [num_pages, page_size, width], as `page_format` says.
    key_scales, value_scales: float32 [num_pages, page_size]; one scale a token, 1 in float32 pages.
    block_table: int32 [max_requests, num_pages]; a row lists a request's pages in order, padded with 0.
    page_counts: int32 [max_requests]; entries of the row in use.
    lengths: int32 [max_requests]; tokens written so far.
    """

    def __init__(
        self, num_pages: int, page_size: int, width: int, max_requests: int, page_format: str = "float32"
    ) -> None:
        self.page_size = page_size
        self.width = width
        self.page_format = page_format
        dtype = np.int8 if page_format == "int8" else np.float32
        self.keys = np.zeros((num_pages, page_size, width), dtype)
        self.values = np.zeros((num_pages, page_size, width), dtype)
        self.key_scales = np.ones((num_pages, page_size), np.float32)
        self.value_scales = np.ones((num_pages, page_size), np.float32)
        self.block_table = np.zeros((max_requests, num_pages), np.int32)
        self.page_counts = np.zeros(max_requests, np.int32)
        self.lengths = np.zeros(max_requests, np.int32)
        self._pages = PageAllocator(num_pages)
        self._rows: dict[str, int] = {}
        self._free_rows = list(reversed(range(max_requests)))

    @property
    def free_pages(self) -> int:
        return self._pages.free

    def pages_for(self, tokens: int) -> int:
        """How many pages this many tokens fill, the last one perhaps in part."""
        return -(-tokens // self.page_size)

    def length(self, request_id: str) -> int:
        return int(self.lengths[self._rows[request_id]])

    def open(self, request_id: str) -> None:
        """Gives the request a row of the block table, and no page yet."""
        if request_id in self._rows:
            raise ValueError(f"request {request_id} is already open")
        if not self._free_rows:
            raise ValueError(f"all {len(self.lengths)} rows are taken; release a request first")
        self._rows[request_id] = self._free_rows.pop()

    def append_batch(self, writes: Sequence[Write]) -> None:
        """Writes the new tokens of many requests, one `Write` a request, with two scatters in all.

        Raises `OutOfPages` before anything is written; pages reserved by then stay with their requests.
        """
        if not writes:
            return
        for write in writes:
            row = self._rows[write.request_id]
            self._reserve(row, int(self.lengths[row]) + len(write.keys))
        slots = np.concatenate([self._slots(write) for write in writes])
        keys = np.concatenate([write.keys for write in writes]).copy()
        values = np.concatenate([write.values for write in writes]).copy()
        self._scatter(self.keys, self.key_scales, slots, keys)
        self._scatter(self.values, self.value_scales, slots, values)
        for write in writes:
            self.lengths[self._rows[write.request_id]] += len(write.keys)

    def read(self, request_id: str) -> tuple[np.ndarray, np.ndarray]:
        """The request's keys and values in order: float32 [length, width] each."""
        row = self._rows[request_id]
        length = int(self.lengths[row])
        pages = self.block_table[row, : self.pages_for(length)]
        keys = self._gather(self.keys, self.key_scales, pages)[:length]
        values = self._gather(self.values, self.value_scales, pages)[:length]
        return keys, values

    def release(self, request_id: str) -> None:
        """Takes the request's pages and its row back."""
        row = self._rows.pop(request_id)
        self._pages.release(self.block_table[row, : self.page_counts[row]].tolist())
        self.block_table[row] = 0
        self.page_counts[row] = 0
        self.lengths[row] = 0
        self._free_rows.append(row)

    def _reserve(self, row: int, tokens: int) -> None:
        """Gives the row pages until it can hold this many tokens."""
        while self.page_counts[row] < self.pages_for(tokens):
            self.block_table[row, self.page_counts[row]] = self._pages.allocate()
            self.page_counts[row] += 1

    def _slots(self, write: Write) -> np.ndarray:
        """Where the write's tokens go in the pool, counted in tokens: int32 [n]."""
        row = self._rows[write.request_id]
        positions = self.lengths[row] + np.arange(len(write.keys))
        pages = self.block_table[row, positions // self.page_size]
        return pages * self.page_size + positions % self.page_size

    def _scatter(self, pages: np.ndarray, scales: np.ndarray, slots: np.ndarray, rows: np.ndarray) -> None:
        if self.page_format == "int8":
            rows, scales.reshape(-1)[slots] = quantize_rows(rows)
        pages.reshape(-1, self.width)[slots] = rows

    def _gather(self, pages: np.ndarray, scales: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        return (pages[numbers] * scales[numbers][:, :, None]).reshape(-1, self.width)
