from __future__ import annotations

import re
from importlib import resources

import pytest
import yaml

from reviewer.text import load_text

TEMPLATES = resources.files("templates").joinpath("report")
FIELD = re.compile(r"\{(\w+)\}")


def _phrases(language: str) -> dict[str, str]:
    phrases: dict[str, str] = yaml.safe_load(TEMPLATES.joinpath(f"text.{language}.yaml").read_text("utf-8"))
    return phrases


def test_both_languages_have_the_same_keys_in_the_same_order() -> None:
    assert list(_phrases("en")) == list(_phrases("zh"))


@pytest.mark.parametrize("key", _phrases("en"))
def test_both_languages_fill_in_the_same_facts(key: str) -> None:
    assert set(FIELD.findall(_phrases("en")[key])) == set(FIELD.findall(_phrases("zh")[key]))


def test_one_and_many_are_told_apart() -> None:
    text = load_text("report/text", "en")
    assert text("blocked", n=1) == "1 finding must be fixed before merging."
    assert text("blocked", n=2) == "2 findings must be fixed before merging."
    assert load_text("report/text", "zh")("blocked", n=2) == "合并前必须修复 2 个问题。"


def test_a_missing_key_or_fact_is_an_error() -> None:
    with pytest.raises(KeyError):
        load_text("report/text", "en")("no_such_phrase")
    with pytest.raises(KeyError):
        load_text("report/text", "en")("must_fix")


def test_every_phrase_is_used() -> None:
    sources = [path.read_text("utf-8") for path in TEMPLATES.iterdir() if path.name.endswith(".jinja")]
    code = resources.files("reviewer.report")
    sources += [path.read_text("utf-8") for path in code.iterdir() if path.name.endswith(".py")]
    everything = "\n".join(sources)
    prefixed = [key for key in _phrases("en") if not key.startswith("change_")]
    assert [key for key in prefixed if f'"{key}"' not in everything and f"'{key}'" not in everything] == []
