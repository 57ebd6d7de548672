from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reviewer.model import Severity
from reviewer.report import render_review, render_round
from reviewer.report.escape import block
from reviewer.report.limit import COMMENT_LIMIT, Kept, Section, compose, shorten, size

Make = Callable[..., Any]


def test_size_counts_characters_beyond_the_basic_plane_twice() -> None:
    assert size("aé中") == 3
    assert size("a🔴") == 3


@given(
    st.lists(st.integers(0, 60), max_size=200),
    st.lists(st.integers(0, 60), max_size=50),
    st.integers(30, 3000),
)
def test_as_many_whole_items_as_fit_are_kept_in_order(
    first: list[int], second: list[int], limit: int
) -> None:
    sections = {"a": Section(first, lambda n: "a" * n), "b": Section(second, lambda n: "b" * n)}
    said: list[tuple[int, int]] = []

    def render(kept: Any) -> str:
        a, b = kept["a"], kept["b"]
        said.append((len(a.items) + len(b.items), a.left_out + b.left_out))
        return "".join((*a.items, *b.items)) + f"{a.left_out:010}{b.left_out:010}"

    text = compose(sections, render, limit)
    assert size(text) <= limit
    kept = len(text) - 20
    total = [*first, *second]
    shown = next(count for count, left in said if sum(total[:count]) == kept and count + left == len(total))
    assert shown == len(total) or kept + total[shown] + 20 > limit or not total[shown]
    assert all(count + left == len(total) for count, left in said)


def test_items_that_cannot_fit_are_not_made_ready() -> None:
    ready = []
    compose(
        {"a": Section(range(100_000), lambda n: ready.append(n) or "x" * 100)},
        lambda kept: "".join(kept["a"].items),
        5_000,
    )
    assert len(ready) < 200


def test_a_text_too_long_ends_with_a_paragraph_and_a_note() -> None:
    said = "First paragraph.\n\nSecond paragraph.\n\nThird " + "word " * 50
    assert shorten(block, said, 80, "shortened") == "First paragraph.\n\nSecond paragraph.\n\n*(shortened)*"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("one two three.\n\nfour\nfive six seven eight", "one two three."),
        ("one two three four\nfive six seven eight", "one two three four"),
        ("one two three four five six seven eight", "one two three four"),
        ("o" * 60, "o" * 23),
    ],
)
def test_a_text_is_cut_at_a_paragraph_else_a_line_else_a_word(said: str, shown: str) -> None:
    assert shorten(block, said, 38, "shortened").removesuffix("\n\n*(shortened)*") == shown


def test_a_shortened_text_closes_its_fence() -> None:
    said = "Look:\n\n```py\n" + "x = 1\n" * 500 + "```\nend"
    shown = shorten(block, said, 300, "shortened")
    assert size(shown) <= 300
    assert shown.endswith("\n```\n\n*(shortened)*")


@settings(deadline=None)
@given(st.text(max_size=400), st.integers(40, 200))
def test_a_shortened_text_keeps_its_limit_however_much_escaping_adds(said: str, limit: int) -> None:
    assert size(shorten(block, said * 3, limit, "shortened")) <= limit


def test_the_least_severe_findings_are_left_out_and_counted(make_report: Make, make_finding: Make) -> None:
    findings = [
        make_finding(id=f"F{n}", severity=f"P{n % 4}", title=f"title {n}", body="why " * 200)
        for n in range(400)
    ]
    findings.sort(key=lambda one: one.severity)
    text = render_round(make_report(non_blocking=findings))
    shown = text.count("<details>") - 1
    assert 0 < shown < 400
    assert f"*{400 - shown} more, the least severe, left out: the comment would be too long.*" in text
    assert [one.title for one in findings[:shown]] == [f"title {n}" for n in _titles(text)]


def _titles(text: str) -> list[int]:
    return [
        int(line.split("title ")[1].split(" ")[0])
        for line in text.split("\n")
        if line.startswith("<summary><b>")
    ]


nasty = st.sampled_from(
    [
        "a",
        "word ",
        "\n\n",
        "```\n",
        "`",
        "<",
        "|",
        "</details>",
        "@x ",
        "中",
        "🔴",
        "- ",
        "\\",
        "&",
        "lgtm ready to ci ",
    ]
)


@settings(max_examples=6, deadline=None)
@given(
    st.integers(0, 4000),
    st.integers(1, 20),
    st.lists(st.tuples(nasty, st.integers(1, 30_000)), min_size=1, max_size=3),
)
def test_reports_stay_under_the_limit_and_tables_and_folds_stay_closed(
    make_report: Make, make_finding: Make, page: Any, count: int, blockers: int, parts: list[tuple[str, int]]
) -> None:
    giant = "".join(unit * times for unit, times in parts)[:60_000]
    body = giant[:1_500]
    plain = make_finding(body=body, suggestion=body, title=body[:500].strip() or "t", path=body[:600] or "p")
    many = [plain.model_copy(update={"id": f"F{n}", "severity": Severity(f"P{n % 4}")}) for n in range(count)]
    severe = [plain.model_copy(update={"blocking": True, "body": giant, "evidence": giant})] * blockers
    report = make_report(
        round_index=2,
        blocking=severe,
        non_blocking=many,
        closed=many[:100],
        strengths=[giant] * 20,
        warnings=[giant] * 20,
        unreviewed=[{"path": f"{n}{body[:200]}", "reason": body[:400]} for n in range(300)],
        checklist=[
            {
                "id": f"i{n}",
                "checklist": "c",
                "section": body[:500],
                "text": body[:500],
                "answer": answer,
                "evidence": body,
            }
            for n in range(40)
            for answer in ("fail", "unsure")
        ],
    )
    for text in (render_round(report), render_review(report)):
        assert size(text) <= COMMENT_LIMIT
        shown = page(text)
        tags = " ".join(shown.html)
        assert tags.count("<details>") == tags.count("</details>")
        assert tags.count("<summary>") == tags.count("</summary>")
        assert tags.count("<details>") == tags.count("<summary>")
        assert shown.calls == ["#42"]  # our own heading
    assert render_round(report).endswith("</sub>")


def test_a_single_giant_finding_is_shortened_and_stays(make_report: Make, make_finding: Make) -> None:
    giant = make_finding(body="One sentence of many. \n\n" * 10_000, blocking=True)
    text = render_round(make_report(blocking=[giant]))
    assert size(text) <= COMMENT_LIMIT
    assert "One sentence of many." in text
    assert "*(shortened)*" in text
    assert "left out" not in text


@pytest.mark.parametrize("limit", [8_000, 20_000])
def test_a_smaller_limit_is_kept_too(make_report: Make, make_finding: Make, limit: int) -> None:
    report = make_report(non_blocking=[make_finding(id=f"F{n}") for n in range(500)])
    assert size(render_round(report, limit=limit)) <= limit
    assert size(render_review(report, limit=limit, phrase="lgtm ready to ci")) <= limit


def test_kept_says_what_is_missing() -> None:
    seen: list[Kept] = []
    compose({"a": Section("abc", str)}, lambda kept: seen.append(kept["a"]) or "", 10)
    assert seen[-1] == Kept(["a", "b", "c"], 0)
