"""A real HTTP server that speaks OpenAI's chat completions protocol and misbehaves as told.

    with OpenAIServer() as server:
        server.play(server.error(429, headers={"Retry-After": "1"}), server.text("hello"))
        ... ask server.url ...
        assert server.requests[0].body["model"] == "m"

Replies of `play` are used up in order; after them, or without any, `server.answer(body)` decides.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reply:
    """`delay` seconds pass first. `hang` never answers; `cut` closes the connection after so many bytes of the
    body; `endless` sends the body again and again, `delay` apart, until the client leaves."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    hang: bool = False
    cut: int | None = None
    endless: bool = False


@dataclass(frozen=True)
class Received:
    headers: dict[str, str]
    body: dict[str, Any]


class OpenAIServer:
    """Listens on 127.0.0.1 at a free port, in a thread of its own, between `__enter__` and `__exit__`."""

    def __init__(self) -> None:
        self.answer: Callable[[dict[str, Any]], Reply] = lambda body: self.text("{}")
        self.requests: list[Received] = []
        self.max_in_flight = 0
        self.disconnected = threading.Event()
        self._in_flight = 0
        self._script: deque[Reply] = deque()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> OpenAIServer:
        self._thread.start()
        starting = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result()
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def play(self, *replies: Reply) -> None:
        self._script.extend(replies)

    @staticmethod
    def chat(message: Mapping[str, Any], finish: str | None = "stop", delay: float = 0.0) -> Reply:
        """A well-formed chat completion of 7 tokens in, 5 out."""
        body = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": "stand-in",
            "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
        }
        return OpenAIServer.raw(json.dumps(body).encode(), delay=delay)

    @staticmethod
    def text(text: str, finish: str = "stop", delay: float = 0.0) -> Reply:
        return OpenAIServer.chat({"content": text}, finish, delay)

    @staticmethod
    def tools(*calls: tuple[str, str]) -> Reply:
        """Calls of (name, arguments as JSON text); their ids are call_0, call_1, ..."""
        listed = [
            {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for index, (name, arguments) in enumerate(calls)
        ]
        return OpenAIServer.chat({"content": None, "tool_calls": listed}, "tool_calls")

    @staticmethod
    def refusal(text: str) -> Reply:
        return OpenAIServer.chat({"content": None, "refusal": text})

    @staticmethod
    def error(
        status: int,
        message: str = "no",
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        fault = {"message": message, "type": "error", "param": param, "code": code}
        return Reply(status, json.dumps({"error": fault}).encode(), headers or {})

    @staticmethod
    def raw(
        body: bytes, content_type: str = "application/json", status: int = 200, delay: float = 0.0
    ) -> Reply:
        return Reply(status, body, {"Content-Type": content_type}, delay)

    @staticmethod
    def hang() -> Reply:
        return Reply(hang=True)

    @staticmethod
    def cut(after: int = 20) -> Reply:
        return Reply(body=OpenAIServer.text("never seen whole").body, cut=after)

    @staticmethod
    def endless(body: bytes = b" " * 2**16, delay: float = 0.0) -> Reply:
        return Reply(body=body, delay=delay, endless=True)

    async def _stop(self) -> None:
        self._server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, kept open from request to request."""
        try:
            while received := await self._receive(reader):
                self.requests.append(received)
                self._in_flight += 1
                self.max_in_flight = max(self.max_in_flight, self._in_flight)
                try:
                    reply = self._script.popleft() if self._script else self.answer(received.body)
                    if not await self._respond(reply, reader, writer):
                        break
                finally:
                    self._in_flight -= 1
        except ConnectionError:
            self.disconnected.set()
        finally:
            writer.close()

    async def _receive(self, reader: asyncio.StreamReader) -> Received | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        lines = head.decode("latin-1").split("\r\n")[1:-2]
        headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
        return Received(headers, json.loads(await reader.readexactly(int(headers["content-length"]))))

    async def _respond(
        self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """False where the connection ends here."""
        if reply.hang:
            if await reader.read(1) == b"":
                self.disconnected.set()
            return False
        await asyncio.sleep(reply.delay)
        length = 2**60 if reply.endless else len(reply.body)
        headers = {"Content-Type": "application/json", **reply.headers, "Content-Length": str(length)}
        head = f"HTTP/1.1 {reply.status} X\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items())
        writer.write(head.encode() + b"\r\n" + reply.body[: reply.cut])
        await writer.drain()
        while reply.endless:
            await asyncio.sleep(reply.delay)
            writer.write(reply.body)
            await writer.drain()
        return reply.cut is None
