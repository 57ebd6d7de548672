"""Any endpoint that speaks OpenAI's chat completions protocol."""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from reviewer.engines.base import Completion, CompletionFailed, Key, Request
from reviewer.engines.budget import time_left
from reviewer.engines.dialect import Dialect
from reviewer.engines.reply import one_line, read_reply
from reviewer.errors import EngineError
from reviewer.redact import Redactor

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

_VOTING_STEPS = ("discover", "confirm")
_LARGEST_REPLY = 16 * 2**20  # bytes: an honest reply has a few tokens' worth, a lying one may never end


@dataclass(frozen=True, slots=True)
class OpenAISettings:
    """An endpoint and how to ask it. Rep r is answered by `models[r % len(models)]`; steps other than discovery
    and confirmation by `judge_model`, or else the first model.

    `request_timeout` bounds one attempt, in seconds; pauses between attempts start near `backoff` seconds, double
    up to `backoff_max`, and are never shorter than the endpoint asks for. `prices` are USD for a million tokens
    in, and out. `seed` is varied by rep and attempt: equal seeds would make votes copies.
    """

    base_url: str
    api_key: str = field(repr=False)
    models: tuple[str, ...]
    judge_model: str | None = None
    concurrency: int = 8
    request_timeout: float = 300.0
    retries: int = 4
    backoff: float = 0.5
    backoff_max: float = 30.0
    temperature: float | None = None
    seed: int | None = None
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.models:
            raise EngineError(f"no model is named for {self.endpoint}", "name at least one")
        if urlsplit(self.base_url).scheme not in ("http", "https"):
            raise EngineError(
                f"{self.endpoint} is no URL of an endpoint", "give one that begins with https:// or http://"
            )
        if not re.fullmatch(r"[!-~]*", self.api_key):
            raise EngineError(
                f"the API key for {self.endpoint} holds a space, a line break or a letter outside ASCII",
                "copy it again",
            )

    @property
    def endpoint(self) -> str:
        """The base URL without user, password and query, for messages."""
        url = urlsplit(self.base_url)
        return url._replace(netloc=url.netloc.rpartition("@")[2], query="", fragment="").geturl()

    def model(self, key: Key) -> str:
        if key.step in _VOTING_STEPS:
            return self.models[key.rep % len(self.models)]
        return self.judge_model or self.models[0]


class _Rejected(Exception):
    """The endpoint does not take the request as it is."""


