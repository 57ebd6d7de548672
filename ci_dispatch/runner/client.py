"""What a runner says to the service: `ci_dispatch.protocol` over HTTP.

A call that meets a dropped connection, a 5xx or a 429 is made again, later and later, until its patience is spent: all calls of the
protocol may be repeated. Tokens travel in a header alone and stand in no message or log line.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
from pydantic import BaseModel, ValidationError

from ci_dispatch.model import Artifact, JobReport, Tree
from ci_dispatch.protocol import (
    PREFIX,
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
from ci_dispatch.runner.errors import LeaseLost, Refused, RunnerError, Unreachable

M = TypeVar("M", bound=BaseModel)

_FIRST_DELAY, _MOST_DELAY = 0.2, 15.0
_CHUNK = 1 << 16
_CONNECT_SECONDS, _ANSWER_SECONDS = 5.0, 30.0

Body = bytes | Callable[[], Iterator[bytes]]


def backoff(attempt: int, draw: float) -> float:
    """Seconds before the next try after `attempt` failures (from 0): doubles up to 15, of which `draw` in [0, 1) leaves at least half,
    so that many runners do not come back at the same moment."""
    longest: float = min(_MOST_DELAY, _FIRST_DELAY * 2 ** min(attempt, 10))
    return longest * (0.5 + draw / 2)


def travels_in_clear(url: str) -> bool:
    """Whether tokens sent to an address could be read on their way."""
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1")


@dataclass(slots=True)
class Service:
    """The service at an address. `given_up` ends waits between tries."""

    url: str
    given_up: threading.Event = field(default_factory=threading.Event)
    _http: httpx2.Client = field(init=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RunnerError(f"{self.url!r} is no address of a service", "give one such as https://HOST")
        if parts.username or parts.password:
            raise RunnerError("the service's address holds a user name or password", "leave it out")
        self._http = httpx2.Client(
            base_url=self.url.rstrip("/") + PREFIX,
            timeout=httpx2.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS),
            headers={"User-Agent": "whitesmoke-runner"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._http.close()

    def register(self, token: str, registration: Registration, patience: float) -> Registered:
        answer = self.call("POST", "/runners", token, body=_json(registration), patience=patience)
        return _read(answer, Registered)

    def beat(self, secret: str, beat: Beat, patience: float = 0.0) -> BeatAnswer:
        return _read(
            self.call("POST", "/runners/self/beat", secret, body=_json(beat), patience=patience), BeatAnswer
        )

    def claim(self, secret: str, wait: float) -> Grant | None:
        """A job, or none within `wait` seconds. Asks once."""
        answer = self.call("POST", "/runners/self/claim", secret, query={"wait": f"{wait:g}"}, answer_in=wait)
        return None if answer.status_code == 204 else _read(answer, Grant)

    def deregister(self, secret: str, patience: float) -> None:
        self.call("DELETE", "/runners/self", secret, patience=patience)

    def lease(self, lease_id: int, token: str) -> LeaseCalls:
        return LeaseCalls(self, lease_id, token)

    def call(
        self,
        method: str,
        path: str,
        token: str,
        *,
        body: Body = b"",
        query: dict[str, str] | None = None,
        patience: float = 0.0,
        answer_in: float = 0.0,
        length: int | None = None,
        given_up: threading.Event | None = None,
    ) -> httpx2.Response:
        """An answer below 400. `patience` seconds for further tries, `answer_in` seconds more than usual for each.

        Raises Refused for another answer, Unreachable where none came in time or `given_up` was set meanwhile.
        """
        stop = given_up or self.given_up
        deadline = time.monotonic() + patience
        headers = {"Authorization": f"Bearer {token}"}
        if body:
            headers["Content-Type"] = "application/json" if length is None else "application/octet-stream"
        if length is not None:
            headers["Content-Length"] = str(length)
        attempt = 0
        while True:
            delay = backoff(attempt, random.random())
            if stop.is_set() or self.given_up.is_set():
                raise Unreachable(f"{method} {PREFIX}{path} is not asked: the runner ends")
            try:
                answer = self._http.request(
                    method,
                    path,
                    params=query,
                    headers=headers,
                    content=body() if callable(body) else body or None,
                    timeout=httpx2.Timeout(_ANSWER_SECONDS + answer_in, connect=_CONNECT_SECONDS),
                )
            except httpx2.TransportError as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if answer.status_code < 400:
                    return answer
                if answer.status_code < 500 and answer.status_code != 429:
                    raise _refusal(answer)
                problem = f"status {answer.status_code}"
            attempt += 1
            if time.monotonic() + delay > deadline or stop.wait(delay):
                raise Unreachable(f"{self.url} gave no answer to {method} {PREFIX}{path}: {problem}")

    def download(self, path: str, token: str, file: Path, most_bytes: int) -> None:
        """Into a new file, once. Raises Refused, Unreachable, RunnerError where it is larger than allowed, OSError."""
        headers = {"Authorization": f"Bearer {token}"}
        try:
            with self._http.stream("GET", path, headers=headers) as answer:
                if answer.status_code >= 400:
                    answer.read()
                    raise _refusal(answer)
                size = 0
                with file.open("wb") as out:
                    for chunk in answer.iter_bytes(_CHUNK):
                        size += len(chunk)
                        if size > most_bytes:
                            raise RunnerError(f"the tree is larger than {most_bytes} bytes, packed")
                        out.write(chunk)
        except httpx2.TransportError as error:
            raise Unreachable(
                f"{self.url} broke off {PREFIX}{path}: {type(error).__name__}: {error}"
            ) from None


@dataclass(frozen=True, slots=True)
class LeaseCalls:
    """The calls that a lease's token opens. All raise LeaseLost where the lease is no longer the runner's."""

    service: Service
    lease_id: int
    _token: str = field(repr=False)

    def beat(self, step: str, patience: float) -> LeaseAnswer:
        return _read(
            self._call("POST", "beat", body=_json(LeaseBeat(step=step)), patience=patience), LeaseAnswer
        )

    def log(self, offset: int, chunk: bytes, patience: float, given_up: threading.Event) -> None:
        """Bytes of the log from `offset` on. Raises Refused with 413 once the log is full, 422 where bytes before are missing."""
        self._call(
            "POST",
            "log",
            body=lambda: iter((chunk,)),
            length=len(chunk),
            query={"offset": str(offset)},
            patience=patience,
            given_up=given_up,
        )

    def keep(
        self, path: str, file: Path, length: int, patience: float, given_up: threading.Event
    ) -> Artifact:
        """`length` bytes of a file. Raises Refused where the service does not keep it, OSError."""
        answer = self._call(
            "PUT",
            f"artifacts/{quote(path)}",
            body=lambda: _chunks(file, length),
            length=length,
            patience=patience,
            given_up=given_up,
        )
        return _read(answer, Artifact)

    def source(self, tree: Tree, file: Path, most_bytes: int) -> None:
        """The packed tree, into a new file, asked for once. Refused with 404 is a tree that is not there yet."""
        self.service.download(f"/leases/{self.lease_id}/source/{tree}", self._token, file, most_bytes)

    def report(self, report: JobReport, patience: float, given_up: threading.Event) -> None:
        self._call("POST", "report", body=_json(report), patience=patience, given_up=given_up)

    def give_back(self, reason: str, patience: float) -> None:
        self._call("POST", "return", body=_json(Returned(reason=reason[:500])), patience=patience)

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: Body,
        query: dict[str, str] | None = None,
        patience: float,
        length: int | None = None,
        given_up: threading.Event | None = None,
    ) -> httpx2.Response:
        try:
            return self.service.call(
                method,
                f"/leases/{self.lease_id}/{path}",
                self._token,
                body=body,
                query=query,
                patience=patience,
                length=length,
                given_up=given_up,
            )
        except Refused as refused:
            if refused.status in (401, 404, 409):
                raise LeaseLost(refused.status, refused.message, refused.remedy) from None
            raise


def _json(model: BaseModel) -> bytes:
    return model.model_dump_json().encode()


def _read(answer: httpx2.Response, kind: type[M]) -> M:
    try:
        return kind.model_validate_json(answer.content)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        raise RunnerError(
            f"the service's {kind.__name__} is not understood: {wrong['msg']} at {wrong['loc']}",
            "install the runner of the service's version",
        ) from None


def _refusal(answer: httpx2.Response) -> Refused:
    try:
        problem = Problem.model_validate_json(answer.content)
    except ValidationError:
        problem = Problem(problem=f"the service answered with status {answer.status_code}")
    return Refused(answer.status_code, problem.problem, problem.remedy)


def _chunks(file: Path, length: int) -> Iterator[bytes]:
    """Exactly `length` bytes: a file that shrank meanwhile ends with zeros, one that grew is cut."""
    with file.open("rb") as source:
        while length > 0:
            chunk = source.read(min(_CHUNK, length)) or b"\0" * min(_CHUNK, length)
            length -= len(chunk)
            yield chunk
