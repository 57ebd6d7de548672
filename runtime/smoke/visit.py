"""One case's requests to a server over gRPC, and what came back."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any

import grpc

from runtime.proto import engine_pb2 as pb
from runtime.proto.engine_pb2_grpc import EngineStub
from runtime.request import FinishReason, SamplingParameters
from runtime.smoke.plan import Planned

SECONDS = 60.0
"""For one request: after that the server counts as hung."""
UNKNOWN = "unknown"
_REASONS = {
    pb.FINISH_REASON_STOP: FinishReason.STOP.value,
    pb.FINISH_REASON_LENGTH: FinishReason.LENGTH.value,
    pb.FINISH_REASON_ABORT: FinishReason.ABORT.value,
    pb.FINISH_REASON_ERROR: FinishReason.ERROR.value,
}


@dataclass(frozen=True)
class Visit:
    """One request's end.

    Attributes:
        answer: `ids`, `text`, `logprobs`, `finish_reason`, `error`, as they are kept; `error` with the status of a call
            that did not end well.
        seconds: from asking to the end.
    """

    answer: dict[str, Any]
    seconds: float


def visit(address: str, planned: Planned, seconds: float) -> list[Visit]:
    """Ask everything of a case, wave after wave; never raises for what the server does, and never waits longer than said.

    Args:
        seconds: for each request.
    """
    visits: list[Visit] = []
    with grpc.insecure_channel(address) as channel:
        stub = EngineStub(channel)
        for wave in planned.waves:
            calls = []
            for prompt, sampling in wave:
                started = time.monotonic()
                call = stub.Generate(_request(prompt, sampling), timeout=seconds)
                call.initial_metadata()  # it is queued: the next one comes after it
                calls.append((call, started))
            with ThreadPoolExecutor(len(calls)) as readers:
                visits += readers.map(lambda one: _read(one[0], one[1], seconds), calls)
    return visits


def failed(error: str) -> Visit:
    """Of a request that got no answer."""
    empty = {"ids": [], "text": "", "logprobs": []}
    return Visit({**empty, "finish_reason": FinishReason.ERROR.value, "error": error}, 0.0)


def _request(prompt: str | Sequence[int], sampling: SamplingParameters) -> pb.GenerateRequest:
    given = {field.name: sampling.__dict__[field.name] for field in fields(sampling)}
    processors = given.pop("processors")
    given |= {field.name: processors.__dict__[field.name] for field in fields(processors)}
    request = pb.GenerateRequest(
        sampling=pb.Sampling(**{name: value for name, value in given.items() if value is not None})
    )
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.ids.ids.extend(prompt)
    return request


def _read(call: Any, started: float, seconds: float) -> Visit:
    ids: list[int] = []
    logprobs: list[float | None] = []
    text, reason, error = "", UNKNOWN, ""
    try:
        for response in call:
            for part in response.parts:
                ids += [token.id for token in part.tokens]
                logprobs += [token.logprob if token.HasField("logprob") else None for token in part.tokens]
                text += part.text
                if part.HasField("finish"):
                    reason = _REASONS.get(part.finish.reason, UNKNOWN)
                    error = part.finish.error
    except grpc.RpcError as ended:
        reason = FinishReason.ERROR.value
        code, details = ended.code(), ended.details()
        error = (
            f"no answer in {seconds:g} s"
            if code is grpc.StatusCode.DEADLINE_EXCEEDED
            else f"{code.name}: {details}"
        )
    answer = {"ids": ids, "text": text, "logprobs": logprobs, "finish_reason": reason, "error": error}
    return Visit(answer, time.monotonic() - started)
