from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reviewer.report.escape import (
    FORBIDDEN_PHRASES,
    block,
    code_span,
    fence,
    guard,
    inline,
    inline_html,
    plain,
    visible,
)

HARMLESS = {
    *("paragraph_open", "paragraph_close", "inline", "text", "softbreak", "hardbreak"),
    *("bullet_list_open", "bullet_list_close", "ordered_list_open", "ordered_list_close"),
    *("list_item_open", "list_item_close", "code_inline", "fence", "em_open", "em_close"),
    *("strong_open", "strong_close", "s_open", "s_close"),
}
NASTY = [
    *(
        "@octocat",
        "@org/team",
        "#12",
        "o/r#3",
        "GH-7",
        "fixes ",
        "closes: ",
        "resolves https://github.com/o/r/issues/3",
    ),
    *(
        "<img src=x>",
        "<!-- whitesmoke:round {} -->",
        "</details>",
        "<details>",
        "-->",
        "<b",
        "<a@b.c>",
        "<https://x.y>",
    ),
    *("![a](http://x/y.png)", "![a][b]", "[b]: http://x/y.png", "[t](u)", "[", "]", "](", "![", "(", ")"),
    *("/review", "/ci now", "lgtm ready to ci", "LGTM\u200b  Ready\u202eto ci", "lgtm", " ready", " to ci"),
    *(
        "`",
        "``",
        "```",
        "````",
        "~~~",
        "~~~~",
        "```py",
        "```suggestion",
        "```mermaid\n",
        "\n```\n",
        "\n~~~\n",
    ),
    *(
        "\\",
        "\\\\",
        "&lt;",
        "&#64;u",
        "&#x60;",
        "&amp;lt;",
        "&#8203;",
        "&",
        "*",
        "**",
        "_",
        "__",
        "~",
        "|",
        "\n|-|-|\n",
    ),
    *(
        "\n",
        "\n\n",
        "\r",
        "\r\n",
        "\t",
        " ",
        "    ",
        "\n    ",
        "\n- ",
        "\n1. ",
        "\n* ",
        "\n> ",
        "\n# ",
        "\n---\n",
        "\n===\n",
    ),
    *(
        "\u200b",
        "\u2060",
        "\u202e",
        "\u2066",
        "\ufeff",
        "\u2028",
        "\u0085",
        "\x0b",
        "\x0c",
        "\x00",
        "\x1b[31m",
        "\ud800",
    ),
    *(
        "www.x.y",
        "https://x.y/z_(a)",
        "http://",
        "a",
        "b1",
        "é",
        "中",
        "。",
        "+",
        "=",
        "-",
        ".",
        ":",
        "!",
        "$x$",
    ),
]
text = st.lists(st.one_of(st.sampled_from(NASTY), st.text(max_size=4)), max_size=25).map("".join)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("ask @octocat and @org/team-1", "ask `@octocat` and `@org/team-1`"),
        ("mail me@example.com", "mail me@example.com"),
        ("(@octocat)", "(`@octocat`)"),
        ("中@octocat", "中`@octocat`"),
        ("@\u200boctocat", "`@octocat`"),
        ("\\@octocat", "`@octocat`"),
        ("&#64;octocat", "`@octocat`"),
        ("`@octocat`", "`@octocat`"),
        ("fixes #12", "fixes `#12`"),
        ("closes owner/repo#3", "closes `owner/repo#3`"),
        ("resolves https://github.com/o/r/issues/3.", "resolves `https://github.com/o/r/issues/3`."),
        ("see GH-9", "see `GH-9`"),
        ("#1#2", "`#1` `#2`"),
        ("`a`@b", "`a` `@b`"),
        ("see www.x.org", "see `www.x.org`"),
        ("![beacon](https://x.org/a.png)", "beacon (`https://x.org/a.png`)"),
        ("[text](https://x.org 'title')", "text (`https://x.org`)"),
        (
            "![beacon][1]\n\n[1]: https://x.org/a.png",
            "!\\[beacon\\]\\[1\\]\n\n\\[1\\]: `https://x.org/a.png`",
        ),
        ("<img src=x> a < b", "&lt;img src=x> a &lt; b"),
        ("&lt;b&gt; AT&T", "&lt;b> AT&amp;T"),
        ("/review please", "`/review` please"),
        ("- /ci", "- `/ci`"),
        ("# Big", "Big"),
        ("> quote", "&gt; quote"),
        ("a\n---", "a\n\\---"),
        ("| a | b |\n|---|---|", "| a | b |\n\\|---|---|"),
        ("stray ` backtick", "stray &#96; backtick"),
        ("keep *this* and **that**", "keep *this* and **that**"),
        ("a\u202eb", "a⟨U+202E⟩b"),
        ("half a \ud800 pair", "half a \ufffd pair"),
    ],
)
def test_text_from_outside_becomes(said: str, shown: str) -> None:
    assert block(said) == shown


