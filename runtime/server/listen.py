"""A gRPC server at an address, its start and its end."""

import asyncio
import contextlib
import gc
import signal
import socket
import sys
from collections.abc import Callable
from typing import TypeVar

import grpc

from runtime.server.client import EngineClient
from runtime.server.config import ServerConfig
from runtime.server.messages import Batch

GOODBYE_SECONDS = 1.0
"""For what has been said last to reach the clients."""
SWITCH_SECONDS = 1e-4
"""How long a thread may keep the interpreter while another waits for it: Python's own 5 ms are several decode steps."""


T = TypeVar("T")


class AddressError(ValueError):
    """The server cannot listen where it was told to; says where, and why."""


class LoopSink:
    """Hands events to a client of the engine, on its loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: EngineClient) -> None:
        self._loop = loop
        self._client = client

    def deliver(self, batch: Batch) -> None:
        call_on(self._loop, self._client.receive, batch)


def call_on(loop: asyncio.AbstractEventLoop, function: Callable[[T], None], argument: T) -> None:
    """Have a loop call a function soon; nothing is called once the loop is closed. Any thread may call this."""
    with contextlib.suppress(
        RuntimeError
    ):  # raised for a closed loop, for which no question comes early enough
        loop.call_soon_threadsafe(function, argument)


def listen(
    handlers: grpc.GenericRpcHandler | None, config: ServerConfig, port: int, *, shared: bool
) -> tuple[grpc.aio.Server, int]:
    """A server that is bound, and to be started; and its port.

    Args:
        handlers: None adds none yet.
        port: 0 takes a free one.
        shared: whether other processes listen at the port too.

    Raises:
        AddressError: the port is taken, or the host is none of this machine's.
    """
    options = [
        ("grpc.max_receive_message_length", config.max_message),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", int(shared)),
    ]
    server = grpc.aio.server(options=options)
    if handlers is not None:
        server.add_generic_rpc_handlers((handlers,))
    address = address_of(config.host, port)
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        raise AddressError(f"{address}: {_why_taken(config.host, port) or error}") from None
    return server, bound


def reserve(config: ServerConfig) -> socket.socket:
    """A port that this process and its children alone listen at; held until the socket is closed.

    Raises:
        AddressError: the port is taken, or the host is none of this machine's.
    """
    taken = _why_taken(config.host, config.port)
    if taken is not None:
        raise AddressError(f"{address_of(config.host, config.port)}: {taken}")
    family = _family(config.host)
    held = socket.socket(family)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind((config.host, config.port))
    return held


def address_of(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def end_of_start() -> None:
    """After this nothing made so far is looked at by the garbage collector, whose pauses would fall into steps."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()


def told_to_end() -> asyncio.Event:
    """Set once the process gets SIGTERM or SIGINT; a second one ends it at once."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        told.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    return told


async def drain(server: grpc.aio.Server, client: EngineClient, seconds: float) -> int:
    """End what runs within `seconds`, then the server; returns how many requests had to be ended."""
    ended = await client.drain(seconds)
    await server.stop(GOODBYE_SECONDS)
    return ended


def _why_taken(host: str, port: int) -> str | None:
    try:
        with socket.socket(_family(host)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return f"cannot listen there: {error.strerror or error}; choose another --port, or 0 for a free one"
    return None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
