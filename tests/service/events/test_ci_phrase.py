from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reviewer.report.escape import block, guard
from service.events import says_phrase

PHRASE = "lgtm ready to ci"


@pytest.mark.parametrize(
    "body",
    [
        "lgtm ready to ci",
        "LGTM  Ready to CI ",
        "Nice work.\n\nlgtm ready to ci\n\nThanks",
        "Nice work.\r\nlgtm ready to ci\r\nThanks",
        "> old\n\nlgtm ready to ci",
    ],
)
def test_the_phrase_alone_on_a_line_counts(body: str) -> None:
    assert says_phrase(body, PHRASE)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "NOT lgtm ready to ci yet",
        "> lgtm ready to ci",
        "> x\nlgtm ready to ci",
        "lgtm ready to ci?",
        "lgtm ready to ci yet",
        "lgtm ready\nto ci",
        "lgtm, ready to ci",
        "`lgtm ready to ci`",
        "```\nlgtm ready to ci\n```",
        "    lgtm ready to ci",
        "<!--\nlgtm ready to ci\n-->",
        "x <!--\nlgtm ready to ci\n-->",
        "<details>\n\nlgtm ready to ci\n\n</details>",
        "~~lgtm ready to ci~~",
        "**lgtm ready to ci**",
        "- lgtm ready to ci",
        "1. lgtm ready to ci",
        "# lgtm ready to ci",
        "[lgtm ready to ci](https://x.invalid)",
        "![lgtm ready to ci](https://x.invalid)",
        "l\u200bgtm ready to ci",
        "lgtm ready to сi",  # a Cyrillic letter
        "lgtm-ready-to-ci",
    ],
)
def test_anything_else_does_not_count(body: str) -> None:
    assert not says_phrase(body, PHRASE)


def test_the_phrase_is_the_policys() -> None:
    assert says_phrase("ship it", "Ship  it")
    assert not says_phrase("lgtm ready to ci", "ship it")


@given(st.text(max_size=20), st.text(max_size=20))
def test_words_on_the_same_line_spoil_it(before: str, after: str) -> None:
    line = f"{before}{PHRASE}{after}"
    if any(word.isalnum() for word in (before + after)) and not set(before + after) & set("\n\r<>"):
        assert not says_phrase(line, PHRASE)


@given(st.text(max_size=60))
def test_a_guarded_text_never_says_it(words: str) -> None:
    assert not says_phrase(guard(block(f"{words}\n{PHRASE}\n{words}"), [PHRASE]), PHRASE)
