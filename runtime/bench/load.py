"""`python -m runtime.bench.load`: loads a server over gRPC, from a process of its own so that it takes none of the server's time.

Standard input: JSON of a `Plan`. Standard output: for each of its rounds a line of JSON, a list of what each request saw:
`[arrival, [[seconds, tokens], ...]]`, seconds from the round's start. This module imports neither torch nor the engine.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

import grpc
import numpy as np

from runtime.proto import engine_pb2 as pb
from runtime.proto.engine_pb2_grpc import EngineStub

Seen = tuple[float, list[tuple[float, int]]]
"""A request's arrival, and when how many tokens came."""


@dataclass(frozen=True)
class Round:
    """Some seconds of load.

    Attributes:
        clients: of a closed loop, each of which asks again once it is answered, until `seconds` have passed; at least once.
        times: of an open loop: when requests come, whatever becomes of those before them.
    """

    clients: int = 0
    seconds: float = 0.0
    times: tuple[float, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What is asked.

    Attributes:
        vocab_size: of the model; prompts are random ids.
        prompt_tokens, output_tokens: of each request.
        sampling: fields of the request's `Sampling` beside seed and length.
    """

    address: str
    vocab_size: int
    prompt_tokens: int
    output_tokens: int
    sampling: dict[str, Any]
    rounds: tuple[Round, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        values = json.loads(text)
        values["rounds"] = tuple(Round(**{**one, "times": tuple(one["times"])}) for one in values["rounds"])
        return cls(**values)

    def prompts(self) -> Iterator[tuple[int, list[int]]]:
        """Endlessly: a number, and the prompt of that number; the same for whoever asks."""
        for number in count():
            generator = np.random.default_rng(number)
            ids: list[int] = generator.integers(self.vocab_size, size=self.prompt_tokens).tolist()
            yield number, ids


class ShortAnswerError(RuntimeError):
    """A request ended without all of its tokens: the figures would not count the same work."""


async def load(plan: Plan, tell: Callable[[list[Seen]], None]) -> None:
    """Each round in turn; `tell` gets what its requests saw, in the order of their arrival.

    Raises:
        ShortAnswerError: a request ended early.
        grpc.RpcError: it was refused.
    """
    async with grpc.aio.insecure_channel(plan.address) as channel:
        stub: Any = EngineStub(channel)
        for one in plan.rounds:
            tell(await _round(stub, plan, one))


async def _round(stub: Any, plan: Plan, one: Round) -> list[Seen]:
    seen: list[Seen] = []
    prompts = plan.prompts()
    started = time.perf_counter()

    def now() -> float:
        return time.perf_counter() - started

    async def client() -> None:
        while True:
            arrival = now()
            seen.append(await _ask(stub, plan, next(prompts), arrival, now))
            if now() >= one.seconds:
                return

    async def visitor(arrival: float, prompt: tuple[int, list[int]]) -> None:
        await asyncio.sleep(arrival - now())
        seen.append(await _ask(stub, plan, prompt, arrival, now))

    clients = [client() for _ in range(one.clients)]
    visitors = [visitor(arrival, next(prompts)) for arrival in one.times]
    await asyncio.gather(*clients, *visitors)
    return sorted(seen)


async def _ask(
    stub: Any, plan: Plan, prompt: tuple[int, list[int]], arrival: float, now: Callable[[], float]
) -> Seen:
    number, ids = prompt
    sampling = pb.Sampling(**plan.sampling, seed=number, max_tokens=plan.output_tokens)
    call = stub.Generate(pb.GenerateRequest(ids=pb.TokenIds(ids=ids), sampling=sampling))
    tokens = [(now(), sum(len(part.tokens) for part in message.parts)) async for message in call]
    got = sum(many for _, many in tokens)
    if got != plan.output_tokens:
        raise ShortAnswerError(f"request {number}: expected {plan.output_tokens} tokens, got {got}")
    return arrival, tokens


def main(lines: Sequence[str]) -> int:
    """Load as a plan's JSON says; returns the exit status."""
    plan = Plan.from_json("".join(lines))
    try:
        asyncio.run(load(plan, lambda seen: print(json.dumps(seen), flush=True)))
    except grpc.RpcError as error:
        print(f"the server refused: {error.code().name}: {error.details()}", file=sys.stderr)
        return 1
    except ShortAnswerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.stdin.readlines()))
