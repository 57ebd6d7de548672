"""The engine as those see it who speak to clients: streams of parts, and questions; all on one asyncio loop."""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable

import grpc

from runtime.server.messages import (
    ALL,
    Accepted,
    Batch,
    Cancel,
    Command,
    Event,
    Failed,
    Part,
    Refused,
    Submit,
)


class StatusError(Exception):
    """Ends a call with a status.

    Attributes:
        code: the status.
        text: what to tell the client.
    """

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Stream:
    """What comes of one `Submit`.

    Attributes:
        accepted: once the engine has taken it.
        refused: why it ends before its answers do.
        writing: the task that hands parts to the client, while it waits for the client to take them.
    """

    def __init__(self, key: int) -> None:
        self.key = key
        self.accepted: Accepted | None = None
        self.refused: Refused | None = None
        self.writing: asyncio.Task[None] | None = None
        self._parts: deque[Part] = deque()
        self._ended = 0
        self._news = asyncio.Event()

    @property
    def is_complete(self) -> bool:
        """Whether every answer has ended; some parts may still wait to be taken."""
        return self.accepted is not None and self._ended == self.accepted.answers

    @property
    def queued(self) -> int:
        return len(self._parts)

    async def wait_accepted(self) -> Accepted:
        """Raises StatusError: it was refused."""
        while self.accepted is None:
            await self._next_news()
        return self.accepted

    async def take(self) -> list[Part]:
        """The parts that have come, at least one; empty at the end.

        Raises:
            StatusError: the stream ends early.
        """
        while not self._parts and not self.is_complete:
            await self._next_news()
        if self.refused is not None:
            raise StatusError(self.refused.code, self.refused.text)
        parts = list(self._parts)
        self._parts.clear()
        return parts

    def push(self, event: Event) -> None:
        if isinstance(event, Accepted):
            self.accepted = event
        elif isinstance(event, Part):
            self._parts.append(event)
            self._ended += event.finished is not None
        elif isinstance(event, Refused):
            self.refuse(event)
        self._news.set()

    def refuse(self, refused: Refused) -> None:
        """End early; a client that does not take what is being written is not waited for."""
        self.refused = self.refused or refused
        self._parts.clear()
        self._news.set()
        if self.writing is not None:
            self.writing.cancel()

    async def _next_news(self) -> None:
        if self.refused is None:
            self._news.clear()
            await self._news.wait()
        if self.refused is not None:
            raise StatusError(self.refused.code, self.refused.text)


class EngineClient:
    """Sends commands and sorts the events that come back.

    Args:
        send: gives a command to the engine's thread, wherever that is.
        max_queued: parts that may wait to be taken, of each stream.

    Attributes:
        failure: what has broken the engine; None while it is well.
        draining: no more requests are taken.
    """

    def __init__(self, send: Callable[[int, Command], None], max_queued: int) -> None:
        self._send = send
        self._max_queued = max_queued
        self._keys = itertools.count(ALL + 1)
        self._streams: dict[int, Stream] = {}
        self._questions: dict[int, asyncio.Future[Event]] = {}
        self._emptied = asyncio.Event()
        self.failure: str | None = None
        self.draining = False

    def open(self, submit: Submit) -> Stream:
        """Have a prompt served; `close` what is returned.

        Raises:
            StatusError: the engine has failed, or the server is being shut down.
        """
        self._require_serving()
        key = next(self._keys)
        stream = self._streams[key] = Stream(key)
        self._send(key, submit)
        return stream

    def close(self, stream: Stream) -> None:
        """The caller is done with the stream, or gone: what has not ended is ended."""
        if self._streams.pop(stream.key, None) is None:
            return
        if not stream.is_complete and stream.refused is None:
            self._send(stream.key, Cancel("cancelled"))
        if not self._streams:
            self._emptied.set()

    async def ask(self, command: Command, seconds: float | None = None) -> Event:
        """What comes of a command that is answered once.

        Raises:
            StatusError: it was refused, or the engine has failed.
            TimeoutError: no answer in `seconds`.
        """
        if self.failure is not None:
            raise self._failed()
        key = next(self._keys)
        question = self._questions[key] = asyncio.get_running_loop().create_future()
        self._send(key, command)
        try:
            async with asyncio.timeout(seconds):
                answer = await question
        finally:
            del self._questions[key]
        if isinstance(answer, Refused):
            raise StatusError(answer.code, answer.text)
        return answer

    def receive(self, batch: Batch) -> None:
        """Events of the engine's thread, on this object's loop."""
        for key, event in batch:
            if isinstance(event, Failed):
                self._fail(event)
            elif key in self._streams:
                self._push(self._streams[key], event)
            elif key in self._questions and not self._questions[key].done():
                self._questions[key].set_result(event)

    async def drain(self, seconds: float) -> int:
        """Take no more requests; wait for those that run, then end them. Returns how many had to be ended."""
        self.draining = True
        try:
            async with asyncio.timeout(seconds):
                while self._streams:
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            pass
        left = list(self._streams.values())
        for stream in left:
            text = f"the server ends, and this request was not done within {seconds:g} s"
            self._end(stream, "drained", Refused(grpc.StatusCode.UNAVAILABLE, text))
        return len(left)

    def require_open(self) -> None:
        """Raises StatusError: the server takes no more requests."""
        self._require_serving()

    def _push(self, stream: Stream, event: Event) -> None:
        if isinstance(event, Part) and stream.queued >= self._max_queued and stream.refused is None:
            text = f"{stream.queued} parts wait to be read; read faster, or ask for less"
            self._end(stream, "slow reader", Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, text))
        elif stream.refused is None:
            stream.push(event)

    def _end(self, stream: Stream, reason: str, refused: Refused) -> None:
        if not stream.is_complete and stream.refused is None:
            self._send(stream.key, Cancel(reason))
        stream.refuse(refused)

    def _fail(self, failed: Failed) -> None:
        self.failure = failed.text
        error = self._failed()
        for stream in self._streams.values():
            if not stream.is_complete:
                stream.refuse(Refused(error.code, error.text))
        for question in self._questions.values():
            if not question.done():
                question.set_result(Refused(error.code, error.text))

    def _failed(self) -> StatusError:
        return StatusError(grpc.StatusCode.INTERNAL, f"the engine has failed: {self.failure}")

    def _require_serving(self) -> None:
        if self.failure is not None:
            raise self._failed()
        if self.draining:
            raise StatusError(grpc.StatusCode.UNAVAILABLE, "the server ends; ask another one")
