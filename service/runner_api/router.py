"""The routes of `ci_dispatch.protocol`: who asks, how much they may send, and what they are answered."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Annotated, Any, BinaryIO, Literal, TypeVar

from fastapi import APIRouter, FastAPI, Path, Query, Request
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry
from starlette.responses import Response, StreamingResponse

from ci_dispatch.model import Artifact
from ci_dispatch.protocol import (
    PREFIX,
    VERSION,
    Beat,
    BeatAnswer,
    Grant,
    LeaseAnswer,
    LeaseBeat,
    Problem,
    Registered,
    Registration,
    Returned,
)
from service.runner_api.bodies import Bodies, Refusal, refusal_of
from service.runner_api.desk import Desk
from service.runner_api.dispatcher import Decide, Dispatcher
from service.runner_api.limits import Buckets
from service.runner_api.metrics import ApiMetrics
from service.store.fleet import assign_due
from service.store.job_leases import Lease
from service.store.runners import Runner

T = TypeVar("T")
LeaseId = Annotated[int, Path(ge=1, lt=1 << 63)]
Offset = Annotated[int, Query(ge=0, lt=1 << 62, description="of the first byte")]
Wait = Annotated[float, Query(allow_inf_nan=False, description="seconds")]

# Most of them wait for a commit.
_THREADS = 6
# Read and written in one go by a thread.
_PIECE = 256 * 1024
_BEARER = re.compile(r"[Bb]earer +([!-~]{1,200})")
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": description}
    for status, description in {
        401: "Unknown or spent token",
        404: "No such lease, or not there yet",
        408: "The body did not arrive",
        409: "The lease is lost, or the name is taken",
        413: "Too large",
        422: "Malformed",
        429: "Too many",
        503: "Not now",
    }.items()
}


def make_router(desk: Desk, registry: CollectorRegistry, decide: Decide = assign_due) -> APIRouter:
    """The API as one router; it starts and stops its own threads and loop with the application."""
    return _Api(desk, ApiMetrics(registry), decide).router


class _Api:
    def __init__(self, desk: Desk, metrics: ApiMetrics, decide: Decide) -> None:
        self._desk = desk
        self._limits = desk.limits
        self._metrics = metrics
        self._bodies = Bodies(desk.limits)
        self._calls = Buckets(desk.limits.rate, desk.limits.burst)
        self._refused = Buckets(desk.limits.refusals, desk.limits.refused_burst)
        self._dispatcher = Dispatcher(desk.database, desk.scribe, desk.clock, metrics, desk.ring, decide)
        self._threads = ThreadPoolExecutor(_THREADS, "runner-api")
        self._uploads = asyncio.Semaphore(desk.limits.uploads)
        self.router = APIRouter(
            prefix=PREFIX,
            route_class=self._route(),
            responses=_PROBLEMS,
            lifespan=self._lifespan,
            tags=["runners"],
        )
        self._add_routes()

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        self._desk.scribe.start()
        self._dispatcher.start()
        app.state.endings.append(self._dispatcher.end_claims)
        yield
        await self._dispatcher.close()
        self._threads.shutdown()
        await asyncio.to_thread(self._desk.scribe.close)

    def _route(self) -> type[APIRoute]:
        """Routes whose errors are problems, and whose answers are counted."""
        api = self

        class Answered(APIRoute):
            def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
                handle = super().get_route_handler()
                name = self.name

                async def answer(request: Request) -> Response:
                    try:
                        response: Response = await handle(request)
                    except Exception as error:
                        refusal = refusal_of(error)
                        if refusal is None:
                            api._metrics.requests.labels(name, 500).inc()
                            raise
                        response = api._refuse(request, refusal)
                    api._metrics.requests.labels(name, response.status_code).inc()
                    return response

                return answer

        return Answered

    def _refuse(self, request: Request, refusal: Refusal) -> Response:
        if refusal.status == 401:
            wait = self._refused.take(request.client.host if request.client else "", time.monotonic())
            if wait:
                refusal = Refusal(429, "too many bad tokens", "wait, and correct the token", after=wait)
        return refusal.answer()

    def _add_routes(self) -> None:
        add = self.router.add_api_route
        add("/runners", self.register, methods=["POST"], response_model=Registered)
        add("/runners/self/beat", self.beat, methods=["POST"], response_model=BeatAnswer)
        add("/runners/self/claim", self.claim, methods=["POST"], response_model=Grant)
        add("/runners/self", self.leave, methods=["DELETE"], status_code=204)
        add("/leases/{lease_id}/source/{tree}", self.source, methods=["GET"])
        add("/leases/{lease_id}/beat", self.beat_lease, methods=["POST"], response_model=LeaseAnswer)
        add("/leases/{lease_id}/log", self.log, methods=["POST"], status_code=204)
        add(
            "/leases/{lease_id}/artifacts/{path:path}",
            self.artifact,
            methods=["PUT"],
            status_code=201,
            response_model=Artifact,
        )
        add("/leases/{lease_id}/report", self.report, methods=["POST"], status_code=204)
        add("/leases/{lease_id}/return", self.give_back, methods=["POST"], status_code=204)

    # The runner's own calls

    async def register(self, request: Request) -> Response:
        """Take a host in; spends the registration token"""
        token = _bearer(request)
        asked = await self._bodies.model(request, Registration)
        if asked.version != VERSION:
            raise Refusal(
                422,
                f"the runner speaks version {asked.version}, the service {VERSION}",
                "install the same version of whitesmoke on both",
            )
        return _json(await self._do(self._desk.register, token, asked), 201)

    async def beat(self, request: Request) -> Response:
        """A runner is well, or says what is not"""
        runner = await self._runner(request)
        said = await self._bodies.model(request, Beat)
        answer = await self._do(self._desk.beat, runner, said)
        return _json(answer)

    async def claim(self, request: Request, wait: Wait = 25.0) -> Response:
        """A job to run now, or 204 where none came"""
        runner = await self._runner(request)
        if not runner.takes_jobs:
            return Response(status_code=204)
        seconds = min(max(wait, 0.0), self._limits.longest_wait)
        grant = await self._do(self._desk.listen, runner, seconds)
        if grant is None:
            grant = await self._wait(request, runner, time.monotonic() + seconds)
        return Response(status_code=204) if grant is None else _json(grant)

    async def _wait(self, request: Request, runner: Runner, deadline: float) -> Grant | None:
        """Waits for a grant as long as the client does."""
        gone = asyncio.create_task(_gone(request))
        try:
            while (left := deadline - time.monotonic()) > 0 and not self._dispatcher.stopped:
                waiting = asyncio.create_task(self._dispatcher.wait(runner.id, left))
                try:
                    await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waiting.cancel()
                    with suppress(asyncio.CancelledError):
                        await waiting
                if gone.done():
                    if not self._dispatcher.waits(runner.id):
                        await self._do(self._desk.stop_listening, runner.id)
                    return None
                grant = await self._do(self._desk.fetch, runner.id)
                if grant is not None:
                    return grant
            return None
        finally:
            gone.cancel()

    async def leave(self, request: Request) -> Response:
        """The runner offers nothing any more"""
        await self._do(self._desk.leave, await self._runner(request))
        self._dispatcher.nudge()
        return Response(status_code=204)

    # Calls of a lease

    async def source(
        self, request: Request, lease_id: LeaseId, tree: Literal["head", "base"]
    ) -> StreamingResponse:
        """The files of a tree, as tar.gz"""
        lease = await self._lease(request, lease_id)
        file = await self._do(self._desk.source, lease, tree)
        return StreamingResponse(self._pieces(file), media_type="application/gzip")

    async def beat_lease(self, request: Request, lease_id: LeaseId) -> Response:
        """The job is under way; whether it should stop"""
        token = _bearer(request)
        said = await self._bodies.model(request, LeaseBeat)
        return _json(await self._do(self._desk.beat_lease, lease_id, token, said.step))

    async def log(self, request: Request, lease_id: LeaseId, offset: Offset) -> Response:
        """Output of the job, from a byte on; what is kept already is skipped"""
        lease = await self._lease(request, lease_id)
        data = await self._bodies.read(request, self._limits.log_chunk)
        await self._do(self._desk.append_log, lease, _bearer(request), offset, data)
        self._metrics.log_bytes.inc(len(data))
        return Response(status_code=204)

    async def artifact(self, request: Request, lease_id: LeaseId, path: str) -> Response:
        """Keep a file that the job left"""
        lease = await self._lease(request, lease_id)
        async with self._uploads:
            upload = await self._do(self._desk.begin_artifact, lease, path)
            try:
                gathered: list[bytes] = []
                async for chunk in self._bodies.chunks(request, self._limits.artifact_bytes):
                    gathered.append(chunk)
                    if sum(map(len, gathered)) >= _PIECE:
                        await self._do(upload.write, b"".join(gathered))
                        gathered.clear()
                await self._do(upload.write, b"".join(gathered))
                # The lease may have been lost since; what another one left must not be replaced.
                await self._do(self._desk.use, lease.id, _bearer(request))
                kept = await self._do(upload.finish)
            finally:
                await self._do(upload.abandon)
        return _json(kept, 201)

    async def report(self, request: Request, lease_id: LeaseId) -> Response:
        """The evidence of a job; a second one changes nothing"""
        token = _bearer(request)
        lease = await self._do(self._desk.find, lease_id, token)
        self._count(lease.runner_id)
        body = await self._bodies.read(request, self._limits.report)
        await self._do(self._desk.report, lease_id, token, body)
        self._dispatcher.nudge()
        return Response(status_code=204)

    async def give_back(self, request: Request, lease_id: LeaseId) -> Response:
        """The job waits again, not counted as an attempt"""
        token = _bearer(request)
        said = await self._bodies.model(request, Returned)
        await self._do(self._desk.give_back, lease_id, token, said.reason)
        self._dispatcher.nudge()
        return Response(status_code=204)

    # Who asks

    async def _runner(self, request: Request) -> Runner:
        runner = await self._do(self._desk.who, _bearer(request))
        self._count(runner.id)
        return runner

    async def _lease(self, request: Request, lease_id: LeaseId) -> Lease:
        lease = await self._do(self._desk.use, lease_id, _bearer(request))
        self._count(lease.runner_id)
        return lease

    def _count(self, runner_id: int) -> None:
        wait = self._calls.take(runner_id, time.monotonic())
        if wait:
            raise Refusal(429, "the runner asks too often", "wait", after=wait)

    async def _do(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(call, *arguments))

    async def _pieces(self, file: BinaryIO) -> AsyncIterator[bytes]:
        try:
            while piece := await self._do(file.read, _PIECE):
                yield piece
        finally:
            file.close()


def _bearer(request: Request) -> str:
    found = _BEARER.fullmatch(request.headers.get("authorization", ""))
    if found is None:
        raise Refusal(401, "no bearer token", "send the header Authorization: Bearer TOKEN")
    return found[1]


def _json(answer: Any, status: int = 200) -> Response:
    return Response(answer.model_dump_json(), status, media_type="application/json")


async def _gone(request: Request) -> None:
    """Returns when the client has gone. The body of a claim means nothing."""
    while (await request.receive())["type"] != "http.disconnect":
        continue
