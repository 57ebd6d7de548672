"""A small service that speaks `ci_dispatch.protocol` over real HTTP, with faults to order: what a runner's tests talk to."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from ci_dispatch.model import Job, JobReport, JobSpec, Notice, Step
from ci_dispatch.protocol import PREFIX, Beat, BeatAnswer, Grant, LeaseAnswer, Registered, Registration

Fault = Literal["drop_before", "drop_after", "503", "slow"]
SLOW_SECONDS = 0.5


@dataclass
class LeaseState:
    """What the service knows of a lease."""

    grant: Grant
    granted_after: int
    beats: list[str] = field(default_factory=list)
    log: bytearray = field(default_factory=bytearray)
    log_times: list[tuple[float, int]] = field(default_factory=list)
    artifacts: dict[str, bytes] = field(default_factory=dict)
    reports: list[JobReport] = field(default_factory=list)
    returned: str | None = None
    cancel: bool = False
    lost: bool = False

    @property
    def is_over(self) -> bool:
        return bool(self.reports) or self.returned is not None or self.lost


class RunnerService:
    """State behind a lock, and hands for tests. `faults` are used up in their order, by kind of call: register, beat, claim,
    deregister, source, lease_beat, log, artifact, report, return."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.tokens: dict[str, str | None] = {}
        self.names: dict[str, str] = {}
        self.secrets: dict[str, str] = {}
        self.gone: set[str] = set()
        self.beats: list[Beat] = []
        self.notices: list[Notice] = []
        self.quarantined: set[str] = set()
        self.waiting: list[tuple[Job, tuple[str, ...]]] = []
        self.leases: dict[int, LeaseState] = {}
        self.trees: dict[str, bytes] = {
            "head": tree({"README": b"head\n"}),
            "base": tree({"README": b"base\n"}),
        }
        self.faults: dict[str, list[Fault]] = {}
        self.calls: list[str] = []
        self.drain = False
        self.holds_claims = False
        self.again: list[int] = []
        self.lease_seconds = 30.0
        self.log_bytes = 64 << 20
        self.beat_seconds = 0.5
        self.authorizations: set[str] = set()
        self.url = ""

    # Hands

    def token(self, token: str = "registration-token") -> str:
        self.tokens[token] = None
        return token

    def offer(self, job: Job, *gpus: str) -> None:
        with self.changed:
            self.waiting.append((job, gpus))
            self.changed.notify_all()

    def lease(self, number: int) -> LeaseState:
        return self.leases[number]

    def wait_for(self, condition: Callable[[], Any], seconds: float = 60.0) -> None:
        with self.changed:
            deadline = time.monotonic() + seconds
            while not condition():
                left = deadline - time.monotonic()
                assert left > 0, f"not within {seconds} s; calls: {self.calls[-20:]}"
                self.changed.wait(min(left, 0.1))

    # Calls

    def register(self, token: str, body: bytes) -> tuple[int, Any]:
        asked = Registration.model_validate_json(body)
        spent_by = self.tokens.get(token, "unknown")
        if token not in self.tokens or (spent_by is not None and spent_by != asked.nonce):
            return 401, _problem("the registration token is unknown or spent")
        self.tokens[token] = asked.nonce
        secret = f"secret-{len(self.secrets) + 1}"
        for old, name in list(self.secrets.items()):
            if name == asked.name:
                del self.secrets[old]
        self.secrets[secret] = asked.name
        return 200, Registered(runner_id=len(self.secrets), secret=secret, beat_seconds=self.beat_seconds)

    def beat(self, secret: str, body: bytes) -> tuple[int, Any]:
        if secret not in self.secrets:
            return 401, _problem("unknown runner")
        self.gone.discard(secret)
        beat = Beat.model_validate_json(body)
        self.beats.append(beat)
        self.notices.extend(beat.notices)
        self.quarantined |= {one.gpu for one in beat.notices if one.gpu}
        lost = tuple(one for one in beat.leases if one in self.leases and self.leases[one].lost)
        return 200, BeatAnswer(drain=self.drain, lost=lost, quarantined=tuple(sorted(self.quarantined)))

    def claim(self, secret: str, wait: float) -> tuple[int, Any]:
        if secret not in self.secrets:
            return 401, _problem("unknown runner")
        deadline = time.monotonic() + wait
        while True:
            for state in self.leases.values():
                # Its answer was lost on the way, as no call with its token ever came.
                if not state.beats and not state.is_over and self._forgotten(state):
                    return 200, state.grant
            if self.again:
                state = self.leases[self.again.pop()]
                state.grant = state.grant.model_copy(update={"token": f"{state.grant.token}-again"})
                return 200, state.grant
            if self.waiting:
                return 200, self._grant(*self.waiting.pop(0))
            left = deadline - time.monotonic()
            if left <= 0 or (self.beats and self.beats[-1].draining and not self.holds_claims):
                return 204, None
            self.changed.wait(min(left, 0.1))

    def _forgotten(self, state: LeaseState) -> bool:
        since = self.beats[state.granted_after :]
        return len([one for one in since if state.grant.lease_id not in one.leases]) > 1

    def _grant(self, job: Job, gpus: tuple[str, ...]) -> Grant:
        number = len(self.leases) + 1
        grant = Grant(
            lease_id=number,
            token=f"lease-token-{number}",
            job=job,
            gpus=gpus,
            lease_seconds=self.lease_seconds,
            log_bytes=self.log_bytes,
            artifact_bytes=1 << 20,
        )
        self.leases[number] = LeaseState(grant, len(self.beats))
        return grant

    def of_lease(
        self, token: str, number: int, call: str, query: dict[str, str], body: bytes
    ) -> tuple[int, Any]:
        state = self.leases.get(number)
        if state is None:
            return 404, _problem("no such lease")
        if token != state.grant.token:
            return 401, _problem("unknown token")
        kind, _, rest = call.partition("/")
        if kind == "report":
            if state.lost or state.returned is not None:
                return 409, _problem("the lease is lost")
            if not state.reports:
                state.reports.append(JobReport.model_validate_json(body))
            return 204, None
        if state.is_over:
            return 409, _problem("the lease is lost")
        if kind == "source":
            packed = self.trees.get(rest)
            return (404, _problem("not there yet")) if packed is None else (200, packed)
        if kind == "beat":
            state.beats.append(json.loads(body)["step"])
            return 200, LeaseAnswer(cancel=state.cancel)
        if kind == "log":
            return self._log(state, int(query["offset"]), body)
        if kind == "artifacts":
            state.artifacts[unquote(rest)] = body
            return 201, {
                "path": unquote(rest),
                "bytes": len(body),
                "sha256": hashlib.sha256(body).hexdigest(),
            }
        state.returned = json.loads(body)["reason"]
        return 204, None

    def _log(self, state: LeaseState, offset: int, body: bytes) -> tuple[int, Any]:
        if offset > len(state.log):
            return 422, _problem(f"bytes from {len(state.log)} on are missing")
        state.log += body[len(state.log) - offset :]
        state.log_times.append((time.monotonic(), len(state.log)))
        return (413, _problem("the log is full")) if len(state.log) > state.grant.log_bytes else (204, None)


