"""Which pages are free."""

from __future__ import annotations

import heapq
from collections.abc import Iterable


class OutOfPages(RuntimeError):
    """Every page is taken."""


class PageAllocator:
    """Hands out page numbers, the lowest free one first, and takes them back."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages))
        self._taken: set[int] = set()

    @property
    def free(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        """Raises `OutOfPages` if there is none."""
        if not self._free:
            raise OutOfPages(f"all {self.num_pages} pages are taken")
        page = heapq.heappop(self._free)
        self._taken.add(page)
        return page

    def release(self, pages: Iterable[int]) -> None:
        """Raises `ValueError` for a page that nobody holds: someone released it twice."""
        for page in pages:
            if page not in self._taken:
                raise ValueError(f"page {page} is not taken")
            self._taken.remove(page)
            heapq.heappush(self._free, page)
