"""Objects between this process and another of ours, a thread each way: neither side waits for the other."""

import pickle
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


class Pipe:
    """One end.

    Args:
        receive: gets each object, and None once the other end is gone; called by a thread of the pipe.
    """

    def __init__(self, connection: Connection, receive: Callable[[Any], None]) -> None:
        self._connection = connection
        self._receive = receive
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, daemon=True, name="pipe out")
        self._writer.start()
        threading.Thread(target=self._read, daemon=True, name="pipe in").start()

    @property
    def behind(self) -> int:
        """Objects that the other end has not taken."""
        return self._outbox.qsize()

    def send(self, message: object) -> None:
        """Put an object, which is not None, on its way; it is lost if the other end is gone."""
        self._outbox.put(message)

    def flush(self, seconds: float) -> None:
        """Wait for what was sent to be on its way; nothing can be sent any more."""
        self._outbox.put(None)
        self._writer.join(seconds)

    def _write(self) -> None:
        try:
            while (message := self._outbox.get()) is not None:
                self._connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        except OSError:
            pass  # the reader hears that the other end is gone, and says so

    def _read(self) -> None:
        try:
            while True:
                self._receive(pickle.loads(self._connection.recv_bytes()))
        except (EOFError, OSError):
            pass
        except Exception:  # noqa: BLE001 - what cannot be read is as bad as an end: better told than waited for
            traceback.print_exc(file=sys.stderr)
        self._receive(None)