def test_code_in_a_fence_stays_readable() -> None:
    code = "```python\n@cache\ndef f(x: list[int]) -> int:  # see #12\n    return x[0] < 1 & ~2\n```"
    assert block(code) == code


def test_code_in_a_span_stays_readable() -> None:
    said = "call `a[0](b) < c` or ``x`y``"
    assert block(said) == said


def test_what_follows_a_fence_is_no_code_block() -> None:
    assert block("- a\n  ```\n  x\n  ```\n      deep") == "- a\n\n```\nx\n```\n\ndeep"


def test_a_fence_that_is_never_closed_is_closed() -> None:
    assert block("look:\n```py\nx = 1") == "look:\n\n```py\nx = 1\n```"


def test_a_fence_inside_a_list_moves_to_the_margin() -> None:
    said = "1. first\n   ```py\n   x = 1\n     y\n   ```\n2. second"
    assert block(said) == "1. first\n\n```py\nx = 1\n  y\n```\n\n2. second"


@pytest.mark.parametrize("word", ["suggestion", "mermaid", "Math", "a`b", "js onload=x", ""])
def test_a_fence_never_becomes_something_a_forge_acts_on(word: str, page: Any) -> None:
    opening = fence("x", word).split("\n")[0]
    assert opening in ("```", "```js")


def test_a_fence_is_longer_than_every_run_of_backticks_inside() -> None:
    assert fence("a\n````\nb") == "`````\na\n````\nb\n`````"


def test_commands_at_the_start_of_a_line_of_code_are_pushed_in() -> None:
    assert fence("/ci all\n/usr/bin/env\n/*x*/") == "```\n /ci all\n/usr/bin/env\n/*x*/\n```"


def test_our_marker_is_broken_in_code_too() -> None:
    said = '```\n<!-- whitesmoke:round {"round": 9} -->\n``` \n`<!--whitesmoke:x-->`'
    assert not re.search(r"<!--\s*whitesmoke", block(said))


@pytest.mark.parametrize(
    "said",
    [
        "lgtm ready to ci",
        "LGTM Ready To CI",
        "lgtm\tready\n to   ci",
        "l\u200bgtm rea\u2060dy to ci",
        "lgtm\u202e ready to ci",
        "**lgtm** ready _to_ ci",
        "lgtm-ready-to-ci",
        "`lgtm ready to ci`",
        "```\nlgtm ready to ci\n```",
    ],
)
def test_the_ci_phrase_is_broken_however_it_is_written(said: str) -> None:
    shown = guard(block(said), FORBIDDEN_PHRASES)
    bare = re.sub(r"[^A-Za-z·]", "", shown).lower()
    assert "lgtmreadytoci" not in bare


def test_the_ci_phrase_is_broken_inside_longer_words_too() -> None:
    assert guard("xlgtm ready to cider", FORBIDDEN_PHRASES) == "xl·gtm ready to cider"


