"""The fixed sentences of a round in the language of its report: reasons, demotions, warnings."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

import yaml

from reviewer.model import Language


class Wording:
    """Says things by key: `wording.say("lost_reps", lost=2)`. A missing key or parameter is a `KeyError`."""

    def __init__(self, language: Language) -> None:
        self.language = language
        self._phrases = _load(language)

    def say(self, key: str, **values: object) -> str:
        return self._phrases[key].format_map(values)


@lru_cache(maxsize=2)
def _load(language: Language) -> dict[str, str]:
    text = resources.files("templates").joinpath("round", f"{language}.yaml").read_text("utf-8")
    phrases: dict[str, str] = yaml.safe_load(text)
    return phrases
