"""The keys and values of every running request, kept in pages of equal size."""

from __future__ import annotations

import numpy as np

from quire.allocator import PageAllocator


class PagedCache:
    """A pool of pages, and the block table that says which request's tokens lie where.

    keys, values: float32 [num_pages, page_size, width].
    block_table: int32 [max_requests, num_pages]; a row lists a request's pages in order, padded with 0.
    lengths: int32 [max_requests]; tokens written so far.
    """

    def __init__(self, num_pages: int, page_size: int, width: int, max_requests: int) -> None:
        self.page_size = page_size
        self.width = width
        self.keys = np.zeros((num_pages, page_size, width), np.float32)
        self.values = np.zeros((num_pages, page_size, width), np.float32)
        self.block_table = np.zeros((max_requests, num_pages), np.int32)
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

    def append(self, request_id: str, key: np.ndarray, value: np.ndarray) -> None:
        """Writes one token. key, value: [width]. Raises `OutOfPages`."""
        row = self._rows[request_id]
        page, slot = divmod(int(self.lengths[row]), self.page_size)
        if slot == 0:
            self.block_table[row, page] = self._pages.allocate()
        physical = self.block_table[row, page]
        self.keys[physical, slot] = key
        self.values[physical, slot] = value
        self.lengths[row] += 1

    def read(self, request_id: str) -> tuple[np.ndarray, np.ndarray]:
        """The request's keys and values in order: float32 [length, width] each."""
        row = self._rows[request_id]
        length = int(self.lengths[row])
        pages = self.block_table[row, : self.pages_for(length)]
        keys = self.keys[pages].reshape(-1, self.width)[:length]
        values = self.values[pages].reshape(-1, self.width)[:length]
        return keys, values

    def release(self, request_id: str) -> None:
        """Takes the request's pages and its row back."""
        row = self._rows.pop(request_id)
        held = self.pages_for(int(self.lengths[row]))
        self._pages.release(self.block_table[row, :held].tolist())
        self.block_table[row] = 0
        self.lengths[row] = 0
        self._free_rows.append(row)
