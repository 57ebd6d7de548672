"""Simulated runners: real requests, jobs that only take time. One event loop plays them all."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

from ci_dispatch.model import Inventory
from ci_dispatch.protocol import PREFIX, Beat
from service.store.runners import BEAT_SECONDS

_REPORT = b"{}"


@dataclass
class Seen:
    """What runners saw: when each job came (by name, by the clock of `time.monotonic`), how long claims that got one took."""

    came: dict[str, float] = field(default_factory=dict)
    claims: list[float] = field(default_factory=list)
    twice: int = 0
    failed: list[str] = field(default_factory=list)


class _Connection:
    """One HTTP connection that is kept open; answers have a length."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, method: str, path: str, token: str, body: bytes = b"") -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        head = (
            f"{method} {PREFIX}{path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        lengths = [int(line[15:]) for line in lines if line.startswith("content-length:")]
        return int(lines[0].split()[1]), await reader.readexactly(lengths[0] if lengths else 0)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class SimulatedRunner:
    """Claims while it has room, holds each job for `hold` seconds, and reports it."""

    def __init__(self, port: int, secret: str, inventory: Inventory, seen: Seen, hold: float) -> None:
        self._port = port
        self._secret = secret
        self._beat = Beat(inventory=inventory).model_dump_json().encode()
        self._seen = seen
        self._hold = hold
        self._room = asyncio.Semaphore(max(len(inventory.gpus), inventory.slots))
        self._jobs: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until it is cancelled."""
        beats = asyncio.create_task(self._beats())
        connection = _Connection(self._port)
        try:
            while True:
                await self._room.acquire()
                began = time.monotonic()
                status, body = await connection.call("POST", "/runners/self/claim?wait=25", self._secret)
                if status == 200:
                    self._begin(json.loads(body), began)
                    continue
                self._room.release()
                if status != 204:
                    self._seen.failed.append(f"claim {status}: {body[:200]!r}")
                    await asyncio.sleep(1)
        finally:
            connection.close()
            for task in (beats, *self._jobs):
                task.cancel()

    def _begin(self, grant: dict[str, Any], began: float) -> None:
        now = time.monotonic()
        spec = grant["job"]["spec"]
        self._seen.twice += spec["name"] in self._seen.came
        self._seen.came[spec["name"]] = now
        self._seen.claims.append(now - began)
        task = asyncio.create_task(self._work(grant))
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _work(self, grant: dict[str, Any]) -> None:
        connection = _Connection(self._port)
        lease, token = f"/leases/{grant['lease_id']}", grant["token"]
        try:
            await self._expect(connection, f"{lease}/beat", token, b'{"step": "smoke"}')
            await self._expect(connection, f"{lease}/log?offset=0", token, b"a line of the log\n")
            await asyncio.sleep(self._hold)
            await self._expect(connection, f"{lease}/report", token, _REPORT)
        finally:
            connection.close()
            self._room.release()

    async def _expect(self, connection: _Connection, path: str, token: str, body: bytes) -> None:
        status, answer = await connection.call("POST", path, token, body)
        if status >= 300:
            self._seen.failed.append(f"{path} {status}: {answer[:200]!r}")

    async def _beats(self) -> None:
        connection = _Connection(self._port)
        try:
            while True:
                await self._expect(connection, "/runners/self/beat", self._secret, self._beat)
                await asyncio.sleep(BEAT_SECONDS)
        finally:
            connection.close()
