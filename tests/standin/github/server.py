"""The HTTP side: every request passes failures, authentication, limits, contract, handler, contract, in this order."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from email.utils import format_datetime
from traceback import format_exc
from typing import Any
from urllib.parse import parse_qsl

import uvicorn

from tests.standin.github import githttp, graphql
from tests.standin.github.answer import Answer, Refused, invalid
from tests.standin.github.auth import Actor, Unauthorized, identify
from tests.standin.github.contract import Contract
from tests.standin.github.failures import MESSAGES, Failure, Failures
from tests.standin.github.hooks import Hooks
from tests.standin.github.limits import Limits
from tests.standin.github.routes import apps, checks, comments, pulls, repos, reviews, runs
from tests.standin.github.routing import Call, Route, Switches, find_route
from tests.standin.github.state import World

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# Importing them registered their operations.
REGISTERED = (apps, checks, comments, pulls, repos, reviews, runs)


@dataclass(frozen=True)
class Request:
    """One request as it came in, kept for tests to look at; the path is as it was sent, quoted."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class _Uvicorn(uvicorn.Server):
    """Ends at once when told, where uvicorn would look every tenth of a second and let connections finish."""

    async def main_loop(self) -> None:
        self._end = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        await self._end.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)


class Server:
    """Listens on 127.0.0.1 at a free port from `start` to `stop`."""

    def __init__(self, world: World, hooks: Hooks, contract: Contract, prefix: str) -> None:
        self.failures = Failures()
        self.limits = Limits(world)
        self.switches = Switches()
        self.requests: list[Request] = []
        self._world = world
        self._hooks = hooks
        self._contract = contract
        self._prefix = prefix
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            log_level="critical",
            access_log=False,
            lifespan="off",
            proxy_headers=False,
            date_header=False,
            server_header=False,
            ws="none",
        )
        self._server = _Uvicorn(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="github-standin", daemon=True
        )

    def start(self) -> None:
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.002)

    def stop(self) -> None:
        self._server.end()
        self._thread.join(10)
        self._socket.close()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        request = Request(
            scope["method"],
            scope["raw_path"].decode("ascii"),
            dict(parse_qsl(scope["query_string"].decode("ascii"), keep_blank_values=True)),
            {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
            body,
        )
        try:
            answer = await asyncio.to_thread(self._answer, request)
        except Exception:  # noqa: BLE001 - whatever it is, the test must hear of it
            self._contract.report(f"the stand-in broke on {request.method} {request.path}:\n{format_exc()}")
            answer = Answer(500, Refused(500, "Server Error").body)
        if answer is None:
            # Nothing in ASGI hangs up without an answer.
            send.__self__.transport.abort()  # type: ignore[attr-defined]
            return
        payload = answer.body if isinstance(answer.body, bytes) else _encode(answer.body)
        headers = {
            "Date": format_datetime(self._world.now(), usegmt=True),
            "Content-Length": str(len(payload)),
            **answer.headers,
        }
        if payload:
            headers["Content-Type"] = answer.media
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": raw})
        await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else payload})

    def _answer(self, request: Request) -> Answer | None:
        """None is a connection closed without an answer."""
        self.requests.append(request)
        path = request.path
        if self._prefix and path.startswith(self._prefix):
            path = path.removeprefix(self._prefix)
        elif self._prefix and not githttp.is_git(path) and path != "/api/graphql":
            return Answer(404, Refused(404, "Not Found").body)
        failure = self.failures.take(request.method, path)
        if failure is not None:
            time.sleep(failure.delay)
            if failure.drop == "before":
                return None
            if failure.status and not failure.effect:
                return self._failed(failure, request, path)
        answer = self._serve(request, path)
        if failure is not None and failure.drop == "after":
            return None
        return self._failed(failure, request, path) if failure and failure.status else answer

    def _failed(self, failure: Failure, request: Request, path: str) -> Answer:
        message = failure.message or MESSAGES.get(failure.status, "Error")
        refused = Refused(failure.status, message, headers=failure.headers)
        answer = Answer(failure.status, refused.body, refused.headers)
        found = find_route(request.method, path)
        if found:
            self._contract.check_answer(found[0].name, answer)
        return answer

    def _serve(self, request: Request, path: str) -> Answer:
        try:
            actor = identify(self._world, request.headers.get("authorization"))
        except Unauthorized as error:
            return Answer(401, Refused(401, str(error)).body)
        if githttp.is_git(path):
            try:
                return githttp.serve(
                    self._world, actor, request.method, path, request.query, request.headers, request.body
                )
            except Refused as refused:
                return Answer(refused.status, refused.body, refused.headers)
        if path in ("/graphql", "/api/graphql"):
            with self._world.lock:
                return graphql.serve(self._world, actor, request.body, self._contract)
        found = find_route(request.method, path)
        if found is None:
            self._contract.report(f"{request.method} {path} is not served by the stand-in")
            return Answer(404, Refused(404, "Not Found").body)
        return self._operate(request, path, actor, *found)

    def _operate(
        self, request: Request, path: str, actor: Actor, route: Route, params: dict[str, str]
    ) -> Answer:
        headers = {"X-GitHub-Request-Id": f"STAND:{len(self.requests)}"}
        free = path == "/rate_limit"
        try:
            with self._world.lock:
                if not free:
                    self.limits.check(actor)
                call = self._call(request, path, actor, params)
                sound = self._contract.check_request(route.name, call)
                self._authorize(call, route)
                answer = self._handle(route, call, sound=sound)
                # Rendered under the lock: nothing may change between the answer and its bytes.
                answer.body = answer.body if isinstance(answer.body, bytes) else _frozen(answer.body)
        except Refused as refused:
            answer = Answer(refused.status, refused.body, refused.headers)
        self._contract.check_answer(route.name, answer)
        answer = _conditional(request, answer)
        if answer.status != 304 and not free:
            self.limits.count(actor)
        if actor.token is not None and actor.installation is None:
            headers["X-OAuth-Scopes"] = "repo"
        answer.headers = {**headers, **self.limits.headers(actor), **answer.headers}
        return answer

    def _handle(self, route: Route, call: Call, *, sound: bool) -> Answer:
        try:
            return route.handler(call)
        except (KeyError, TypeError, ValueError) as error:
            if sound:
                raise
            # Reported already; this is what GitHub says to it.
            raise Refused(422, "Invalid request.") from error

    def _call(self, request: Request, path: str, actor: Actor, params: dict[str, str]) -> Call:
        body: Any = {}
        if request.body:
            try:
                body = json.loads(request.body)
            except ValueError as error:
                raise Refused(400, "Problems parsing JSON") from error
        if isinstance(body, list):
            body = {"labels": body}
        if not isinstance(body, dict):
            raise invalid("Body", "body")
        return Call(
            world=self._world,
            hooks=self._hooks,
            limits=self.limits,
            method=request.method,
            path=path,
            url=self.url + self._prefix + path,
            query=request.query,
            headers=request.headers,
            body=body,
            actor=actor,
            switches=self.switches,
            params=params,
        )

    def _authorize(self, call: Call, route: Route) -> None:
        if route.role == "app":
            if call.actor.app is None or call.actor.installation is not None:
                raise Refused(401, "A JSON web token could not be decoded")
            return
        writing = call.method != "GET"
        if call.actor.app is not None and call.actor.installation is None:
            raise Refused(403, "Resource not accessible by integration")
        if writing and call.actor.user is None:
            raise Refused(401, "Requires authentication")
        if "{owner}" not in route.template:
            return
        repo = call.repo()
        if call.actor.installation is not None:
            if not call.actor.has_permission(repo, route.permission):
                raise Refused(403, "Resource not accessible by integration")
        elif not call.actor.has_role(repo, route.role):
            raise Refused(403, "Must have more rights to Repository.")


def _encode(body: Any) -> bytes:
    return b"" if body is None else json.dumps(body, ensure_ascii=False).encode()


def _frozen(body: Any) -> Any:
    return None if body is None else json.loads(_encode(body))


def _conditional(request: Request, answer: Answer) -> Answer:
    if request.method != "GET" or answer.status != 200:
        return answer
    payload = answer.body if isinstance(answer.body, bytes) else _encode(answer.body)
    tag = f'W/"{hashlib.sha256(payload).hexdigest()}"'
    if request.headers.get("if-none-match") in (tag, tag.removeprefix("W/")):
        return Answer(304, None, {"ETag": tag})
    answer.headers["ETag"] = tag
    return answer
