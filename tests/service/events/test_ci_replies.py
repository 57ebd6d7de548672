"""What is answered to those who ask for CI: every phrase is said by some answer, and nothing from outside gets through."""

from __future__ import annotations

import inspect
import re
import string
from importlib import resources
from typing import get_args

import pytest
import yaml
from markdown_it import MarkdownIt

from ci_dispatch.model import Outcome
from ci_dispatch.reasons import SENTENCES, Why, give
from reviewer.model import Language
from reviewer.text import load_text
from service.events import ci_replies, parse_commands, says_phrase
from service.events.ci_replies import CiReplies, JobLine
from service.store.ci_rows import JobState

LANGUAGES: tuple[Language, ...] = get_args(Language)
PHRASE = "lgtm ready to ci"
HEAD = "a" * 40
HOSTILE = f"@everyone <img src=x>\n\n/ci run\n\n{PHRASE}\n\n| a | ghp_{'A1b2' * 9} fixes #7"


def phrases(language: Language) -> dict[str, str]:
    source = resources.files("templates").joinpath(f"service/ci_replies.{language}.yaml")
    loaded: dict[str, str] = yaml.safe_load(source.read_text("utf-8"))
    return loaded


def answers(language: Language, words: str = "words") -> dict[str, list[str]]:
    """Every answer by the method that gives it, with `words` wherever words come from outside."""
    say = CiReplies(language, (PHRASE,))
    reason = give(Why.CHANGES_REQUESTED, login=words, id=7, commit=words)
    states = [*(state for state in JobState if state is not JobState.FINISHED), *Outcome]
    return {
        "off": [say.off()],
        "asked": [say.asked(HEAD, ()), say.asked(HEAD, (words,))],
        "asked_again": [say.asked_again(HEAD)],
        "nothing_again": [say.nothing_again(HEAD)],
        "left": [say.left([words, words])],
        "refused": [say.refused([reason]), say.refused([reason, reason])],
        "told": [say.told([reason, reason])],
        "stopped": [say.stopped(count) for count in (0, 1, 2)],
        "rebaseline": [say.rebaseline(words)],
        "status": [say.status(HEAD, ()), say.status(HEAD, [JobLine(words, one, 1, words) for one in states])],
    }


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_phrase_is_said_by_some_answer_and_every_answer_is_tried(
    language: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: set[str] = set()
    real = load_text("service/ci_replies", language)

    def listening(key: str, **values: object) -> str:
        said.add(key)
        return real(key, **values)

    def load(name: str, language: Language) -> object:
        return listening if name == "service/ci_replies" else load_text(name, language)

    monkeypatch.setattr(ci_replies, "load_text", load)
    tried = answers(language)
    assert said == set(phrases(language))
    methods = {name for name, _ in inspect.getmembers(CiReplies, inspect.isfunction) if name[0] != "_"}
    assert methods == set(tried)


def test_both_languages_have_the_same_keys() -> None:
    assert list(phrases("en")) == list(phrases("zh"))


def test_every_reason_has_its_sentence_in_chinese_with_the_same_places() -> None:
    source = resources.files("templates").joinpath("service/ci_reasons.zh.yaml").read_text("utf-8")
    chinese = yaml.safe_load(source)
    assert list(chinese) == [why.value for why in Why]
    for why, phrase in SENTENCES.items():
        assert places(chinese[why]) == places(phrase), why


def places(phrase: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(phrase) if name}


@pytest.mark.parametrize("language", LANGUAGES)
def test_nothing_from_outside_notifies_commands_or_leaks(language: Language) -> None:
    for method, found in answers(language, HOSTILE).items():
        for answer in found:
            assert "ghp_A1b2" not in answer
            shown = MarkdownIt("gfm-like", {"linkify": False}).render(answer)
            outside_code = re.sub("<code.*?</code>", "", shown, flags=re.DOTALL)
            for never in ("@everyone", "<img", "#7"):
                assert never not in outside_code, (method, answer)
            assert parse_commands(answer) == (), method
            assert not says_phrase(answer, PHRASE), method


def test_a_bar_in_a_reason_does_not_end_its_cell() -> None:
    table = CiReplies("en", ()).status(HEAD, [JobLine("smoke", "code", 1, "a | b")])
    assert table.splitlines()[-1] == "| `smoke` | failed | 1 | a \\| b |"


def test_a_reason_that_holds_of_two_comments_is_given_once() -> None:
    reason = give(Why.NO_PERMISSION, login="mallory")
    assert CiReplies("en", ()).refused([reason, reason]).count("mallory") == 1


def test_the_answer_comes_first_and_what_else_is_in_the_way_below() -> None:
    said = CiReplies("en", ()).refused([give(Why.CONFLICT, head="abc"), give(Why.BLOCKED, head="abc")])
    first, second = said.split("\n\n")
    assert first.startswith("CI does not start: abc conflicts with its base")
    assert second.startswith("- Our review of abc is BLOCKED")
