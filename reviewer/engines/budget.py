"""Bounds on what a round may spend on models, around whichever engine answers."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace

from reviewer.engines.base import Completion, CompletionFailed, Engine, Request, Usage
from reviewer.policy import ModelLimits

_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)


def time_left() -> float:
    """Seconds until the running request is cut off; infinite outside a budget. An engine that would have to
    wait longer gives up at once."""
    return _deadline.get() - asyncio.get_running_loop().time()


class Budgeted:
    """Passes requests on to `engine` until a limit of the round is reached, and refuses all further ones.

    At most `concurrency` requests are under way, the others wait here: a round asks everything at once, and
    what waits here can still be refused. So the tokens and the cost of a round exceed their limits by what
    `concurrency` requests spend at most. The round's seconds count from the first request, by `clock`, and cut
    off what is under way.
    """

    def __init__(
        self,
        engine: Engine,
        limits: ModelLimits,
        *,
        concurrency: int = 8,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._slots = asyncio.Semaphore(concurrency)
        self._clock = clock
        self._started: float | None = None
        self._usage = Usage()
        self._refused: Counter[str] = Counter()
        self._unpriced: set[str] = set()

    async def complete(self, request: Request) -> Completion:
        if self._started is None:
            self._started = self._clock()
        async with self._slots:
            self._refuse_if_spent()
            left = self._limits.round_seconds - self._elapsed()
            seconds = min(left, self._limits.request_seconds)
            token = _deadline.set(asyncio.get_running_loop().time() + seconds)
            try:
                async with asyncio.timeout(seconds):
                    completion = await self._engine.complete(
                        replace(request, max_tokens=min(request.max_tokens, self._limits.request_tokens))
                    )
            except TimeoutError as error:
                if left <= self._limits.request_seconds:
                    raise self._refusal("round_seconds") from error
                raise CompletionFailed(
                    "timeout", f"no answer within request_seconds = {self._limits.request_seconds:g}"
                ) from error
            finally:
                _deadline.reset(token)
            self._usage.add(completion)
            if completion.tokens_out and not completion.cost_usd:
                self._unpriced.add(completion.model)
            return completion

    def warnings(self) -> tuple[str, ...]:
        own = [
            f"{self._spent(limit)}: {count} request{'s' * (count != 1)} {'was' if count == 1 else 'were'} refused"
            for limit, count in self._refused.items()
        ]
        if self._limits.round_cost_usd is not None and self._unpriced:
            models = ", ".join(sorted(self._unpriced))
            own.append(f"round_cost_usd does not count what has no price: {models}")
        return (*self._engine.warnings(), *own)

    def _refuse_if_spent(self) -> None:
        limits, usage = self._limits, self._usage
        if usage.tokens_in + usage.tokens_out >= limits.round_tokens:
            raise self._refusal("round_tokens")
        if limits.round_cost_usd is not None and usage.cost_usd >= limits.round_cost_usd:
            raise self._refusal("round_cost_usd")
        if self._elapsed() >= limits.round_seconds:
            raise self._refusal("round_seconds")

    def _refusal(self, limit: str) -> CompletionFailed:
        self._refused[limit] += 1
        return CompletionFailed("budget", self._spent(limit))

    def _spent(self, limit: str) -> str:
        limits, usage = self._limits, self._usage
        match limit:
            case "round_tokens":
                amount = f"{usage.tokens_in + usage.tokens_out:,} of {limits.round_tokens:,} tokens"
            case "round_cost_usd":
                amount = f"{usage.cost_usd:.4f} of {limits.round_cost_usd:.4f} USD"
            case _:
                amount = f"all {limits.round_seconds:g} seconds"
        return f"the round's budget {limit} is spent ({amount})"

    def _elapsed(self) -> float:
        return 0.0 if self._started is None else self._clock() - self._started
