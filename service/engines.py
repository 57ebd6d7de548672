"""Which engine answers, from command line, policy and environment. Credentials come from the environment alone."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from reviewer.engines.base import Engine
from reviewer.errors import EngineError
from reviewer.policy import ReviewPolicy

EngineName = Literal["auto", "none", "openai", "replay"]
DEFAULT_URL = "https://api.openai.com/v1"


def choose(name: EngineName) -> EngineName:
    """`auto` is `openai` where an endpoint or a key is configured, else `none`."""
    if name != "auto":
        return name
    return "openai" if os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL") else "none"


def name_models(given: Sequence[str], policy: ReviewPolicy) -> tuple[str, ...]:
    """The models by name: from the command line, the policy, or $WHITESMOKE_MODELS (comma-separated)."""
    from_environment = [name.strip() for name in os.environ.get("WHITESMOKE_MODELS", "").split(",")]
    models = tuple(given) or policy.models or tuple(name for name in from_environment if name)
    if not models:
        raise EngineError(
            "no model is named", "pass --model NAME, set review.models in the policy, or $WHITESMOKE_MODELS"
        )
    return models


@dataclass(frozen=True, slots=True)
class Opened:
    """An engine (None for the detectors alone) and the time that its report bears: a replay's is that of its
    recording, so that the same recording gives the same report."""

    engine: Engine | None
    now: datetime


@asynccontextmanager
async def open_engine(
    name: EngineName, policy: ReviewPolicy, models: Sequence[str], recording: Path | None
) -> AsyncIterator[Opened]:
    """The engine within the policy's limits. `recording` is read by `replay` and written by `openai`."""
    from reviewer.engines.budget import Budgeted
    from reviewer.engines.recording import Recorder, Replay
    from reviewer.redact import Redactor

    now = datetime.now().astimezone()
    if name == "none":
        yield Opened(None, now)
    elif name == "replay":
        if recording is None:
            raise EngineError("--engine replay needs a recording", "name it with --recording FILE")
        # A replay spends nothing, and must refuse what was refused when it was recorded, no more and no less.
        replay = Replay(recording)
        yield Opened(replay, datetime.fromisoformat(replay.recorded_at))
    else:
        from reviewer.engines.openai import OpenAIEngine, OpenAISettings

        settings = OpenAISettings(
            base_url=os.environ.get("OPENAI_BASE_URL") or DEFAULT_URL,
            api_key=os.environ.get("OPENAI_API_KEY", ""),
            models=name_models(models, policy),
            judge_model=policy.judge_model,
            request_timeout=policy.limits.request_seconds,
            prices=policy.prices,
        )
        async with OpenAIEngine(settings) as engine:
            budgeted = Budgeted(engine, policy.limits, concurrency=settings.concurrency)
            if recording is None:
                yield Opened(budgeted, now)
                return
            recorder = Recorder(budgeted, recording, redact=Redactor([settings.api_key]), now=lambda: now)
            try:
                yield Opened(recorder, now)
            finally:
                recorder.close()
