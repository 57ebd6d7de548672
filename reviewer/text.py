"""Fixed phrases by language: `templates/<name>.<language>.yaml`, with the same keys in each."""

from __future__ import annotations

from functools import cache
from importlib import resources

from reviewer.model import Language


class Text:
    """`text("blocked", n=2)` is the phrase with its places filled; of "one | many", `n` chooses.

    A missing key or value is a `KeyError`.
    """

    def __init__(self, phrases: dict[str, str]) -> None:
        self._phrases = phrases

    def __call__(self, key: str, **values: object) -> str:
        phrase = self._phrases[key]
        one, found, many = phrase.partition(" | ")
        if found:
            phrase = one if values["n"] == 1 else many
        return phrase.format_map(values)


@cache
def load_text(name: str, language: Language) -> Text:
    """The phrases of one file, such as `report/text`."""
    import yaml

    source = resources.files("templates").joinpath(f"{name}.{language}.yaml").read_text("utf-8")
    return Text(yaml.safe_load(source))
