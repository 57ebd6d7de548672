"""A job's log on its way to the service: kept in a file first, so that a service that is away costs no memory and no line."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

from ci_dispatch.runner.client import LeaseCalls
from ci_dispatch.runner.errors import LeaseLost, Refused, RunnerError

logger = logging.getLogger(__name__)

_GATHER_SECONDS = 0.1
_CHUNK = 256 << 10
_PATIENCE = 15.0
_END_SECONDS = 1.0


class LogStream:
    """Sends a file's bytes as they are added, each chunk with its offset; one that was sent twice is kept once.

    `add` may be called from any thread. Lines reach the service within some 0.2 s where it answers.
    """

    def __init__(self, calls: LeaseCalls, file: Path) -> None:
        """Bytes that the file holds already are sent again. Raises OSError."""
        self._calls = calls
        self._handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        self._written = os.fstat(self._handle).st_size
        self._sent = 0
        self._closed = False
        self._full = False
        self._changed = threading.Condition()
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name=f"log-{calls.lease_id}", daemon=True)
        self._thread.start()

    def add(self, chunk: bytes) -> None:
        """Raises OSError where the file cannot take it."""
        with self._changed:
            view = memoryview(chunk)
            while view:
                count = os.write(self._handle, view)
                self._written += count
                view = view[count:]
            self._changed.notify_all()

    def close(self, seconds: float) -> bool:
        """Sends the rest, for at most so long; True where the service has all that it wants."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(seconds)
        self._given_up.set()
        self._thread.join(_END_SECONDS)
        if not self._thread.is_alive():
            # One that still waits for an answer keeps its file; it ends with the answer or with the agent.
            os.close(self._handle)
        return self._full or self._sent == self._written

    def give_up(self) -> None:
        """Sends nothing more."""
        self._given_up.set()
        with self._changed:
            self._full = True
            self._changed.notify_all()

    def _send_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._full or self._closed or self._sent < self._written)
                if self._full or (self._closed and self._sent == self._written):
                    return
                closed = self._closed
            if not closed:
                # A step that prints line by line makes one call of many lines.
                time.sleep(_GATHER_SECONDS)
            if not self._send_next() and self._given_up.is_set():
                return

    def _send_next(self) -> bool:
        chunk = os.pread(self._handle, _CHUNK, self._sent)
        try:
            self._calls.log(self._sent, chunk, _PATIENCE, self._given_up)
        except LeaseLost:
            self.give_up()
        except Refused as refused:
            if refused.status == 422 and self._sent > 0:
                # The service lost what it had: all of it again.
                self._sent = 0
                return False
            if refused.status != 413:
                logger.warning("lease %d: the log is not taken: %s", self._calls.lease_id, refused)
            self.give_up()
        except RunnerError:
            return False
        else:
            self._sent += len(chunk)
            return True
        return False