def test_what_is_not_the_phrase_stays() -> None:
    for said in ("lgtm, but not ready to ci", "lgtm ready", "ready to ci", "l·gtm ready to ci"):
        assert guard(said, FORBIDDEN_PHRASES) == said


def test_a_code_span_keeps_backticks_spaces_and_shows_the_invisible() -> None:
    assert code_span("a`b") == "``a`b``"
    assert code_span("`a`") == "`` `a` ``"
    assert code_span("a\u202e\nb") == "`a⟨U+202E⟩ b`"
    assert code_span("") == ""


def test_a_terminal_line_steers_nothing() -> None:
    assert plain("a\x1b[31m\r\nb\u202e") == "a⟨U+001B⟩[31m b⟨U+202E⟩"


def test_html_is_for_the_inside_of_a_summary() -> None:
    assert inline_html("`a<b` & @octocat </summary>") == (
        "<code>a&lt;b</code> &amp; <code>@octocat</code> &lt;/summary&gt;"
    )


@settings(max_examples=150, deadline=None)
@example("a\\`b` @x `c")
@example("GH-7\\`\\GH-7")
@example("|a|\n:-")
@example("a\n\n-\n")
@given(text)
def test_a_block_is_inert_whatever_it_says(page: Any, said: str) -> None:
    shown = page(block(said))
    assert shown.kinds <= HARMLESS
    assert not shown.html
    assert not shown.calls


@settings(max_examples=150, deadline=None)
@given(text)
def test_one_line_is_inert_whatever_it_says(page: Any, said: str) -> None:
    line = inline(said)
    assert "\n" not in line
    for document in (line, f"- {line}", f"#### {line}", f"*{line}*", f"a **{line}** b"):
        shown = page(document)
        assert not shown.html
        assert not shown.calls
        assert not shown.kinds & {"image", "link_open", "table_open", "code_block", "fence", "hr"}


@settings(max_examples=150, deadline=None)
@given(text)
def test_the_inside_of_a_summary_is_inert_whatever_it_says(page: Any, said: str) -> None:
    line = inline_html(said)
    assert set(re.findall(r"<[^>]*>", line)) <= {"<code>", "</code>"}
    assert "\n" not in line
    assert not page(re.sub(r"<code>.*?</code>", "\n\n", line).replace("<", "")).html
    outside = re.sub(r"<code>.*?</code>", "", line)
    assert not re.search(r"(?<![A-Za-z0-9])@[A-Za-z0-9]|#[0-9]|https?://", outside)


@settings(max_examples=150, deadline=None)
@given(text)
def test_escaping_twice_changes_nothing_more(said: str) -> None:
    assert block(block(said)) == block(said)
    assert inline(inline(said)).split() == inline(said).split()


@settings(max_examples=150, deadline=None)
@given(text)
def test_no_line_starts_with_a_command(said: str) -> None:
    for line in block(said).split("\n"):
        assert not re.match(r"/[A-Za-z][\w-]*(\s|$)", line)
    assert not inline(said).startswith("/r")


@settings(max_examples=150, deadline=None)
@given(st.text())
def test_nothing_invisible_is_left_in_code(said: str) -> None:
    shown = visible(said)
    shown.encode()
    assert not re.search("[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)


@settings(max_examples=100, deadline=None)
@given(text)
def test_letters_and_digits_of_prose_survive(said: str) -> None:
    words = re.findall(r"[a-z]{4,}", "stay " + re.sub(r"[^a-z ]", "", said) + " here")
    assert re.findall(r"[a-z]{4,}", block(" ".join(words))) == words


def test_hostile_length_costs_linear_time() -> None:
    for unit in (
        "`" * 3 + "a",
        "[",
        "![a](",
        "@a/",
        "a/b#",
        "&#",
        "\\`",
        "*",
        "- ",
        "x://",
        "lgtm ready to ",
    ):
        said = unit * (40_000 // len(unit))
        assert guard(block(said), FORBIDDEN_PHRASES)
        inline(said)
