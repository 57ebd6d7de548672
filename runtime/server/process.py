"""`python -m runtime serve` as a process of another program: started, waited for, ended; what it says is kept."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Self

START_SECONDS = 300.0
"""A large model's weights and captures, and kernels that nobody has built yet."""
END_SECONDS = 40.0
LINES = 400
_ROOT = Path(__file__).parents[2]


class ServerProcessError(RuntimeError):
    """The server did not start, did not end well, or not in time; says how, with its last lines."""


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt here, so that servers are ended on the way out. For a program's main thread."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class ServerProcess:
    """A server at a free port of this machine's own address; a context manager, at whose end it is gone.

    Args:
        arguments: of `serve`, without host and port.
        environment: beside this process's own.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "runtime",
                "serve",
                *arguments,
                "--host",
                "127.0.0.1",
                "--port",
                "0",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join(paths)},
        )
        self.address = ""
        self._lines: deque[str] = deque(maxlen=LINES)
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True, name="server's words")
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.kill()

    @property
    def lines(self) -> list[str]:
        """What it said last, on both of its outputs."""
        return list(self._lines)

    def wait_ready(self, seconds: float = START_SECONDS) -> str:
        """Its address, once clients can come to it.

        Raises:
            ServerProcessError: it has ended before, or takes too long.
        """
        self._ready.wait(seconds)
        if self.address:
            return self.address
        if self.process.poll() is None and not self._ready.is_set():
            raise self._error(f"not serving after {seconds:g} s")
        raise self._error(f"ended before it served: {self._status()}")

    def end(self, seconds: float = END_SECONDS) -> None:
        """Tell it to end, and wait for it.

        Raises:
            ServerProcessError: it is still there after `seconds`, or ends with an error.
        """
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise self._error(f"not ended after {seconds:g} s") from None
        if self.process.returncode:
            raise self._error(self._status())

    def kill(self) -> None:
        """End it at once, if it still runs; its ranks and front ends end by themselves."""
        self.process.kill()
        self.process.wait()

    def _status(self) -> str:
        code = self.process.wait()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"

    def _error(self, how: str) -> ServerProcessError:
        if self.process.poll() is not None:
            self._reader.join(1.0)  # its last words may still be on their way
        said = " | ".join(line for line in self.lines[-8:] if line)
        return ServerProcessError(f"server: {how}; it said: {said or 'nothing'}")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line.rstrip("\n"))
            found = re.search(r"serving at (\S+?)(,|$)", line.rstrip())
            if found is not None and not self.address:
                self.address = found[1]
                self._ready.set()
        self._ready.set()
