from __future__ import annotations

import pytest

from reviewer.report.suggestion import is_code, render_suggestion


@pytest.mark.parametrize(
    "code",
    [
        "count = -(-n // size)",
        "for index in range(count):\n    self.pages[index].write(rows)",
        "if x is None:\n    x = []\nreturn f(x)",
        "self.lock.acquire()",
        "a, b = b, a",
        "x: list[int] = []",
        "total += 1",
        "@cache\ndef f(n: int) -> int:\n    return n",
        "from a.b import c\nimport os",
        "int n = 0;\nfor (;;) {\n  n++;\n}",
        "tl.store(out + offsets, value, mask=offsets < n)",
        "# why\nx = 1",
    ],
)
def test_code_is_told_from_words(code: str) -> None:
    assert is_code(code)
    assert render_suggestion(code, "a.py") == f"```python\n{code}\n```"


@pytest.mark.parametrize(
    "words",
    [
        "Pop once, under the pool's lock.",
        "Return early when the batch is empty",
        "return the value that was popped",
        "Use `None` and make the list inside.",
        "if the buffer is empty, return early",
        "Set the limit to 5 (five).",
        "改用向上取整的页数。",
        "Do this:\n\n```py\nx = 1\n```",
        "",
        "    ",
    ],
)
def test_words_are_not_taken_for_code(words: str) -> None:
    assert not is_code(words)


def test_a_suggestion_that_contains_backticks_gets_a_longer_fence() -> None:
    code = 'doc = "``" + "`"'
    assert render_suggestion(code, "a.py").startswith("```python\n")
    fenced = 'doc = x("a")\nend = "``` not a fence"'
    assert render_suggestion(fenced, "a.py").startswith("````python\n")
    assert render_suggestion(fenced, "a.py").endswith("\n````")
