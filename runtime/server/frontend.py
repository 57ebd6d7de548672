"""One front end's process: speaks to clients, encodes prompts, and asks the engine's process over a pipe.

Started by `runtime.server.frontends`, as `python -m runtime.server.frontend FILE_DESCRIPTOR`.
"""

import asyncio
import pickle
import sys
from multiprocessing.connection import Connection

from runtime.server.client import EngineClient
from runtime.server.listen import GOODBYE_SECONDS, AddressError, call_on, drain, end_of_start, listen
from runtime.server.messages import ALL, Failed
from runtime.server.orders import Drained, Listening, Start
from runtime.server.pipe import Pipe
from runtime.server.service import EngineService


async def _serve(start: Start, connection: Connection) -> None:
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    client = EngineClient(lambda key, command: pipe.send((key, command)), start.config.max_queued)

    def receive(message: object) -> None:
        if isinstance(message, list):
            client.receive(message)
            return
        if message is None:
            client.receive([(ALL, Failed("its process is gone"))])
        told.set()

    pipe = Pipe(connection, lambda message: call_on(loop, receive, message))
    try:
        handlers = EngineService(client, start.info).handlers()
        server, _ = listen(handlers, start.config, start.port, shared=True)
    except AddressError as error:
        pipe.send(Listening(str(error)))
        pipe.flush(GOODBYE_SECONDS)
        return
    await server.start()
    end_of_start()
    pipe.send(Listening())
    await told.wait()
    pipe.send(Drained(await drain(server, client, start.config.drain)))
    pipe.flush(GOODBYE_SECONDS)


def main(descriptor: int) -> None:
    """Serve until the engine's process says so, or is gone."""
    connection = Connection(descriptor)
    try:
        start = pickle.loads(connection.recv_bytes())
    except EOFError:  # the engine could not be built
        return
    asyncio.run(_serve(start, connection))


if __name__ == "__main__":
    main(int(sys.argv[1]))
