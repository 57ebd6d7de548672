"""The sentences that a round writes: the same keys and the same parameters in both languages, and none unused."""

from __future__ import annotations

import re
import string
from importlib import resources
from pathlib import Path

import pytest
import yaml

from reviewer.text import load_text
from tests.kit.rounds import answers, finding, review

ROOT = Path(__file__).parents[3]


def phrases(language: str) -> dict[str, str]:
    text = resources.files("templates").joinpath("round", f"text.{language}.yaml").read_text("utf-8")
    loaded: dict[str, str] = yaml.safe_load(text)
    return loaded


def parameters(phrase: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(phrase) if name}


def test_both_languages_have_the_same_keys_with_the_same_parameters() -> None:
    english, chinese = phrases("en"), phrases("zh")
    assert english.keys() == chinese.keys()
    assert {key: parameters(english[key]) for key in english} == {
        key: parameters(chinese[key]) for key in chinese
    }


def test_every_phrase_is_said_somewhere() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "reviewer").glob("*.py"))
    quoted = set(re.findall(r'"([a-z_]+)"', code))
    assert phrases("en").keys() <= quoted


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_language_is_honoured_in_prompts_and_in_what_the_round_says(language: str) -> None:
    """REVIEW.md 22."""
    engine = answers(lambda rep: {"findings": [finding()]} if rep == 0 else {"findings": []})
    report = review(engine, language=language).report
    wanted = {"en": "in English", "zh": "in Simplified Chinese"}[language]
    assert all(wanted in request.messages[0].content for request in engine.requests)
    expected = load_text("round/text", language)("too_little_support", support=1, of=7, quorum=3)  # type: ignore[arg-type]
    assert report.non_blocking[0].demoted == expected
