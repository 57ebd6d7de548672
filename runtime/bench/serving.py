"""What clients of a server see at rising load, and what the server adds to the engine alone, both in one run."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runtime.bench import arrivals
from runtime.bench.engines import PAGE_SIZE, WARM
from runtime.bench.load import Plan, Round, Seen
from runtime.request import SamplingParameters
from runtime.server.cli import read
from runtime.server.config import ServerConfig
from runtime.server.process import ServerProcess, ServerProcessError
from runtime.server.served import build
from runtime.server.shapes import shape

_ROOT = Path(__file__).parents[2]
SAMPLING = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "ignore_stop_ids": True}
"""That of `WARM`."""
SPARE_SECONDS = 120.0
"""For everything of the client's process beside the rounds themselves."""


class ServingError(RuntimeError):
    """There is nothing to measure: the server or its client did not go through; says why."""


@dataclass(frozen=True)
class Wanted:
    """What to measure.

    Attributes:
        random: a shape of `runtime.server.shapes`.
        ranks: processes that share the model.
        clients: of the closed loops, one loop for each number.
        rates: requests a second of the open loops, one loop for each.
        seconds: how long requests are made in each loop.
        prompt_tokens, output_tokens: of each request.
    """

    random: str
    ranks: int
    clients: tuple[int, ...]
    rates: tuple[float, ...]
    seconds: float
    prompt_tokens: int
    output_tokens: int

    def arguments(self) -> tuple[str, ...]:
        """Of the server. Its cache has room for twice what runs at a time."""
        batch = max(self.clients)
        pages = 1 + 2 * batch * -(-(self.prompt_tokens + self.output_tokens) // PAGE_SIZE)
        return (
            *("--random", self.random, "--tensor-parallel", str(self.ranks), "--max-batch", str(batch)),
            *("--page-size", str(PAGE_SIZE), "--pages", str(pages), "--no-prefix-reuse"),
        )

    def rounds(self) -> tuple[tuple[str, Round], ...]:
        """What is measured, each with its name; before them unnamed ones that warm up."""
        warm = [("", Round(clients=clients)) for clients in self.clients]
        closed = [(f"{clients} clients", Round(clients, self.seconds)) for clients in self.clients]
        opened = [
            (
                f"{rate:g} requests/s",
                Round(
                    times=tuple(
                        arrivals.arrival_times(
                            arrivals.Load(rate, self.seconds, self.prompt_tokens, self.output_tokens)
                        )
                    )
                ),
            )
            for rate in self.rates
        ]
        return (*warm, *closed, *opened)


@dataclass(frozen=True)
class ServingFigures:
    """One load; milliseconds.

    Attributes:
        load: how many clients ask again and again, or how many requests come in a second.
        ttft_p50, ttft_p99: from asking to the first token, at the client.
        gap_p50, gap_p99: between two tokens of a request. Tokens that come in one message count as evenly spread since the one
            before.
        engine_ttft_p50, engine_gap_p50, engine_tokens_per_s: of the same requests to the engine, in this process.
    """

    shape: str
    ranks: int
    load: str
    requests: int
    tokens_per_s: float
    ttft_p50: float
    ttft_p99: float
    gap_p50: float
    gap_p99: float
    engine_tokens_per_s: float
    engine_ttft_p50: float
    engine_gap_p50: float

    @property
    def added_ttft(self) -> float:
        """Milliseconds at p50 that the server adds to the first token."""
        return self.ttft_p50 - self.engine_ttft_p50

    @property
    def added_gap(self) -> float:
        """Milliseconds at p50 that the server adds between tokens."""
        return self.gap_p50 - self.engine_gap_p50


def measure(wanted: Wanted) -> Iterator[ServingFigures]:
    """Serve, then ask the engine alone.

    Raises:
        ServingError: the server did not start, or a request was not answered whole.
        Exception: what `runtime.server.served.build` raises.
    """
    if wanted.output_tokens < 2:
        raise ServingError("output: expected at least 2 tokens, with a time between them, got 1")
    config = read(wanted.arguments())
    if problems := config.problems():
        raise ServingError(problems[0])
    config = config.normalised()[0]
    served = _through_server(wanted, config)
    alone = _through_engine(wanted, config)
    for (name, _), over, own in zip(wanted.rounds(), served, alone, strict=True):
        if name:
            seen, plain = (arrivals.figures(each, "", name, 0.0) for each in (over, own))
            yield ServingFigures(
                wanted.random,
                wanted.ranks,
                name,
                seen.requests,
                seen.tokens_per_s,
                seen.ttft_p50,
                seen.ttft_p99,
                seen.gap_p50,
                seen.gap_p99,
                plain.tokens_per_s,
                plain.ttft_p50,
                plain.gap_p50,
            )


def spread(seen: Seen) -> arrivals.Served:
    """A time for each token: those of one message evenly since the message before; of the first one, all when it came."""
    arrival, messages = seen
    times: list[float] = []
    for at, many in messages:  # a message may hold no token: the end alone
        before = times[-1] if times else at
        times += [before + (at - before) * (place + 1) / many for place in range(many)]
    return arrivals.Served(arrival, tuple(times))


def closed_loop(
    server: arrivals.Server,
    prompts: Iterator[tuple[int, list[int]]],
    one: Round,
    sampling: SamplingParameters,
    clock: Callable[[], float] = time.perf_counter,
) -> list[arrivals.Served]:
    """What `runtime.bench.load` does to a server, done to an engine.

    Raises:
        ServingError: a request ended early.
    """
    arrived: dict[str, float] = {}
    seen: dict[str, list[float]] = {}
    started = clock()

    def ask() -> None:
        number, ids = next(prompts)
        arrival = clock() - started
        request = server.submit(ids, replace(sampling, seed=number))
        arrived[request.id], seen[request.id] = arrival, []

    for _ in range(one.clients):
        ask()
    while server.has_work():
        outputs = server.step()
        now = clock() - started
        for output in outputs:
            seen[output.request.id].append(now)
            if output.request.finish_reason is not None and now < one.seconds:
                ask()
    short = next((tokens for tokens in seen.values() if len(tokens) != sampling.max_tokens), None)
    if short is not None:
        raise ServingError(f"engine: expected {sampling.max_tokens} tokens of each request, got {len(short)}")
    return [arrivals.Served(arrival, tuple(seen[name])) for name, arrival in arrived.items()]


def _plan(wanted: Wanted, address: str, vocab_size: int) -> Plan:
    return Plan(
        address,
        vocab_size,
        wanted.prompt_tokens,
        wanted.output_tokens,
        SAMPLING,
        tuple(one for _, one in wanted.rounds()),
    )


def _through_server(wanted: Wanted, config: ServerConfig) -> list[list[arrivals.Served]]:
    vocab_size = shape(wanted.random, config.device).config.vocab_size
    try:
        with ServerProcess(wanted.arguments()) as process:
            plan = _plan(wanted, process.wait_ready(), vocab_size)
            lines = _client(plan, wanted)
            process.end()
    except ServerProcessError as error:
        raise ServingError(str(error)) from None
    return [[spread(one) for one in lines_of] for lines_of in lines]


def _client(plan: Plan, wanted: Wanted) -> list[list[Seen]]:
    limit = SPARE_SECONDS + 4 * wanted.seconds * (len(wanted.clients) + len(wanted.rates))
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "runtime.bench.load"],
            input=plan.to_json(),
            capture_output=True,
            text=True,
            timeout=limit,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ServingError(f"the client was not done after {limit:g} s") from None
    if done.returncode:
        raise ServingError(f"client: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _through_engine(wanted: Wanted, config: ServerConfig) -> list[list[arrivals.Served]]:
    served = build(config)
    assert served.engine is not None
    plan = _plan(wanted, "", served.config.vocab_size)
    sampling = replace(WARM, max_tokens=wanted.output_tokens)
    try:
        return [_round(served.engine, plan, one, sampling) for one in plan.rounds]
    finally:
        served.close()


def _round(
    engine: arrivals.Server, plan: Plan, one: Round, sampling: SamplingParameters
) -> list[arrivals.Served]:
    prompts = plan.prompts()
    if one.clients:
        return closed_loop(engine, prompts, one, sampling)
    asked: Sequence[list[int]] = [next(prompts)[1] for _ in one.times]
    return arrivals.serve(engine, asked, one.times, sampling)
