"""Serves a model from several processes: one has the engine, the others share a port and speak to clients."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from runtime.server.config import ServerConfig
from runtime.server.engine_thread import EngineThread
from runtime.server.listen import (
    GOODBYE_SECONDS,
    AddressError,
    address_of,
    call_on,
    end_of_start,
    reserve,
    told_to_end,
)
from runtime.server.messages import ALL, Batch, Leave
from runtime.server.orders import Drain, Drained, Listening, Start
from runtime.server.pipe import Pipe
from runtime.server.serve import STOP_SECONDS, stop
from runtime.server.served import build

START_SECONDS = 60.0
MAX_BEHIND = 4096
"""Batches that a front end may be behind before it counts as hung: some seconds of steps."""
_ROOT = Path(__file__).parents[2]


class FrontendError(RuntimeError):
    """A front end did not start; says why."""


class Frontend:
    """One front end's process, as the engine's process sees it.

    Attributes:
        listening: once clients can come to it.
        gone: once it has ended, whyever.
        ended: requests that it had to end when it was told to drain.
    """

    def __init__(self, number: int, thread: EngineThread) -> None:
        self.number = number
        self.listening: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()
        self.ended = 0
        self._loop = asyncio.get_running_loop()
        self._thread = thread
        ours, theirs = socket.socketpair()
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "runtime.server.frontend", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            # A terminal's Ctrl-C is the engine's process's to hear of; GPUs are its own too.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": ""},
        )
        theirs.close()
        self._pipe = Pipe(Connection(ours.detach()), self._receive)

    def send(self, order: Start | Drain) -> None:
        self._pipe.send(order)

    def deliver(self, batch: Batch) -> None:
        """See `runtime.server.desk.Sink`."""
        if self._pipe.behind > MAX_BEHIND:
            self.process.kill()
        else:
            self._pipe.send(batch)

    def _receive(self, message: object) -> None:
        """In a thread of the pipe."""
        if isinstance(message, tuple):
            key, command = message
            self._thread.post(self, key, command)
        else:
            call_on(self._loop, self._hear, message)

    def _hear(self, message: object) -> None:
        if isinstance(message, Listening) and not self.listening.done():
            if message.error:
                self.listening.set_exception(AddressError(message.error))
            else:
                self.listening.set_result(None)
        elif isinstance(message, Drained):
            self.ended = message.ended
        elif message is None:
            self._thread.post(self, ALL, Leave())
            status = self.process.wait()
            if not self.listening.done():
                self.listening.set_exception(FrontendError(f"front end {self.number}: ended with {status}"))
            self.gone.set()


async def serve_behind_frontends(config: ServerConfig) -> int:
    """Serve until told to end; returns the exit status.

    Args:
        config: without problems, normalised, with more than one front end.

    Raises:
        AddressError: the port is taken; nothing was built.
        FrontendError: a front end did not start.
        Exception: what `runtime.server.served.build` raises.
    """
    with reserve(config) as held:
        port = held.getsockname()[1]
        thread = EngineThread(partial(build, config), config.max_batch, config.max_waiting, config.gather)
        # They import what they need while the model is built.
        fronts = [Frontend(number, thread) for number in range(config.frontends)]
        try:
            info = await asyncio.wrap_future(thread.ready)
            for front in fronts:
                front.send(Start(config, info, port))
            await _start(fronts)
            told = told_to_end()
            end_of_start()
            address = address_of(config.host, port)
            print(f"{info.name}: serving at {address}, {len(fronts)} front ends", flush=True)
            lived = await _wait(fronts, told)
            if lived:
                print(f"ending within {config.drain:g} s", flush=True)
                ended = await _drain(fronts, config.drain)
                if ended:
                    print(f"{ended} requests were ended before they were done", flush=True)
        finally:
            for front in fronts:
                if front.process.poll() is None:
                    front.process.kill()
        await stop(thread)
        return 0 if lived and not thread.has_failed else 1


async def _start(fronts: Sequence[Frontend]) -> None:
    try:
        async with asyncio.timeout(START_SECONDS):
            await asyncio.gather(*(front.listening for front in fronts))
    except TimeoutError:
        late = next(front.number for front in fronts if not front.listening.done())
        raise FrontendError(f"front end {late}: not listening after {START_SECONDS:g} s") from None


async def _wait(fronts: Sequence[Frontend], told: asyncio.Event) -> bool:
    """Until told to end; returns whether any front end lived to see it. Those that end before are missed aloud."""
    tasks = {asyncio.ensure_future(front.gone.wait()): front for front in fronts}
    end = asyncio.ensure_future(told.wait())
    while tasks and not end.done():
        done, _ = await asyncio.wait([end, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {end}:
            front = tasks.pop(task)
            print(
                f"front end {front.number} ended with {front.process.returncode}: its requests were ended; the others go on",
                file=sys.stderr,
                flush=True,
            )
    for task in (end, *tasks):
        task.cancel()
    return bool(tasks)


async def _drain(fronts: Sequence[Frontend], seconds: float) -> int:
    """Returns how many requests had to be ended."""
    for front in fronts:
        front.send(Drain())
    try:
        async with asyncio.timeout(seconds + 2 * GOODBYE_SECONDS + STOP_SECONDS):
            for front in fronts:
                await front.gone.wait()
    except TimeoutError:
        pass  # they are killed
    return sum(front.ended for front in fronts)
