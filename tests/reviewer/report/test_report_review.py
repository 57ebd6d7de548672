from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from reviewer.diff import Diff
from reviewer.report import render_review

Make = Callable[..., Any]
PHRASE = "lgtm ready to ci"


def test_the_first_lines_are_those_that_scripts_read(make_report: Make, make_finding: Make) -> None:
    report = make_report(
        blocking=[make_finding(severity="P1", blocking=True)],
        non_blocking=[make_finding(id="F2", severity="P3"), make_finding(id="F3", severity="P3")],
    )
    lines = [line.strip(" *") for line in render_review(report).split("\n")]
    assert lines[3:6] == [
        "Status: BLOCKING",
        "Summary: P0/0 · P1/1 · P2/0 · P3/2",
        "Reviewed: commit 32497b255b44 · 2026-09-01 11:57 UTC+8",
    ]


@pytest.mark.parametrize(
    ("verdict", "status"),
    [
        ({"outcome": "LGTM"}, "LGTM"),
        ({"outcome": "INCONCLUSIVE", "reasons": ["too few"]}, "INCONCLUSIVE"),
        ({"outcome": "LGTM", "detectors_only": True}, "LGTM (detectors only)"),
    ],
)
def test_the_status_names_the_verdict(make_report: Make, verdict: dict[str, Any], status: str) -> None:
    assert f"**Status: {status}**" in render_review(make_report(verdict=verdict))


@pytest.mark.parametrize(
    ("moment", "shown"),
    [
        ("2026-09-01T11:57:00+08:00", "2026-09-01 11:57 UTC+8"),
        ("2026-09-01T11:57:00+00:00", "2026-09-01 11:57 UTC"),
        ("2026-09-01T11:57:00-03:30", "2026-09-01 11:57 UTC-3:30"),
        ("2026-09-01T11:57:00+05:45", "2026-09-01 11:57 UTC+5:45"),
        ("yesterday", "yesterday"),
    ],
)
def test_the_time_names_its_zone(make_report: Make, moment: str, shown: str) -> None:
    assert (
        f"Reviewed: commit 32497b255b44 · {shown}\n" in render_review(make_report(reviewed_at=moment)) + "\n"
    )


def test_the_phrase_is_said_only_when_asked(make_report: Make) -> None:
    assert PHRASE not in render_review(make_report())
    assert f"\n\n{PHRASE}" in render_review(make_report(), phrase=PHRASE)


@pytest.mark.parametrize(
    "verdict",
    [
        {"outcome": "LGTM", "detectors_only": True},
        {"outcome": "INCONCLUSIVE"},
        {"outcome": "BLOCKED", "blocking": 1},
    ],
)
def test_the_phrase_is_said_by_nothing_but_an_lgtm_of_reviewers(
    make_report: Make, verdict: dict[str, Any]
) -> None:
    assert PHRASE not in render_review(make_report(verdict=verdict), phrase=PHRASE)


def test_no_finding_can_say_the_phrase(make_report: Make, make_finding: Make) -> None:
    says = f"This is {PHRASE.upper()}."
    finding = make_finding(
        title=says, body=says, suggestion=f"`{PHRASE}`", path=f"{PHRASE}.py", category=says
    )
    text = render_review(make_report(non_blocking=[finding], strengths=[says]), phrase=PHRASE)
    assert len(re.findall(r"lgtm\s+ready\s+to\s+ci", text, re.IGNORECASE)) == 1


def test_another_phrase_can_be_forbidden(make_report: Make, make_finding: Make) -> None:
    report = make_report(non_blocking=[make_finding(title="Ship it")])
    assert "Ship it" in render_review(report)
    assert "S·hip it" in render_review(report, forbidden=["ship IT"])


def test_a_finding_with_no_place_in_the_diff_is_told_in_full(
    diff: Diff, make_report: Make, make_finding: Make
) -> None:
    here, elsewhere = (
        make_finding(body="told inline"),
        make_finding(id="F2", path="x.py", body="told in full"),
    )
    text = render_review(make_report(non_blocking=[here, elsewhere]), diff)
    assert "told in full" in text
    assert "told inline" not in text
    assert "told inline" in render_review(make_report(non_blocking=[here, elsewhere]))


def test_a_refuted_claim_comes_with_the_evidence_against_it(
    diff: Diff, make_report: Make, make_finding: Make
) -> None:
    finding = make_finding(
        state="refuted", fact_check="refuted", demoted="refuted", evidence="`close` flushes"
    )
    text = render_review(make_report(non_blocking=[finding]), diff)
    assert "### Refuted by the fact check" in text
    assert "**Refuted**: `close` flushes" in text
    assert "Non-blocking" not in text


def test_the_checklist_names_the_finding_beneath_each_item(make_report: Make, make_finding: Make) -> None:
    item = {
        "id": "a.b",
        "checklist": "General",
        "section": "6.1 Tests",
        "text": "Edge cases",
        "answer": "fail",
    }
    report = make_report(
        non_blocking=[make_finding(title="No empty batch")],
        checklist=[
            {**item, "findings": ["F1"], "evidence": "never seen"},
            {**item, "id": "a.c", "text": "No finding", "evidence": "see `x`"},
            {**item, "id": "a.d", "answer": "pass", "text": "All well"},
        ],
        kpi={"checklist": {"total": 108, "fail": 2, "unsure": 0}},
    )
    text = render_review(report)
    assert "### Checklist Findings (2 fail / 108 total)" in text
    assert "- \\[6.1 Tests\\] Edge cases\n  - → `F1` P1 **No empty batch** @ `kv/pages.py:11-12`\n" in text
    assert "- \\[6.1 Tests\\] No finding\n\n  see `x`" in text
    assert "never seen" not in text
    assert "All well" not in text


def test_an_item_with_many_findings_names_ten(make_report: Make, make_finding: Make) -> None:
    findings = [make_finding(id=f"F{n}") for n in range(13)]
    item = {"id": "a.b", "checklist": "c", "section": "s", "text": "t", "answer": "fail"}
    report = make_report(
        non_blocking=findings, checklist=[{**item, "findings": [one.id for one in findings]}]
    )
    text = render_review(report)
    assert text.count("  - → `F") == 10
    assert text.endswith("\n  - +3")


@pytest.mark.parametrize(
    ("suggestion", "shown"),
    [
        ("Pop once.", "**Suggestion**: Pop once."),
        ("count = n // 2", "**Suggestion**:\n\n  ```python\n  count = n // 2\n  ```"),
        ("- a\n- b", "**Suggestion**:\n\n  - a\n  - b"),
        ('doc = """\n```\n"""', "**Suggestion**: doc = "),
        ("x = '````'", "**Suggestion**:\n\n  `````python\n  x = '````'\n  `````"),
    ],
)
def test_a_suggestion_is_shown_as_what_it_is(
    make_report: Make, make_finding: Make, suggestion: str, shown: str
) -> None:
    assert shown in render_review(make_report(non_blocking=[make_finding(suggestion=suggestion)]))
