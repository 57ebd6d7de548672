"""Latency under load: requests arrive at random, in real time, through the engine's public interface."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from runtime.bench.engines import BUCKETS, WARM, make_engine, random_prompts
from runtime.config import ModelConfig
from runtime.engine import Output
from runtime.request import Request, SamplingParameters
from runtime.weights import Weights

# How an engine runs: its buckets, and whether it overlaps.
MODES = {"graph, overlapped": (BUCKETS, True), "graph": (BUCKETS, False), "eager": (None, False)}
MAX_STEP_TOKENS = 2048
WARM_UP = replace(WARM, max_tokens=4)


class Server(Protocol):
    """The part of `Engine` that arrivals need."""

    def submit(self, prompt: Sequence[int], sampling: SamplingParameters) -> Request: ...

    def step(self) -> list[Output]: ...

    def has_work(self) -> bool: ...


@dataclass(frozen=True)
class Load:
    """A Poisson process of requests.

    Attributes:
        rate: requests a second, in the mean.
        seconds: how long they come; the engine then serves what it has.
        prompt_tokens, output_tokens: of each request.
        seed: same seed, same arrivals.
    """

    rate: float
    seconds: float
    prompt_tokens: int
    output_tokens: int
    seed: int = 0


@dataclass(frozen=True)
class Served:
    """One request's times in seconds from the start: when it came, and when each of its tokens was there."""

    arrival: float
    tokens: tuple[float, ...]


@dataclass(frozen=True)
class ArrivalFigures:
    """One engine under one load; milliseconds.

    Attributes:
        mode: how the engine ran.
        requests: how many came.
        ttft_p50, ttft_p99: from a request's arrival to its first token.
        gap_p50, gap_p99: between two tokens of a request, over all requests.
        tokens_per_s: all tokens, from the first arrival to the last token.
    """

    backend: str
    mode: str
    rate: float
    requests: int
    ttft_p50: float
    ttft_p99: float
    gap_p50: float
    gap_p99: float
    tokens_per_s: float


def measure(
    config: ModelConfig, weights: Weights, backend: str, loads: Sequence[Load], mode: str
) -> Iterator[ArrivalFigures]:
    """Serve each load with one engine in one of `MODES`, after a warm-up of other sizes of prefill."""
    buckets, overlap = MODES[mode]
    engine = make_engine(
        config,
        weights,
        backend,
        max_batch=max(BUCKETS),
        tokens=1 + max(load.prompt_tokens + load.output_tokens for load in loads),
        max_step_tokens=MAX_STEP_TOKENS,
        buckets=buckets,
        overlap=overlap,
    )
    if engine.graphs is not None:
        engine.graphs.capture()
    for count in (1, 2, 3, 5, 16):
        engine.generate(random_prompts(config, count, loads[0].prompt_tokens, seed=count), WARM_UP)
    for load in loads:
        times = arrival_times(load)
        prompts = random_prompts(config, len(times), load.prompt_tokens, load.seed)
        sampling = replace(WARM, max_tokens=load.output_tokens)
        yield figures(serve(engine, prompts, times, sampling), backend, mode, load.rate)


def arrival_times(load: Load) -> list[float]:
    """Seconds from the start, rising, each below `load.seconds`; the first request comes at 0."""
    generator = np.random.default_rng(load.seed)
    times = [0.0]
    while (following := times[-1] + float(generator.exponential(1 / load.rate))) < load.seconds:
        times.append(following)
    return times


def serve(
    server: Server,
    prompts: Sequence[Sequence[int]],
    times: Sequence[float],
    sampling: SamplingParameters,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Served]:
    """Submit prompt i once `times[i]` seconds have passed, and step until all are served.

    A request that comes while a step runs is submitted after it; its wait counts, from `times[i]` on.

    Raises:
        RuntimeError: a request ended without all of its tokens.
    """
    coming = deque(zip(times, prompts, range(len(times)), strict=True))
    seen: list[list[float]] = [[] for _ in times]
    place: dict[str, int] = {}
    started = clock()
    while coming or server.has_work():
        now = clock() - started
        while coming and coming[0][0] <= now:
            _, prompt, index = coming.popleft()
            place[server.submit(prompt, replace(sampling, seed=index)).id] = index
        if not server.has_work():
            sleep(coming[0][0] - now)
            continue
        outputs = server.step()
        now = clock() - started
        for output in outputs:
            if output.token is not None:
                seen[place[output.request.id]].append(now)
    for index, tokens in enumerate(seen):
        if len(tokens) != sampling.max_tokens:
            raise RuntimeError(
                f"request {index}: expected {sampling.max_tokens} tokens, got {len(tokens)}; the figures would not count"
                " the same work"
            )
    return [Served(arrival, tuple(tokens)) for arrival, tokens in zip(times, seen, strict=True)]


def figures(served: Sequence[Served], backend: str, mode: str, rate: float) -> ArrivalFigures:
    """Percentiles of what was served; at least one request with two tokens."""
    first = [(one.tokens[0] - one.arrival) * 1e3 for one in served]
    gaps = [gap * 1e3 for one in served for gap in np.diff(one.tokens).tolist()]
    span = max(one.tokens[-1] for one in served) - min(one.arrival for one in served)
    return ArrivalFigures(
        backend,
        mode,
        rate,
        len(served),
        percentile(first, 0.5),
        percentile(first, 0.99),
        percentile(gaps, 0.5),
        percentile(gaps, 0.99),
        sum(len(one.tokens) for one in served) / span,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The least of the values that at least `share` of them do not exceed (nearest rank)."""
    ordered = sorted(values)
    # Rounded first: a share such as 0.07 of 100 is a little more than 7 in binary.
    return ordered[max(1, math.ceil(round(share * len(ordered), 9))) - 1]
