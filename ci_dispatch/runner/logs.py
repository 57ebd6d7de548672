"""A job's output on its way to whoever watches: counted, cut at a limit, its last lines at hand."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ci_dispatch.untrusted import clean

TAIL_BYTES = 32 << 10
_LONGEST_NOTE = 500
_CUT = b"\n[the log is full: what follows is not kept]\n"


class Log:
    """Passes the first `limit` bytes of all steps together on; remembers the last ones whatever came between."""

    def __init__(self, limit: int, pass_on: Callable[[bytes], None]) -> None:
        self._limit = limit
        self._pass_on = pass_on
        self._tail = bytearray()
        self._lock = threading.Lock()
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        return self.bytes > self._limit

    def write(self, chunk: bytes) -> None:
        """Bytes as the job wrote them, colours included."""
        with self._lock:
            room = self._limit - self.bytes
            self.bytes += len(chunk)
            self._tail += chunk
            del self._tail[:-TAIL_BYTES]
            kept = chunk[: max(room, 0)]
            if 0 <= room < len(chunk):
                kept += _CUT
        if kept:
            self._pass_on(kept)

    def note(self, text: str) -> None:
        """A line of the runner's own."""
        line = clean(" ".join(text.split()), _LONGEST_NOTE)
        start = "\n" if self._tail and not self._tail.endswith(b"\n") else ""
        self.write(f"{start}[whitesmoke] {line}\n".encode())

    def tail(self) -> str:
        """The last lines, whole ones where the cut allows it."""
        with self._lock:
            text = bytes(self._tail)
        if self.bytes > len(text) and b"\n" in text:
            text = text[text.index(b"\n") + 1 :]
        return clean(text.decode(errors="replace"), TAIL_BYTES)
