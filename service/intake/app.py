"""The web application: the webhook, and what tells whether it is well."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.types import Lifespan, Receive, Scope, Send

from service.intake.description import WEBHOOK
from service.intake.metrics import Metrics
from service.intake.readiness import Check, Readiness
from service.intake.settings import IntakeSettings
from service.intake.sink import Sink
from service.intake.wakeups import OnStored, Wakeups
from service.intake.webhook import PATH, Webhook
from service.intake.writer import Writer

# Routes of another room, made with the registry for their metrics.
Part = Callable[[CollectorRegistry], APIRouter]

# A proxy on this machine makes every client look local, so a forwarded request never counts as one.
_FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-real-ip")


class _Application(FastAPI):
    """Serves the webhook ahead of its own routing, whose layers cost as much as the webhook's own work."""

    def __init__(self, webhook: Webhook, lifespan: Lifespan[FastAPI]) -> None:
        super().__init__(title="whitesmoke", lifespan=lifespan, docs_url=None, redoc_url=None)
        self._webhook = webhook

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == PATH:
            await self._webhook(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        document["paths"][PATH] = WEBHOOK
        return document


def create_app(
    settings: IntakeSettings,
    sink: Sink,
    checks: Mapping[str, Check],
    on_stored: OnStored,
    parts: Sequence[Part] = (),
) -> FastAPI:
    """The application, to be run in one process; `sink` is called from one thread of it.

    `checks` say what `/readyz` asks. `on_stored` gets the ids of deliveries that wait for a worker, after their
    commit and off the requests' path. When the application stops, what was accepted is committed and answered.
    """
    metrics = Metrics()
    readiness = Readiness(checks)
    wakeups = Wakeups(on_stored, metrics)
    writer = Writer(sink, wakeups, metrics, settings.queue_limit)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        wakeups.start()
        writer.start()
        yield
        await writer.close()
        await asyncio.to_thread(wakeups.close)
        readiness.close()

    app = _Application(Webhook(settings, writer, metrics), lifespan)
    # Called when the server begins to end: what would keep it waiting gives up then.
    app.state.endings = []
    for part in parts:
        app.include_router(part(metrics.registry))

    @app.get("/healthz", summary="The process answers")
    async def healthz() -> dict[str, str]:
        return {"status": "alive"}

    @app.get(
        "/readyz",
        summary="Deliveries can be stored and worked on",
        responses={503: {"description": "What is wrong"}},
    )
    async def readyz() -> JSONResponse:
        problems = await readiness.problems()
        if problems:
            return JSONResponse({"status": "not ready", "problems": problems}, 503)
        return JSONResponse({"status": "ready"})

    @app.get(
        "/metrics",
        summary="Prometheus metrics",
        response_class=Response,
        responses={401: {"description": "Needs the metrics token"}},
    )
    async def metrics_(request: Request) -> Response:
        if not (_is_local(request) or _has_token(request, settings.metrics_token)):
            return JSONResponse({"error": "the metrics token is needed"}, 401, {"WWW-Authenticate": "Bearer"})
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


def _is_local(request: Request) -> bool:
    if request.client is None or any(name in request.headers for name in _FORWARDED):
        return False
    try:
        return ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def _has_token(request: Request, token: str | None) -> bool:
    given = request.headers.get("authorization", "")
    return token is not None and hmac.compare_digest(given.encode(), f"Bearer {token}".encode())
