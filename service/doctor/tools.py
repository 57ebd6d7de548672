"""What reviews are made with: git, the analysers, and the model."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

from reviewer.errors import ConfigError, EngineError
from reviewer.policy import ReviewPolicy
from service.doctor.findings import Seen
from service.engines import DEFAULT_URL, choose, name_models
from service.settings import ServerSettings

_MODULES = ("ruff", "bandit")
_SECONDS = 8.0
_MODEL_SECONDS = 55.0
# A model that thinks first spends them there.
_MOST_TOKENS = 2000


def check_git() -> Iterator[Seen]:
    from reviewer.checkout.git import executable

    yield "ok", f"{executable()} is new enough", ""


def check_analysers() -> Iterator[Seen]:
    """Run as reviews run them."""
    for name in _MODULES:
        done = subprocess.run(
            [sys.executable, "-P", "-m", name, "--version"],
            stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_SECONDS,
        )  # fmt: skip
        if done.returncode:
            yield "problem", f"{name} does not run", "install whitesmoke again"
        else:
            version = done.stdout.decode(errors="replace").partition("\n")[0].split()[-1]
            yield "ok", f"{name} {version}", ""
    try:
        import ast_grep_py  # noqa: F401
    except ImportError as error:
        yield "problem", f"ast-grep cannot be loaded: {error}", "install whitesmoke again"
    else:
        yield "ok", "ast-grep", ""


def check_engine(settings: ServerSettings) -> Iterator[Seen]:
    """Whether the endpoint answers and takes the key; no model is asked."""
    chosen = choose(settings.engine)
    if chosen == "none":
        yield (
            "warning",
            "no model is configured: only detectors review",
            "set OPENAI_API_KEY, or OPENAI_BASE_URL for another endpoint",
        )
    elif chosen == "replay":
        if settings.recording is None or not os.access(settings.recording, os.R_OK):
            named = settings.recording or "that should answer"
            raise ConfigError(f"the recording {named} cannot be read", "name one in WHITESMOKE_RECORDING")
        yield "ok", f"answers are read from {settings.recording}", ""
    else:
        yield _ask_endpoint()
        try:
            yield "ok", f"models: {', '.join(name_models((), ReviewPolicy()))}", ""
        except EngineError:
            yield "warning", "policies must name the model themselves", "set WHITESMOKE_MODELS for all others"


def _ask_endpoint() -> Seen:
    import httpx2

    url, key = _endpoint()
    try:
        answer = httpx2.get(
            f"{url.rstrip('/')}/models",
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=_SECONDS,
        )
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        return "problem", f"{url} does not answer: {error or type(error).__name__}", "correct OPENAI_BASE_URL"
    if answer.status_code in (401, 403):
        return "problem", f"{url} refuses the key ({answer.status_code})", "correct OPENAI_API_KEY"
    if answer.status_code >= 500:
        return "problem", f"{url} answers {answer.status_code}", "see what is wrong with the endpoint"
    return "ok", f"{url} answers", ""


def check_models(settings: ServerSettings) -> Iterator[Seen]:
    """Asks each model for one word."""
    if choose(settings.engine) != "openai":
        return
    for model in name_models((), ReviewPolicy()):
        yield asyncio.run(_ask(model))


async def _ask(model: str) -> Seen:
    from reviewer.engines.base import CompletionFailed, Key, Message, Request
    from reviewer.engines.openai import OpenAIEngine, OpenAISettings

    url, key = _endpoint()
    endpoint = OpenAISettings(
        base_url=url, api_key=key, models=(model,), request_timeout=_MODEL_SECONDS, retries=0
    )
    request = Request(
        key=Key(step="discover", rep=0, subject="doctor"),
        messages=(Message("user", "Answer with the one word: ready"),),
        max_tokens=_MOST_TOKENS,
    )
    async with OpenAIEngine(endpoint) as engine:
        try:
            answer = await engine.complete(request)
        except CompletionFailed as error:
            return "problem", f"{model} gives no answer: {error}", "check the model's name and its endpoint"
    return "ok", f"{model} answers within {answer.seconds:.1f} s", ""


def _endpoint() -> tuple[str, str]:
    return os.environ.get("OPENAI_BASE_URL") or DEFAULT_URL, os.environ.get("OPENAI_API_KEY", "")
