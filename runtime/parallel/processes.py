"""The processes of the other ranks: started, spoken to, watched; when one dies, all end, with its reason.

Rank 0 has two connections to each. Over the first go orders and reports; its end is how a death is noticed, whatever rank 0
is doing. The second carries nothing: a rank that reads its end knows that rank 0 is gone.
"""

import contextlib
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

START_SECONDS = 120.0
ANSWER_SECONDS = 600.0
END_SECONDS = 10.0
REASON_SECONDS = 2.0
"""How long an error on rank 0 waits for the news that another rank's end was its cause."""

T = TypeVar("T")
_ROOT = Path(__file__).parents[2]


class RankError(RuntimeError):
    """A rank died or failed, and with it the engine; says which, and why.

    Attributes:
        reason: what it said, or how its process ended.
    """

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"rank {rank}: {reason}")
        self.rank = rank
        self.reason = reason


class Processes:
    """Ranks 1 to size - 1; one thread of rank 0 listens to all of them.

    Args:
        on_failure: called once, from that thread, when a rank has failed; it lets rank 0 go on if it waits for that rank.

    Attributes:
        failure: what ended the ranks; None while they are well.
    """

    def __init__(self, size: int, on_failure: Callable[[], None]) -> None:
        self.failure: RankError | None = None
        self._on_failure = on_failure
        self._failed = threading.Event()
        self._lock = threading.Lock()
        self._ending = False
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._connections: dict[int, Connection] = {}
        self._lifelines: list[socket.socket] = []
        self._reports: dict[int, queue.SimpleQueue[tuple[str, Any]]] = {}
        for rank in range(1, size):
            self._start(rank)
        self._listener = threading.Thread(target=self._listen, daemon=True, name="ranks")
        self._listener.start()

    def send(self, order: str, content: Any = None) -> None:
        """Give all ranks an order.

        Raises:
            RankError: a rank is gone.
        """
        message = pickle.dumps((order, content), pickle.HIGHEST_PROTOCOL)
        self.require_well()
        for rank, connection in self._connections.items():
            try:
                connection.send_bytes(message)
            except OSError as error:
                raise self.failed(rank, error) from error

    def answers(self, report: str, seconds: float = ANSWER_SECONDS) -> dict[int, Any]:
        """Wait until every rank has sent this report; what each said with it.

        Raises:
            RankError: a rank is gone, failed, answers something else or nothing in time; or refused, and is well.
        """
        contents, refused = {}, None
        end = time.monotonic() + seconds
        for rank, reports in self._reports.items():
            try:
                got, contents[rank] = reports.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise self._fail(rank, f"no answer in {seconds:g} s, where {report} was expected") from None
            self.require_well()
            if got == "refused":
                refused = refused or RankError(rank, contents[rank])
            elif got != report:
                raise self._fail(rank, f"answered {got} where {report} was expected")
        if refused is not None:
            raise refused
        return contents

    def require_well(self) -> None:
        """Raises `RankError` once a rank is gone."""
        if self.failure is not None:
            raise RankError(self.failure.rank, self.failure.reason)

    def failed(self, rank: int, error: BaseException) -> RankError:
        """What to raise for an error that rank 0 met with `rank`; ends all ranks.

        The other end's own reason comes first if there is one: the error may be but its consequence.
        """
        self._failed.wait(REASON_SECONDS)
        return self._fail(rank, describe(error))

    def beside(self, work: Callable[[], T]) -> T:
        """Do what waits for other ranks and cannot be told that one is gone, in a thread that then is left behind.

        Raises:
            RankError: a rank is gone, or the work failed.
        """
        done: queue.SimpleQueue[T | Exception] = queue.SimpleQueue()

        def run() -> None:
            try:
                done.put(work())
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                done.put(error)

        threading.Thread(target=run, daemon=True).start()
        while True:
            try:
                result = done.get(timeout=0.05)
            except queue.Empty:
                self.require_well()
                continue
            if isinstance(result, Exception):
                raise self.failed(0, result) from result
            return result

    def end(self) -> None:
        """Let the ranks end, and wait for it.

        Raises:
            RankError: one does not end in seconds; it is killed.
        """
        with self._lock:
            self._ending = True
        for connection in self._connections.values():
            with contextlib.suppress(OSError):  # it is gone already
                connection.send_bytes(pickle.dumps(("end", None)))
        late = []
        end = time.monotonic() + END_SECONDS
        for rank, process in self._processes.items():
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                late.append(rank)
        self._listener.join()
        for line in self._lifelines:
            line.close()
        for connection in self._connections.values():
            connection.close()
        if late:
            raise RankError(late[0], f"did not end in {END_SECONDS:g} s and was killed")

    def kill(self) -> None:
        """End the ranks at once."""
        with self._lock:
            self._ending = True
        for process in self._processes.values():
            process.kill()
        self.end()

    def _start(self, rank: int) -> None:
        control, control_end = socket.socketpair()
        line, line_end = socket.socketpair()
        ends = (control_end.fileno(), line_end.fileno())
        command = [sys.executable, "-P", "-m", "runtime.parallel.worker", *map(str, (rank, *ends))]
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        self._processes[rank] = subprocess.Popen(
            command,
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
        control_end.close()
        line_end.close()
        self._connections[rank] = Connection(control.detach())
        self._lifelines.append(line)
        self._reports[rank] = queue.SimpleQueue()

    def _listen(self) -> None:
        ranks = {connection: rank for rank, connection in self._connections.items()}
        while ranks:
            for connection in wait(list(ranks)):
                assert isinstance(connection, Connection)
                rank = ranks[connection]
                try:
                    report, content = pickle.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    del ranks[connection]
                    self._ended(rank)
                    continue
                if report == "failed":
                    self._fail(rank, content)
                else:
                    self._reports[rank].put((report, content))

    def _ended(self, rank: int) -> None:
        """A rank's connection has ended; that is a failure unless it was told to end."""
        try:
            code = self._processes[rank].wait(REASON_SECONDS)
        except subprocess.TimeoutExpired:
            self._fail(rank, "closed its connection")
            return
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        self._fail(rank, how)

    def _fail(self, rank: int, reason: str) -> RankError:
        """Ends everything with the first reason; returns that one."""
        with self._lock:
            if self.failure is None and not self._ending:
                self.failure = RankError(rank, reason)
                first = True
            else:
                first = False
        if first:
            self._failed.set()
            for process in self._processes.values():
                process.kill()
            for reports in self._reports.values():
                reports.put(("failed", None))
            self._on_failure()
        known = self.failure
        return RankError(rank, reason) if known is None else RankError(known.rank, known.reason)


def describe(error: BaseException) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
