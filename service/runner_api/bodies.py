"""Request bodies within their limits, and what becomes of errors: typed problems, never a traceback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from ci_dispatch.protocol import Problem
from reviewer.errors import ReviewError
from service.runner_api.files import FileRefused, NotHere, TooLarge
from service.runner_api.limits import Limits
from service.store.ci_rows import BadToken
from service.store.errors import Conflict, StoreError
from service.store.job_leases import LeaseLost, NoSuchLease
from service.store.runners import NameTaken, WrongArch

ModelT = TypeVar("ModelT", bound=BaseModel)


class Refusal(Exception):
    """The answer to a request that is not accepted."""

    def __init__(self, status: int, problem: str, remedy: str = "", *, after: float = 0.0) -> None:
        super().__init__(problem)
        self.status = status
        self.problem = Problem(problem=problem[:1000], remedy=remedy[:1000])
        self.after = after

    def answer(self) -> Response:
        headers = {"Retry-After": str(max(1, round(self.after)))} if self.after else {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return Response(self.problem.model_dump_json(), self.status, headers, "application/json")


def refusal_of(error: Exception) -> Refusal | None:
    """How an error is answered; None for one that nobody expected."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ReviewError):
        return Refusal(_status(error), error.problem, error.remedy, after=5.0 * (_status(error) == 503))
    if isinstance(error, ValidationError):
        return _malformed(error.errors(include_url=False, include_input=False)[0])
    if isinstance(error, RequestValidationError):
        return _malformed(error.errors()[0])
    if isinstance(error, TooLarge):
        return Refusal(413, str(error), "send less")
    if isinstance(error, FileRefused):
        return Refusal(422, str(error), "choose another name")
    if isinstance(error, NotHere):
        return Refusal(404, str(error), "ask again in a moment")
    if isinstance(error, OSError):
        why = error.strerror or type(error).__name__
        return Refusal(503, f"the service cannot keep it: {why}", "ask again", after=10)
    return None


def _malformed(first: Mapping[str, Any]) -> Refusal:
    place = ".".join(map(str, first["loc"])) or "the body"
    return Refusal(422, f"{place}: {first['msg']}", "both sides must be of one version")


def _status(error: ReviewError) -> int:
    if isinstance(error, BadToken):
        return 401
    if isinstance(error, NoSuchLease):
        return 404
    if isinstance(error, LeaseLost | NameTaken | Conflict):
        return 409
    if isinstance(error, WrongArch):
        return 422
    return 503 if isinstance(error, StoreError) else 500


class Bodies:
    """Reads bodies, and never holds more than the limits allow."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held = 0

    async def read(self, request: Request, limit: int) -> bytes:
        """The whole body. Raises `Refusal`."""
        parts: list[bytes] = []
        try:
            async for chunk in self.chunks(request, limit):
                parts.append(chunk)
                self._held += len(chunk)
                if self._held > self._limits.memory:
                    raise Refusal(503, "too many bodies are held in memory", "ask again", after=5)
            return b"".join(parts)
        finally:
            self._held -= sum(map(len, parts))

    async def model(self, request: Request, kind: type[ModelT]) -> ModelT:
        """A small body. Raises `Refusal`, `ValidationError`."""
        return kind.model_validate_json(await self.read(request, self._limits.small_body))

    async def chunks(self, request: Request, limit: int) -> AsyncIterator[bytes]:
        """The body as it comes; a client that keeps silent is cut off. Raises `Refusal`."""
        # The server has checked that it is a number.
        if int(request.headers.get("content-length", "0")) > limit:
            raise _too_large(limit)
        size = 0
        stream = request.stream()
        while True:
            try:
                async with asyncio.timeout(self._limits.patience):
                    chunk = await anext(stream, None)
            except TimeoutError:
                raise Refusal(408, "the body did not arrive", "send it again") from None
            except ClientDisconnect:
                raise Refusal(408, "the client went away") from None
            if chunk is None:
                return
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            yield chunk


def _too_large(limit: int) -> Refusal:
    return Refusal(413, f"the body has more than {limit} bytes", "send less")
