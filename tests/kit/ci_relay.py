"""Between runners and the service: hands HTTP on, and breaks it as a test orders."""

from __future__ import annotations

import http.client
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import urlsplit

from ci_dispatch.protocol import PREFIX

Order = Literal["drop_before", "drop_after", "twice", "slow", "hold"]
_SLOW_SECONDS = 1.0
_HOLD_SECONDS = 20.0


@dataclass
class Relay:
    """`orders` are used up in their order, by kind of call: register, beat, claim, deregister, source, lease_beat, log, artifacts,
    report, return. `away` breaks all calls. `seen` are statuses by kind; a held answer waits for `released`; an empty one (204) is
    never held."""

    target: str
    url: str = ""
    away: bool = False
    orders: dict[str, list[Order]] = field(default_factory=lambda: defaultdict(list))
    seen: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    broken: int = 0
    held: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    relay: Relay

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        relay = self.relay
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kind = _kind(self.command, urlsplit(self.path).path.removeprefix(PREFIX))
        with relay.lock:
            if relay.away:
                relay.broken += 1
                self.close_connection = True
                return
            orders = relay.orders[kind]
            if orders and orders[0] == "drop_before":
                orders.pop(0)
                self.close_connection = True
                return
        status, headers, content = self._pass_on(body)
        with relay.lock:
            relay.seen[kind].append(status)
            # An empty answer to a claim is nothing that could be lost.
            order = orders.pop(0) if orders and (status != 204 or kind != "claim") else None
        if order == "twice":
            status, headers, content = self._pass_on(body)
        elif order == "slow":
            time.sleep(_SLOW_SECONDS)
        elif order == "hold":
            relay.held.set()
            relay.released.wait(_HOLD_SECONDS)
        if order == "drop_after" or relay.away:
            self.close_connection = True
            return
        self._answer(status, headers, content)

    do_POST = do_PUT = do_DELETE = do_GET

    def _pass_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        parts = urlsplit(self.relay.target)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        try:
            self.send_response(status)
            for name, value in headers:
                if name.lower() in ("content-type", "retry-after", "www-authenticate"):
                    self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:
            self.close_connection = True


def _kind(method: str, path: str) -> str:
    if not path.startswith("/leases/"):
        names = {"/runners": "register", "/runners/self/beat": "beat", "/runners/self/claim": "claim"}
        return names.get(path, "deregister")
    call = path.split("/")[3]
    return "lease_beat" if call == "beat" else call


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


@contextmanager
def relaying(target: str) -> Iterator[Relay]:
    """Listens on loopback until the end."""
    relay = Relay(target)
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"relay": relay}))
    relay.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        relay.released.set()
        server.shutdown()
        server.server_close()


def until(condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    """Polls. Fails with `what` did not come to pass."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
