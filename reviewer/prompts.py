"""Prompts, rendered from templates; whatever comes from the pull request is fenced off as data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING

from reviewer.engines.base import Message
from reviewer.model import Language
from reviewer.tools import fence

if TYPE_CHECKING:
    from jinja2 import Environment

_LANGUAGES = {"en": "English", "zh": "Simplified Chinese (简体中文)"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """`version` is a digest of the templates behind it, to tell whether a recording is still current."""

    messages: tuple[Message, ...]
    version: str


def render_prompt(step: str, language: Language, **values: object) -> Prompt:
    """The system prompt and the step's own, filled in. `step` names a template."""
    environment, sources = _environment()
    shared = {"language": _LANGUAGES[language], "lang": language}
    system = environment.get_template("system.j2").render(shared)
    user = environment.get_template(f"{step}.j2").render({**shared, **values})
    sha = hashlib.sha256((sources("system.j2") + sources(f"{step}.j2")).encode())
    return Prompt((Message("system", system), Message("user", user)), sha.hexdigest()[:12])


@lru_cache(maxsize=1)
def _environment() -> tuple[Environment, Callable[[str], str]]:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    @lru_cache(maxsize=32)
    def source(name: str) -> str:
        return resources.files("templates").joinpath("prompts", name).read_text("utf-8")

    environment = Environment(
        loader=FunctionLoader(source),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
    )
    environment.filters["fence"] = lambda text, label="text": fence(label, text)
    return environment, source
