"""The same cases asked of the engine itself, in this process: what a server adds must change nothing."""

import time
from collections.abc import Sequence

from runtime.engine import Engine
from runtime.request import FinishReason, Request
from runtime.server.served import build
from runtime.smoke.plan import Planned
from runtime.smoke.visit import UNKNOWN, Visit, failed


def answer_all(groups: Sequence[Sequence[Planned]]) -> dict[str, list[Visit]]:
    """Every case's answers, by the case's name, each case with an engine of its own."""
    answers: dict[str, list[Visit]] = {}
    for planned in (planned for group in groups for planned in group):
        try:
            answers[planned.case.name] = _answers(planned)
        except Exception as error:  # noqa: BLE001 - one broken case must not hide the others' answers
            answers[planned.case.name] = [failed(f"{type(error).__name__}: {error}")] * len(
                planned.case.prompts
            )
    return answers


def _answers(planned: Planned) -> list[Visit]:
    served = build(planned.config)
    assert served.engine is not None
    try:
        return [one for wave in range(len(planned.waves)) for one in _wave(served.engine, planned, wave)]
    finally:
        served.close()


def _wave(engine: Engine, planned: Planned, wave: int) -> list[Visit]:
    started = time.monotonic()
    requests = [engine.submit(prompt, sampling) for prompt, sampling in planned.waves[wave]]
    while engine.has_work():
        engine.step()
    seconds = time.monotonic() - started
    return [Visit(_answer(request), seconds) for request in requests]


def _answer(request: Request) -> dict[str, object]:
    reason: FinishReason | None = request.finish_reason
    return {
        "ids": [token.id for token in request.tokens],
        "text": request.text,
        "logprobs": [token.logprob for token in request.tokens],
        "finish_reason": UNKNOWN if reason is None else reason.value,
        "error": request.error,
    }
