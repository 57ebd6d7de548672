"""Answers kept with their ETags: one that is still true costs nothing of the rate limit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

_TOTAL = 16 << 20
_LARGEST = 512 << 10


@dataclass(frozen=True, slots=True)
class Kept:
    etag: str
    text: str


class Etags:
    """At most 16 MiB of text, the least recently used leaving first. Safe to use from several threads."""

    def __init__(self, total: int = _TOTAL) -> None:
        self._total = total
        self._size = 0
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, url: str) -> Kept | None:
        with self._lock:
            found = self._kept.get(url)
            if found is not None:
                self._kept.move_to_end(url)
            return found

    def put(self, url: str, kept: Kept) -> None:
        with self._lock:
            if url in self._kept:
                self._size -= len(self._kept.pop(url).text)
            if len(kept.text) > min(_LARGEST, self._total):
                return
            self._kept[url] = kept
            self._size += len(kept.text)
            while self._size > self._total:
                self._size -= len(self._kept.popitem(last=False)[1].text)
