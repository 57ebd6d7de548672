"""The one thread that owns the engine: it takes commands between steps, and tells everyone when it fails."""

import queue
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future

from runtime.server.desk import Desk, Sink
from runtime.server.messages import ALL, Command, Failed
from runtime.server.served import ModelInfo, Served

IDLE_SECONDS = 0.5
"""How often an engine without work is asked whether it is well."""

Order = tuple[Sink, int, Command]


class EngineThread:
    """Builds and serves, both in a thread of its own.

    Args:
        build: makes what is served.
        max_batch, max_waiting, gather: see `Desk`.

    Attributes:
        ready: what is served, once it can be; or what `build` raised.
        has_failed: a step, a command or the end raised; nobody is served any more.
    """

    def __init__(
        self, build: Callable[[], Served], max_batch: int, max_waiting: int, gather: int = 1
    ) -> None:
        self.ready: Future[ModelInfo] = Future()
        self.has_failed = False
        self._build = build
        self._limits = (max_batch, max_waiting, gather)
        self._inbox: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        # A daemon: a step that never ends must not keep the program from ending.
        self._thread = threading.Thread(target=self._run, daemon=True, name="engine")
        self._thread.start()

    def post(self, sink: Sink, key: int, command: Command) -> None:
        """Have a command carried out; its events go to the sink. Any thread may call this."""
        self._inbox.put((sink, key, command))

    def stop(self, seconds: float) -> bool:
        """End after what was posted before, whatever still runs; returns whether it has ended in time."""
        self._inbox.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self.ready.set_running_or_notify_cancel()  # from here on nobody can cancel it, and its result can be set
        try:
            served = self._build()
            desk = Desk(served, *self._limits)
        except BaseException as error:  # noqa: BLE001 - raised where `ready` is waited for
            self.ready.set_exception(error)
            return
        self.ready.set_result(served.info)
        try:
            while self._take_orders(desk):
                if desk.has_work():
                    desk.step()
                desk.flush()
        except Exception as error:  # noqa: BLE001 - whatever it is, everyone hears of it and nobody waits on
            self.has_failed = True
            traceback.print_exception(error, file=sys.stderr)
            self._refuse_everyone(desk, Failed(f"{type(error).__name__}: {error}"))
        finally:
            self._close(served)

    def _take_orders(self, desk: Desk) -> bool:
        """Carry out what was posted; waits for something to do. Returns whether to go on."""
        try:
            order = self._inbox.get_nowait() if desk.has_work() else self._inbox.get(timeout=IDLE_SECONDS)
            while order is not None:
                desk.handle(*order)
                order = self._inbox.get_nowait()
        except queue.Empty:
            if not desk.has_work():
                desk.require_well()
            return True
        return False

    def _close(self, served: Served) -> None:
        try:
            served.close()
        except Exception as error:  # noqa: BLE001 - the server ends anyway, and says what was wrong
            self.has_failed = True
            print(f"error: the engine's end: {error}", file=sys.stderr, flush=True)

    def _refuse_everyone(self, desk: Desk, failed: Failed) -> None:
        for sink in desk.sinks:
            sink.deliver([(ALL, failed)])
        while (order := self._inbox.get()) is not None:
            order[0].deliver([(ALL, failed)])
