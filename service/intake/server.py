"""The HTTP server: uvicorn, closed to clients that hold a connection and say nothing."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# A client's time for each part of a request; GitHub itself gives up after 10 s.
_PATIENCE_SECONDS = 15.0
_DRAIN_SECONDS = 20
_TICKS_A_SECOND = 10


class Server(uvicorn.Server):
    """Serves one application in this process; `run()` blocks until SIGTERM or SIGINT, then drains.

    uvicorn waits for ever for the rest of a request. Here a connection is closed when, for `patience` seconds, it
    was the client's turn: to send a request, or the rest of one. Handlers below the paths of `paced` time the
    bodies of their requests themselves, which may be large.
    """

    def __init__(
        self,
        app: FastAPI,
        host: str,
        port: int,
        *,
        patience: float = _PATIENCE_SECONDS,
        paced: tuple[str, ...] = (),
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                loop="uvloop",
                http="httptools",
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=math.ceil(patience),
                timeout_graceful_shutdown=_DRAIN_SECONDS,
            )
        )
        self._endings: list[Callable[[], None]] = app.state.endings
        self._patience = patience
        self._paced = paced
        # By connection whose client's turn it is: its latest request, and since when.
        self._waiting: dict[Any, tuple[object, float]] = {}

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_A_SECOND == 0:
            self._cut_off(time.monotonic())
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for end in self._endings:
            end()
        await super().shutdown(sockets)

    def _cut_off(self, now: float) -> None:
        waiting: dict[Any, tuple[object, float]] = {}
        for connection in self.server_state.connections:
            request = connection.cycle if isinstance(connection, HttpToolsProtocol) else None
            if request is not None and not request.response_complete and self._is_ours(request):
                continue
            latest, since = self._waiting.get(connection, (request, now))
            if latest is not request:
                since = now
            waiting[connection] = (request, since)
            if now - since > self._patience:
                connection.transport.abort()
        self._waiting = waiting

    def _is_ours(self, request: Any) -> bool:
        """Whether it is our turn, or that of a handler that looks after its client."""
        return not request.more_body or bool(request.scope["path"].startswith(self._paced))