class _Transient(Exception):
    """The same request may succeed later, at the earliest after `retry_after` seconds."""

    def __init__(self, reason: str, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after


class OpenAIEngine:
    """Asks one endpoint, within one event loop; use it as an async context manager to close its connections.

    The SDK's own retries are off: their pauses have fixed lengths, and know nothing of the time left. Cancelling
    the task that awaits `complete` aborts the HTTP request.
    """

    def __init__(self, settings: OpenAISettings) -> None:
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._redact = Redactor([settings.api_key])
        self._client = _connect(settings)
        self._answered = False
        # By model and whether tools are offered: some models refuse a format only beside tools.
        self._dialects: dict[tuple[str, bool], Dialect] = {}

    async def __aenter__(self) -> OpenAIEngine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def complete(self, request: Request) -> Completion:
        model = self._settings.model(request.key)
        async with self._slots:
            start = time.monotonic()
            reply = await self._ask(request, model)
            seconds = time.monotonic() - start
        try:
            return read_reply(reply, request, model, self._settings.prices.get(model, (0.0, 0.0)), seconds)
        except CompletionFailed as failed:
            raise CompletionFailed(failed.reason, self._tell(failed)) from None

    def warnings(self) -> tuple[str, ...]:
        return tuple(
            f"{model} takes no tools: its agentic reps saw the diff alone"
            for (model, _), dialect in sorted(self._dialects.items())
            if not dialect.tools
        )

    async def _ask(self, request: Request, model: str) -> bytes:
        """The body of a successful reply, once the endpoint takes the request in some form."""
        known = (model, bool(request.tools))
        dialect = self._dialects.get(known, Dialect())
        complaint = ""
        while True:
            body = dialect.body(request, model, self._settings.temperature, self._seed(request.key))
            try:
                reply = await self._persist(body, model)
            except _Rejected as rejected:
                complaint = complaint or str(rejected)
                simpler = dialect.without(str(rejected), body)
                if simpler is None:
                    raise CompletionFailed(
                        "bad_request", f"{model} refused the request: {complaint}"
                    ) from None
                dialect = simpler
            else:
                if complaint:
                    self._dialects[known] = dialect
                return reply

    async def _persist(self, body: dict[str, Any], model: str) -> bytes:
        """Sends `body` until it is answered, the retries are used up, or the time left is too short to wait."""
        attempt = 0
        while True:
            try:
                return await self._send(body, model)
            except _Transient as error:
                pause = self._pause(attempt, error.retry_after)
                left = time_left()
                if attempt < self._settings.retries and pause < left:
                    attempt += 1
                    await asyncio.sleep(pause)
                    continue
                if error.reason == "connection" and not self._answered:
                    raise EngineError(
                        f"{self._settings.endpoint} cannot be reached ({error})",
                        "check the base URL, and that the endpoint runs",
                    ) from None
                why = f"; to wait {pause:.0f} s exceeds the {left:.0f} s left" if pause >= left else ""
                raise CompletionFailed(error.reason, f"{model}: {error}{why}") from None

    async def _send(self, body: dict[str, Any], model: str) -> bytes:
        import httpx2
        import openai

        limit = self._settings.request_timeout
        create = self._client.chat.completions.with_streaming_response.create
        reply = bytearray()
        try:
            async with asyncio.timeout(limit), create(**body) as response:
                self._answered = True
                async for chunk in response.iter_bytes():
                    reply += chunk
                    if len(reply) > _LARGEST_REPLY:
                        raise CompletionFailed(
                            "server_error", f"{model} answered more than {_LARGEST_REPLY:,} bytes"
                        )
        except (TimeoutError, openai.APITimeoutError, httpx2.TimeoutException):
            raise _Transient("timeout", f"no answer within {limit:g} s") from None
        except (openai.APIConnectionError, httpx2.HTTPError) as error:
            raise _Transient("connection", self._tell(error.__cause__ or error)) from None
        except openai.APIStatusError as error:
            self._answered = True
            # Its text may repeat the key, so it must not stay in a traceback either.
            raise self._judge(error, model) from None
        return bytes(reply)

    def _judge(self, error: APIStatusError, model: str) -> Exception:
        """What an HTTP status means for this request."""
        status, endpoint = error.status_code, self._settings.endpoint
        fault = error.body if isinstance(error.body, dict) else {}
        code = str(fault.get("code"))
        said = f"{status}: {self._tell(fault.get('message') or error.message)}"
        if status in (401, 403):
            return EngineError(
                f"{endpoint} refuses the API key ({said})", "give a key that may use this endpoint"
            )
        if status == 404:
            return EngineError(
                f"{endpoint} does not know {model} ({said})", "check the model's name and the base URL"
            )
        if status == 402 or code == "insufficient_quota":
            return EngineError(
                f"the account at {endpoint} is spent ({said})", "add credit or use another key"
            )
        if status == 429:
            return _Transient("rate_limited", said, _retry_after(error.response.headers))
        if status in (408, 409) or status >= 500:
            return _Transient("server_error", said, _retry_after(error.response.headers))
        if code in ("content_filter", "content_policy_violation"):
            return CompletionFailed("refused", f"{model}: {said}")
        if status in (400, 422):
            return _Rejected(f"{self._tell(fault.get('param') or '')} {said}".strip())
        return CompletionFailed("bad_request", f"{model}: {said}")

    def _pause(self, attempt: int, retry_after: float) -> float:
        """Seconds to wait: exponential, spread so that what failed together does not return together."""
        settings = self._settings
        backoff = min(settings.backoff * 2.0**attempt, settings.backoff_max)
        return retry_after + backoff * random.uniform(0.5, 1.0)

    def _tell(self, text: object) -> str:
        """What an endpoint said, fit for a message. Redacted first: cut in two, a secret is not recognised."""
        return one_line(self._redact(str(text)))

    def _seed(self, key: Key) -> int | None:
        return None if self._settings.seed is None else self._settings.seed + key.rep + 1000 * key.attempt


def _connect(settings: OpenAISettings) -> AsyncOpenAI:
    # The SDK takes 0.4 s to import, which only whoever asks an endpoint should pay.
    from openai import AsyncOpenAI, Timeout

    return AsyncOpenAI(
        base_url=settings.base_url,
        api_key=settings.api_key or "none",
        max_retries=0,
        timeout=Timeout(settings.request_timeout, connect=min(10.0, settings.request_timeout)),
    )


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that the endpoint asks to wait, as a number or a date; 0 where it does not say."""
    value = headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    return 0.0 if math.isnan(seconds) else max(seconds, 0.0)
