"""Pages of the KV cache: who holds them, and which hold a prefix that another request may use again.

Tensors are `[pages, 2, kv_heads, page_size, head_dim]` a layer. Page 0 is the null page: padding lanes point at it and
nobody reads what is written there.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch

from runtime.config import ModelConfig

NULL_PAGE = 0


class OutOfPages(Exception):
    """The pool cannot give as many pages as asked now; someone has to release some first."""


class PrefixKeys:
    """A growing sequence's digests, one a full page, each of all tokens up to the page's end."""

    def __init__(self, page_size: int) -> None:
        self.keys: list[bytes] = []
        self._page_size = page_size
        self._running = hashlib.blake2b(digest_size=16)

    @property
    def tokens(self) -> int:
        """Tokens that have a digest so far: what `extend` goes on from."""
        return len(self.keys) * self._page_size

    def extend(self, ids: Sequence[int]) -> None:
        """Add the full pages among `ids`, the sequence's tokens from `tokens` on."""
        whole = np.asarray(ids, np.int64)
        for end in range(self._page_size, len(whole) + 1, self._page_size):
            self._running.update(whole[end - self._page_size : end].tobytes())
            self.keys.append(self._running.digest())


class PagePool:
    """Hands out page numbers, counts who shares them, and keeps full pages of finished requests for reuse.

    A released page that holds a registered prefix stays until its place is needed; the one unused longest goes first.

    Args:
        pages: how many there are, the null page among them.
        page_size: tokens of a page.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.capacity = pages - 1
        self._unused = list(range(pages - 1, NULL_PAGE, -1))
        self._holders = np.zeros(pages, np.int32)
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._page_of: dict[bytes, int] = {}
        self._prefix_of: dict[int, bytes] = {}

    @property
    def available(self) -> int:
        """Pages that `allocate` could give now."""
        return len(self._unused) + len(self._kept)

    def pages_for(self, tokens: int) -> int:
        """Pages that hold `tokens` tokens."""
        return -(-tokens // self.page_size)

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages, forgetting kept prefixes as needed.

        Raises:
            OutOfPages: there are fewer; none is taken.
        """
        if count > self.available:
            raise OutOfPages(f"{count} pages wanted, {self.available} of {self.capacity} available")
        pages = []
        for _ in range(count):
            page = self._unused.pop() if self._unused else self._forget_oldest()
            self._holders[page] = 1
            pages.append(page)
        return pages

    def release(self, pages: Sequence[int]) -> None:
        """Give up one hold on each page; what nobody holds any more is free, or kept if it is a registered prefix."""
        # From the end: of a prefix the last page is forgotten first, since without the first the rest is of no use.
        for page in reversed(pages):
            if not self._holders[page]:
                raise ValueError(f"page {page}: released more often than it was taken")
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            if page in self._prefix_of:
                self._kept[page] = None
            else:
                self._unused.append(page)

    def take_prefix(self, keys: Sequence[bytes]) -> list[int]:
        """Hold the pages that already hold the start of a sequence, as far as its `keys` are known here."""
        pages = []
        for key in keys:
            page = self._page_of.get(key)
            if page is None:
                break
            pages.append(page)
        for page in pages:
            self._kept.pop(page, None)
            self._holders[page] += 1
        return pages

    def share(self, pages: Sequence[int]) -> None:
        """One more hold on each of `pages`, which someone holds already."""
        for page in pages:
            self._holders[page] += 1

    def holders(self, page: int) -> int:
        """How many hold the page."""
        return int(self._holders[page])

    def is_registered(self, page: int) -> bool:
        """Whether the page holds a prefix that others may take at any time: it must not be written to."""
        return page in self._prefix_of

    def register_prefix(self, key: bytes, page: int) -> None:
        """Say that `page` is the last of the pages whose tokens `key` stands for; the first to say so stays."""
        if key not in self._page_of and page not in self._prefix_of:
            self._page_of[key] = page
            self._prefix_of[page] = key

    def _forget_oldest(self) -> int:
        page, _ = self._kept.popitem(last=False)
        del self._page_of[self._prefix_of.pop(page)]
        return page


def allocate_cache(
    config: ModelConfig, pages: int, page_size: int, dtype: torch.dtype, device: torch.device
) -> list[torch.Tensor]:
    """One cache tensor a layer, filled with zeros so that no page ever holds a NaN that nobody wrote."""
    shape = (pages, 2, config.kv_heads, page_size, config.head_dim)
    return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.layers)]
