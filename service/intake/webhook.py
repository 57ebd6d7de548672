"""`POST /webhook`: verify, commit, answer. Nothing else happens in that request."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping

from starlette.types import Receive, Scope, Send

from service.intake.metrics import Metrics
from service.intake.payload import extract
from service.intake.refusal import Refusal, unavailable
from service.intake.settings import IntakeSettings
from service.intake.signature import Signatures
from service.intake.writer import Writer
from service.store.deliveries import DeliveryState, NewDelivery
from service.store.types import utc_now

PATH = "/webhook"
_WORD = re.compile(rb"[!-~]{1,100}")
# Kept beside the body. The signature is not: it has been checked, and would only help to guess the secret.
_KEPT_PREFIX = b"x-github-"
_KEPT = (b"content-type", b"user-agent")
# Larger bodies are checked in a thread, so that one does not hold up the others.
_LARGE = 256 * 1024
_RETRY_SECONDS = 30


class Disconnected(Exception):
    """The client went away, or was cut off, before its request was complete."""


class Webhook:
    """The ASGI endpoint. The server in front cuts off clients whose body does not arrive."""

    def __init__(self, settings: IntakeSettings, writer: Writer, metrics: Metrics) -> None:
        self._settings = settings
        self._signatures = Signatures(settings.secrets)
        self._writer = writer
        self._metrics = metrics
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        event = headers.get(b"x-github-event", b"").decode("latin-1")
        try:
            outcome = await self._accept(scope["method"], headers, receive)
            status, body = 202, b'{"status": "%s"}' % outcome.encode()
        except Refusal as refusal:
            outcome, status = refusal.outcome, refusal.status
            body = json.dumps({"error": refusal.reason}).encode()
        except Disconnected:
            outcome, status, body = "disconnected", 0, b""
        known = event if event in self._settings.events else "other"
        self._metrics.deliveries.labels(known, outcome).inc()
        if status:
            await _answer(send, status, body)

    async def _accept(self, method: str, headers: Mapping[bytes, bytes], receive: Receive) -> str:
        """What became of the delivery; raises Refusal or Disconnected."""
        if method != "POST":
            raise Refusal(405, "malformed", "deliveries are posted")
        guid, event = _word(headers, b"x-github-delivery"), _word(headers, b"x-github-event")
        signature = headers.get(b"x-hub-signature-256")
        if signature is None:
            raise Refusal(401, "unsigned", "the header X-Hub-Signature-256 is missing; set a webhook secret")
        content_type = headers.get(b"content-type", b"")
        chunks: list[bytes] = []
        try:
            await self._read(headers, receive, chunks)
            body = b"".join(chunks)
            if len(body) > _LARGE:
                payload = await asyncio.to_thread(self._verify, signature, content_type, body)
            else:
                payload = self._verify(signature, content_type, body)
            state = DeliveryState.RECEIVED if event in self._settings.events else DeliveryState.IGNORED
            row = await self._writer.add(
                NewDelivery(guid, event, _kept(headers), payload, utc_now(), state=state)
            )
        finally:
            self._held -= sum(map(len, chunks))
        if row is None:
            return "duplicate"
        return "stored" if state is DeliveryState.RECEIVED else "ignored"

    async def _read(self, headers: Mapping[bytes, bytes], receive: Receive, chunks: list[bytes]) -> None:
        """Fills `chunks` with the body, and never holds more than the limits allow."""
        limit = self._settings.body_limit
        # The server has checked that it is a number.
        if int(headers.get(b"content-length", b"0")) > limit:
            raise _too_large(limit)
        size = 0
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            chunk: bytes = message.get("body", b"")
            chunks.append(chunk)
            size += len(chunk)
            self._held += len(chunk)
            if size > limit:
                raise _too_large(limit)
            if self._held > self._settings.memory_limit:
                raise unavailable("too many bodies are held in memory")
            more = message.get("more_body", False)

    def _verify(self, signature: bytes, content_type: bytes, body: bytes) -> bytes:
        if not self._signatures.valid(signature, body):
            raise Refusal(401, "bad_signature", "the signature is not of this body under the webhook secret")
        return extract(content_type, body)


def _word(headers: Mapping[bytes, bytes], name: bytes) -> str:
    value = headers.get(name, b"")
    if not _WORD.fullmatch(value):
        raise Refusal(400, "malformed", f"the header {name.decode().title()} is missing or malformed")
    return value.decode()


def _kept(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    return {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in headers.items()
        if name.startswith(_KEPT_PREFIX) or name in _KEPT
    }


def _too_large(limit: int) -> Refusal:
    return Refusal(413, "too_large", f"the body has more than {limit} bytes")


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 405:
        headers.append((b"allow", b"POST"))
    elif status == 503:
        headers.append((b"retry-after", b"%d" % _RETRY_SECONDS))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