def _problem(words: str) -> dict[str, str]:
    return {"problem": words, "remedy": ""}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: RunnerService

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_DELETE = do_GET

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        path = parts.path.removeprefix(PREFIX)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        kind = _kind(self.command, path)
        state = self.state
        with state.changed:
            fault = state.faults.get(kind, [])
            now = fault.pop(0) if fault else None
            state.calls.append(f"{kind}{' ' + now if now else ''}")
            state.authorizations.add(token)
        if now == "slow":
            time.sleep(SLOW_SECONDS)
        if now == "drop_before":
            self._hang_up()
            return
        if now == "503":
            self._answer(503, _problem("busy"))
            return
        with state.changed:
            status, answer = self._route(path, query, token, body)
            state.changed.notify_all()
        if now == "drop_after":
            self._hang_up()
            return
        self._answer(status, answer)

    def _route(self, path: str, query: dict[str, str], token: str, body: bytes) -> tuple[int, Any]:
        state = self.state
        if path == "/runners":
            return state.register(token, body)
        if path == "/runners/self/beat":
            return state.beat(token, body)
        if path == "/runners/self/claim":
            return state.claim(token, float(query["wait"]))
        if path == "/runners/self":
            state.gone.add(token)
            return 204, None
        found = re.fullmatch(r"/leases/(\d+)/(.+)", path)
        if found is None:
            return 404, _problem("no such path")
        return state.of_lease(token, int(found[1]), found[2], query, body)

    def _hang_up(self) -> None:
        self.close_connection = True

    def _answer(self, status: int, answer: Any) -> None:
        if isinstance(answer, bytes):
            content = answer
        elif answer is None:
            content = b""
        else:
            content = (
                answer.model_dump_json().encode()
                if hasattr(answer, "model_dump_json")
                else json.dumps(answer).encode()
            )
        try:
            self.send_response(status)
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
    return {"beat": "lease_beat", "artifacts": "artifact"}.get(call, call)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


@contextmanager
def served(port: int = 0, state: RunnerService | None = None) -> Iterator[RunnerService]:
    """Listens on loopback until the end; a `state` may be served again, on the same port, after an outage."""
    state = state or RunnerService()
    handler = type("Handler", (_Handler,), {"state": state})
    server = _Server(("127.0.0.1", port), handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


def tree(files: dict[str, bytes]) -> bytes:
    """A packed tree."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def job(
    name: str = "build", *, argv: tuple[str, ...] = ("true",), arch: str = "cpu", gpus: int = 0, **spec: Any
) -> Job:
    """One of a trusted pull request."""
    step = Step(name="build", argv=argv, timeout=60)
    spec.setdefault("disk_mb", 16)
    declared = JobSpec.model_validate({"name": name, "arch": arch, "gpus": gpus, "steps": (step,), **spec})
    return Job(repo="o/r", number=1, head_sha="a" * 40, base_sha="b" * 40, spec=declared, trusted=True)
