"""Serves a model from one process: the engine in a thread, its clients on the main one."""

import asyncio
import os
import sys
from functools import partial

from runtime.server.client import EngineClient
from runtime.server.config import ServerConfig
from runtime.server.engine_thread import EngineThread
from runtime.server.listen import (
    LoopSink,
    address_of,
    drain,
    end_of_start,
    listen,
    told_to_end,
)
from runtime.server.served import build
from runtime.server.service import EngineService

STOP_SECONDS = 15.0
"""More than ranks are given to end in."""


async def serve(config: ServerConfig) -> int:
    """Serve until told to end; returns the exit status.

    Args:
        config: without problems, normalised.

    Raises:
        AddressError: the port is taken; nothing was built.
        Exception: what `runtime.server.served.build` raises.
    """
    loop = asyncio.get_running_loop()
    server, port = listen(None, config, config.port, shared=False)
    thread = EngineThread(partial(build, config), config.max_batch, config.max_waiting, config.gather)
    info = await asyncio.wrap_future(thread.ready)
    ended = 0
    try:
        sink: LoopSink
        client = EngineClient(lambda key, command: thread.post(sink, key, command), config.max_queued)
        sink = LoopSink(loop, client)
        server.add_generic_rpc_handlers((EngineService(client, info).handlers(),))
        await server.start()
        told = told_to_end()
        end_of_start()
        print(f"{info.name}: serving at {address_of(config.host, port)}", flush=True)
        await told.wait()
        print(f"ending within {config.drain:g} s", flush=True)
        ended = await drain(server, client, config.drain)
    finally:
        await stop(thread)
    if ended:
        print(f"{ended} requests were ended before they were done", flush=True)
    return 1 if thread.has_failed else 0


async def stop(thread: EngineThread) -> None:
    """End the engine's thread. If it is in a step without end, the program ends here, with status 1."""
    has_ended = await asyncio.to_thread(thread.stop, STOP_SECONDS)
    if not has_ended:
        print("the engine's step does not end: it is left behind", file=sys.stderr, flush=True)
        os._exit(1)  # an orderly end would wait for what that step holds: other ranks, the GPU
