"""Asking a model at one step of the round: prompt, answer, retry, account."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Generic, TypeVar

from reviewer.agent import converse
from reviewer.answers import AnswerT, Unparsable, parse
from reviewer.checkout.base import Checkout
from reviewer.engines.base import CompletionFailed, Engine, Key, Message, Request, Usage
from reviewer.errors import ReviewError
from reviewer.model import ToolUse
from reviewer.policy import ReviewPolicy
from reviewer.prompts import render_prompt
from reviewer.tools import Toolbox

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Asked(Generic[AnswerT]):
    """One question's result: the answer, or why there is none. `attempts` counts completions asked for,
    retries included and the turns of a conversation with tools not."""

    answer: AnswerT | None
    attempts: int
    lost: str = ""


@dataclass(slots=True)
class Panel:
    """The reviewers of one round: an engine, the policy they work under, and what they have used."""

    engine: Engine
    policy: ReviewPolicy
    usage: Usage = field(default_factory=Usage)
    _toolboxes: list[tuple[Key, Toolbox]] = field(default_factory=list)

    async def ask(
        self,
        step: str,
        rep: int,
        subject: str,
        answer: type[AnswerT],
        *,
        checkout: Checkout | None = None,
        **values: object,
    ) -> Asked[AnswerT]:
        """Asks until an answer parses, at most `policy.attempts` times. With a `checkout` the model may read
        it through tools. `values` fill the step's template.

        A lost answer is returned, not raised; only `EngineError` passes through. An engine that gives no
        completion has already tried again as often as makes sense.
        """
        prompt = render_prompt(step, self.policy.language, **values)
        request = Request(
            key=Key(step, rep, subject),
            messages=prompt.messages,
            schema=answer.model_json_schema(),
            max_tokens=self.policy.limits.request_tokens,
            prompt_version=prompt.version,
        )
        lost = ""
        for attempt in range(self.policy.attempts):
            trial = _retry(request, attempt, lost)
            toolbox = Toolbox(checkout, self.policy.tools) if checkout is not None else None
            if toolbox is not None:
                self._toolboxes.append((trial.key, toolbox))
            try:
                told = await converse(self.engine, trial, toolbox, self.usage.add)
                return Asked(parse(told, answer), attempt + 1)
            except CompletionFailed as failed:
                return Asked(None, attempt + 1, str(failed))
            except Unparsable as error:
                lost = str(error)
        return Asked(None, self.policy.attempts, lost)

    def tool_calls(self) -> tuple[ToolUse, ...]:
        """Every call of a tool so far, in an order that does not depend on who was faster."""
        in_order = sorted(self._toolboxes, key=lambda pair: astuple(pair[0]))
        return tuple(
            ToolUse(
                step=key.step,
                rep=key.rep,
                name=one.name,
                arguments=one.arguments,
                ok=one.ok,
                bytes=one.bytes,
            )
            for key, toolbox in in_order
            for one in toolbox.records
        )


async def gather(questions: Iterable[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    """All results in order. The first `ReviewError` cancels the others and is raised as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(question) for question in questions]
    except* ReviewError as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _retry(request: Request, attempt: int, lost: str) -> Request:
    if attempt == 0:
        return request
    hint = Message(
        "user", f"Your last answer could not be used: {lost}. Answer again, with the JSON object alone."
    )
    return replace(request, key=replace(request.key, attempt=attempt), messages=(*request.messages, hint))
